"""Rate limits that several gateways count together in Redis, by the clock of Redis.

During an outage each gateway applies its share of the limit, so that all together let through no more than the
limit.
"""

from collections.abc import Awaitable, Callable
from math import ceil
from secrets import token_hex
from typing import Any

from app.protocol.errors import StateUnreachable
from app.state.rate_limit import DAY_SECONDS, RESERVED_RETRY_SECONDS, SLOTS, LocalLimiter, Reservation, Window
from app.state.redis import RedisConnection
from app.telemetry.metric_groups import StateMetrics

TAKE = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local most, window, count, slots = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local total = tonumber(redis.call('GET', KEYS[2]) or 0)
local function parsed(text)
  local at, number = string.match(text, '^(%d+):(%d+)$')
  return tonumber(at), tonumber(number)
end
while true do
  local first = redis.call('LINDEX', KEYS[1], 0)
  if not first then total = 0 break end
  local at, number = parsed(first)
  if at > now - window then break end
  redis.call('LPOP', KEYS[1])
  total = total - number
end
local keep = math.ceil(window / 1000) + 1000
local excess = total + count - most
if excess > 0 then
  redis.call('SET', KEYS[2], total, 'PX', keep)
  for _, text in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
    local at, number = parsed(text)
    excess = excess - number
    if excess <= 0 then return at + window - now end
  end
  return window
end
local last = redis.call('LINDEX', KEYS[1], -1)
local at, number = 0, 0
if last then at, number = parsed(last) end
if last and at > now - window / slots then
  redis.call('LSET', KEYS[1], -1, string.format('%.0f:%d', math.max(at, now), number + count))
else
  redis.call('RPUSH', KEYS[1], string.format('%.0f:%d', now, count))
end
redis.call('PEXPIRE', KEYS[1], keep)
redis.call('SET', KEYS[2], total + count, 'PX', keep)
return 0
"""
"""Microseconds until the window has room; 0 if the count was taken.

KEYS: a list of `time:count`, and its total. ARGV: most, window in microseconds, count, slots of a window.
"""

RESERVE = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local limit, amount = tonumber(ARGV[2]), tonumber(ARGV[3])
local used = tonumber(redis.call('GET', KEYS[1]) or 0)
if used >= limit or used + amount > limit then
  local left = redis.call('PTTL', KEYS[1])
  return left > 0 and left or tonumber(ARGV[5])
end
if amount == 0 then return 0 end
local held = 0
local all = redis.call('HGETALL', KEYS[2])
for place = 1, #all, 2 do
  local number, ends = string.match(all[place + 1], '^(%d+):(%d+)$')
  if tonumber(ends) <= now then
    redis.call('HDEL', KEYS[2], all[place])
  else
    held = held + number
  end
end
if used + held + amount > limit then return tonumber(ARGV[6]) end
redis.call('HSET', KEYS[2], ARGV[1], string.format('%d:%.0f', amount, now + ARGV[4] * 1000))
redis.call('PEXPIRE', KEYS[2], ARGV[4] + 1000)
return 0
"""
"""Milliseconds until a retry makes sense; 0 if the reservation was made.

KEYS: what is used of the day, and the reservations. ARGV: id, limit, amount, lifetime of the reservation in
milliseconds, milliseconds until the next day, and until reservations are released. The reservation of a gateway that
died expires.
"""

FINISH = """
redis.call('HDEL', KEYS[2], ARGV[1])
if tonumber(ARGV[2]) > 0 then
  redis.call('INCRBY', KEYS[1], ARGV[2])
  if redis.call('PTTL', KEYS[1]) < 0 then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
end
return 0
"""
"""Ends a reservation and counts what was used. KEYS: as above. ARGV: id, used, milliseconds of a day."""


class SharedLimiter:
    """Counts in Redis under keys that begin with `prefix`; during an outage, as one of `replicas`."""

    def __init__(
        self, link: RedisConnection, local: LocalLimiter, replicas: int, prefix: str, metrics: StateMetrics
    ) -> None:
        self._link = link
        self._local = local
        self._replicas = replicas
        self._prefix = prefix
        self._metrics = metrics
        self._take, self._reserve, self._finish = (link.script(text) for text in (TAKE, RESERVE, FINISH))

    async def take(self, key: str, window: Window, count: int) -> float:
        """As in Limiter. During an outage, a request within the limit always fits into an empty window."""
        # Lua runs atomically in Redis, so replicas cannot exceed the limit together.
        keys = [f"{self._prefix}:{key}:times", f"{self._prefix}:{key}:total"]
        arguments = [window.most, ceil(window.seconds * 1e6), count, SLOTS]
        wait = await self._ask(lambda: self._take(keys=keys, args=arguments))
        if wait is not None:
            return float(wait / 1e6)
        return await self._local.take(key, window._replace(most=self._share(window.most, count)), count)

    async def reserve(self, key: str, limit: int, amount: int, seconds: float) -> Reservation | float:
        """As in Limiter."""
        name = token_hex(8)
        waits = [DAY_SECONDS * 1000, ceil(RESERVED_RETRY_SECONDS * 1000)]
        arguments = [name, limit, amount, ceil(seconds * 1000), *waits]
        wait = await self._ask(lambda: self._reserve(keys=self._daily(key), args=arguments))
        if wait is not None:
            return float(wait / 1000) if wait else Reservation(key, limit, amount, name)
        return await self._local.reserve(key, self._share(limit, amount), amount, seconds)

    async def finish(self, reservation: Reservation, used: int) -> None:
        """As in Limiter. If Redis has become unavailable, the reservation expires there, and what was used counts
        here."""
        # A reservation made in Redis is finished there; others in this process.
        if reservation.id:
            keys, arguments = self._daily(reservation.key), [reservation.id, used, DAY_SECONDS * 1000]
            if await self._ask(lambda: self._finish(keys=keys, args=arguments)) is not None:
                return
        await self._local.finish(reservation, used)

    def _daily(self, key: str) -> list[str]:
        return [f"{self._prefix}:{key}:used", f"{self._prefix}:{key}:held"]

    def _share(self, most: int, count: int) -> int:
        # At least `count`, so that a request within the limit is never refused for ever.
        return max(count, most // self._replicas) if count <= most else 0

    async def _ask(self, command: Callable[[], Awaitable[Any]]) -> Any | None:
        """The answer of Redis; None during an outage."""
        try:
            return await self._link.ask(lambda _: command())
        except StateUnreachable:
            self._metrics.fell_back("limits")
            return None

    def __repr__(self) -> str:
        return f"<SharedLimiter of {self._replicas} replicas, {self._link!r}, locally {self._local!r}>"
