"""How much a caller may still ask: requests by the second, requests under way, hits by the day.

Decides what is counted together: an owner is a tenant, or an address of the anonymous one. It refuses to know HTTP, and
who a caller is. Counting is the limits library's, behind its storage interface, so that replicas can count together.
"""

import time
from collections.abc import Callable
from functools import lru_cache
from math import ceil, floor
from typing import TYPE_CHECKING, Literal, NamedTuple

from app.settings.tenants import LimitsEntry
from app.state.alone import ALONE

if TYPE_CHECKING:
    from limits import RateLimitItem
    from limits.aio.storage import Storage
    from limits.aio.strategies import FixedWindowRateLimiter, SlidingWindowCounterRateLimiter

Bound = Literal["requests", "concurrent", "hits"]
"""Which limit was reached."""

TENANT_COUNTERS = 100_000
"""Counters of tenants kept at once: there are four for each tenant at most, and tenants are declared."""

WAIT_FOR_ANOTHER = 1.0
"""Seconds after which to try again where too many requests are under way: nobody knows when they end."""


class Reached(NamedTuple):
    """A limit is reached: which, and the seconds until asking again makes sense."""

    bound: Bound
    seconds: float


class Owner(NamedTuple):
    """Whose requests are counted together."""

    tenant: str
    address: str = ""
    """Of an anonymous caller; empty: the whole tenant counts as one."""


class _Counting(NamedTuple):
    """The library's strategies over one storage: a window that slides for requests, a fixed day for hits."""

    requests: "SlidingWindowCounterRateLimiter"
    hits: "FixedWindowRateLimiter"


class Quotas:
    """Counts what is asked and answered. Nothing is loaded or counted before somebody is limited."""

    __slots__ = ("_addresses", "_clock", "_max_addresses", "_open", "_tenants", "_under_way")

    def __init__(
        self,
        max_addresses: int,
        counters: "Callable[[int, Callable[[], float]], Storage]" = ALONE.counters,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`counters`: opens a storage for at most so many counters. `clock`: seconds since the epoch."""
        self._max_addresses = max_addresses
        self._open = counters
        self._clock = clock
        self._tenants: _Counting | None = None
        self._addresses: _Counting | None = None
        self._under_way: dict[Owner, int] = {}

    async def take(self, owner: Owner, limits: LimitsEntry, count: int) -> Reached | None:
        """Count `count` requests that begin now, or say which limit forbids it; then nothing is counted.

        Whoever got None must call `give_back` once they have ended.
        """
        under_way = self._under_way.get(owner, 0)
        if limits.concurrent is not None and under_way + count > limits.concurrent:
            return Reached("concurrent", WAIT_FOR_ANOTHER)
        if limits.concurrent is not None:
            self._under_way[owner] = under_way + count  # before anything is waited for
        try:
            reached = await self._counted(owner, limits, count)
        except BaseException:
            self.give_back(owner, limits, count)
            raise
        if reached is not None:
            self.give_back(owner, limits, count)
        return reached

    def give_back(self, owner: Owner, limits: LimitsEntry, count: int) -> None:
        """So many requests are no longer under way."""
        if limits.concurrent is not None:
            left = self._under_way.get(owner, 0) - count
            if left > 0:
                self._under_way[owner] = left
            else:
                self._under_way.pop(owner, None)

    async def add_hits(self, owner: Owner, limits: LimitsEntry, hits: int) -> None:
        """So many hits were answered."""
        if limits.hits_per_day is not None and hits:
            await self._counting(owner).hits.hit(_daily(limits.hits_per_day), *owner, cost=hits)

    async def _counted(self, owner: Owner, limits: LimitsEntry, count: int) -> Reached | None:
        if limits.hits_per_day is not None:
            day, counting = _daily(limits.hits_per_day), self._counting(owner).hits
            if not await counting.test(day, *owner):
                return Reached("hits", await self._until_reset(counting, day, owner))
        if limits.rps is not None:
            window, requests = _window(limits.rps, limits.burst), self._counting(owner).requests
            if not await requests.hit(window, *owner, cost=count):
                return Reached("requests", await self._until_reset(requests, window, owner))
        return None

    async def _until_reset(
        self, counting: "FixedWindowRateLimiter | SlidingWindowCounterRateLimiter", item: "RateLimitItem", owner: Owner
    ) -> float:
        stats = await counting.get_window_stats(item, *owner)
        # The library takes the present of a sliding window from the system, whatever clock is counted by.
        now = self._clock() if item.namespace == "hits" else time.time()
        return float(max(0.001, stats.reset_time - now))

    def _counting(self, owner: Owner) -> _Counting:
        if owner.address:
            if self._addresses is None:
                self._addresses = self._opened(4 * self._max_addresses)
            return self._addresses
        if self._tenants is None:
            self._tenants = self._opened(TENANT_COUNTERS)
        return self._tenants

    def _opened(self, max_entries: int) -> _Counting:
        from limits.aio.strategies import FixedWindowRateLimiter, SlidingWindowCounterRateLimiter

        storage = self._open(max_entries, self._clock)
        return _Counting(SlidingWindowCounterRateLimiter(storage), FixedWindowRateLimiter(storage))

    def __repr__(self) -> str:
        under_way = sum(self._under_way.values())
        return f"<Quotas {under_way} limited requests under way of {len(self._under_way)} owners>"


def at_once(limits: LimitsEntry) -> int | None:
    """The largest number of requests that can ever begin together; None if nothing bounds it."""
    bounds = [] if limits.concurrent is None else [limits.concurrent]
    if limits.rps is not None:
        bounds.append(_amount(limits.rps, limits.burst)[0])
    return min(bounds, default=None)


def _amount(rps: float, burst: int | None) -> tuple[int, int]:
    """(requests, seconds): what `rps` on average and `burst` at once come to as one window of whole seconds."""
    most = max(1, ceil(rps)) if burst is None else burst
    seconds = max(1, ceil(most / rps))
    return max(most, floor(rps * seconds)), seconds


@lru_cache(maxsize=1024)
def _window(rps: float, burst: int | None) -> "RateLimitItem":
    from limits import RateLimitItemPerSecond

    return RateLimitItemPerSecond(*_amount(rps, burst), namespace="requests")


@lru_cache(maxsize=1024)
def _daily(hits: int) -> "RateLimitItem":
    from limits import RateLimitItemPerDay

    return RateLimitItemPerDay(hits, namespace="hits")
