"""Exact rate limits in memory: a number of requests in any window, and a daily number with reservations.

A reservation is made before work begins and finished when it ends, so requests in progress together cannot exceed
what is left. `redis_rate_limit.py` applies the same rules in Redis.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

DAY_SECONDS = 86_400

SLOTS = 1024
"""Requests within this fraction of a window are stored as one, at the later time.

This bounds the memory of a window at any rate. It never lets more through; a request may be refused for that much
too long.
"""

RESERVED_RETRY_SECONDS = 1.0
"""When to retry if what is left is reserved: how much of it will be released is unknown."""


class Window(NamedTuple):
    """At most `most` in any `seconds`."""

    most: int
    seconds: float


class Reservation(NamedTuple):
    """An amount of the day reserved under `key`, until it is finished."""

    key: str
    limit: int
    amount: int
    id: str = ""
    """Its id in the shared state; empty: it was made in this process."""


class Limiter(Protocol):
    """Counts under keys. Never raises: during an outage of the shared state it counts in this process."""

    async def take(self, key: str, window: Window, count: int) -> float:
        """Count `count` now if the window has room; else count nothing and return the seconds until it has."""
        ...

    async def reserve(self, key: str, limit: int, amount: int, seconds: float) -> Reservation | float:
        """Reserve `amount` of a day's `limit` for at most `seconds`, or return the seconds until a retry makes
        sense.

        With an amount of 0 it only checks whether the day is used up.
        """
        ...

    async def finish(self, reservation: Reservation, used: int) -> None:
        """Count `used`, and release the rest of the reservation."""
        ...


class _Counted:
    """The counters of one key."""

    __slots__ = ("ends", "held", "times", "total", "used")

    def __init__(self) -> None:
        self.times: deque[tuple[float, int]] = deque()
        self.total = 0
        self.used = 0
        self.held = 0
        self.ends = 0.0

    def __repr__(self) -> str:
        return f"<_Counted {self.total} in the window, {self.used} used and {self.held} reserved of the day>"


class LocalLimiter:
    """At most `max_entries` keys; beyond that the least recently used are evicted. `clock` in seconds."""

    def __init__(self, max_entries: int, clock: Callable[[], float]) -> None:
        self._entries: OrderedDict[str, _Counted] = OrderedDict()
        self._max_entries = max_entries
        self._clock = clock

    async def take(self, key: str, window: Window, count: int) -> float:
        """As in Limiter; decides without awaiting."""
        counted, now = self._entry(key), self._clock()
        times = counted.times
        while times and times[0][0] <= now - window.seconds:
            counted.total -= times.popleft()[1]
        excess = counted.total + count - window.most
        if excess > 0:
            # The time at which enough of the oldest requests leave the window.
            for at, number in times:
                excess -= number
                if excess <= 0:
                    return at + window.seconds - now
            return window.seconds
        # Close together: stored as one, which bounds the memory per key.
        if times and times[-1][0] > now - window.seconds / SLOTS:
            times[-1] = (now, times[-1][1] + count)
        else:
            times.append((now, count))
        counted.total += count
        return 0.0

    async def reserve(self, key: str, limit: int, amount: int, seconds: float) -> Reservation | float:
        """As in Limiter. The process that made a reservation finishes it, so none needs to expire."""
        counted, now = self._entry(key), self._clock()
        if counted.ends <= now:
            counted.used = 0
        # Used up, or the amount alone exceeds what is left: only the next day helps.
        if counted.used >= limit or counted.used + amount > limit:
            return counted.ends - now if counted.used else float(DAY_SECONDS)
        if counted.used + counted.held + amount > limit:
            return RESERVED_RETRY_SECONDS
        counted.held += amount
        return Reservation(key, limit, amount)

    async def finish(self, reservation: Reservation, used: int) -> None:
        """As in Limiter. A day begins with its first use."""
        counted, now = self._entry(reservation.key), self._clock()
        if not reservation.id:
            counted.held = max(0, counted.held - reservation.amount)
        # The day begins with its first use, not at midnight, so that resets are spread over time.
        if used and counted.ends <= now:
            counted.used, counted.ends = 0, now + DAY_SECONDS
        counted.used += used

    def _entry(self, key: str) -> _Counted:
        counted = self._entries.get(key)
        if counted is None:
            counted = self._entries[key] = _Counted()
            if len(self._entries) > self._max_entries:
                # A client that is evicted starts afresh; with enough entries this takes an attack to reach.
                self._entries.popitem(last=False)
        else:
            self._entries.move_to_end(key)
        return counted

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<LocalLimiter {len(self)}/{self._max_entries}>"
