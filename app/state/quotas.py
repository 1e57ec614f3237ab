"""Request rates, concurrent requests and daily hits of each caller.

What is counted together is an owner: a tenant, or a client address of the anonymous tenant. Counting is done in
`rate_limit.py`, or in Redis so that replicas count together.
"""

import time
from collections.abc import Callable
from math import ceil
from typing import Literal, NamedTuple

from app.settings.tenants_file import LimitsEntry
from app.state.rate_limit import Limiter, Reservation, Window
from app.state.store import IN_MEMORY

Bound = Literal["requests", "concurrent", "hits"]
"""Which limit was reached."""

TENANT_COUNTERS = 100_000
"""Keys of tenants in memory at once: each tenant has at most two, and tenants are configured."""

WAIT_FOR_ANOTHER = 1.0
"""Seconds to wait when too many requests are in progress, since their end is unknown."""


class Reached(NamedTuple):
    """A limit was reached: which one, and the seconds until a retry makes sense."""

    bound: Bound
    seconds: float


class Owner(NamedTuple):
    """Whose requests are counted together."""

    tenant: str
    address: str = ""
    """Client address of an anonymous caller; empty: the whole tenant counts as one."""


class Quotas:
    """Counts requests and hits."""

    __slots__ = ("_addresses", "_clock", "_max_addresses", "_open", "_tenants", "_under_way")

    def __init__(
        self,
        max_addresses: int,
        limiter: Callable[[int, Callable[[], float]], Limiter] = IN_MEMORY.limiter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limiter`: opens a limiter for at most that many keys. `clock` is monotonic, in seconds."""
        self._max_addresses = max_addresses
        self._open = limiter
        self._clock = clock
        self._tenants: Limiter | None = None
        self._addresses: Limiter | None = None
        self._under_way: dict[Owner, int] = {}

    async def take(self, owner: Owner, limits: LimitsEntry, count: int) -> Reached | None:
        """Count `count` requests that begin now; if a limit forbids them, count nothing and return it.

        A caller that got None must call `give_back` when they end.
        """
        under_way = self._under_way.get(owner, 0)
        if limits.concurrent is not None and under_way + count > limits.concurrent:
            return Reached("concurrent", WAIT_FOR_ANOTHER)
        if limits.concurrent is not None:
            self._under_way[owner] = (
                under_way + count
            )  # before the first await, or concurrent requests could exceed the limit
        try:
            reached = await self._counted(owner, limits, count)
        # Also on cancellation while Redis is asked: the slot must be free again.
        except BaseException:
            self.give_back(owner, limits, count)
            raise
        if reached is not None:
            self.give_back(owner, limits, count)
        return reached

    def give_back(self, owner: Owner, limits: LimitsEntry, count: int) -> None:
        """These requests have ended."""
        if limits.concurrent is not None:
            left = self._under_way.get(owner, 0) - count
            # Owners without requests in progress are removed, so the dict stays small.
            if left > 0:
                self._under_way[owner] = left
            else:
                self._under_way.pop(owner, None)

    async def reserve_hits(
        self, owner: Owner, limits: LimitsEntry, hits: int, seconds: float
    ) -> Reservation | Reached | None:
        """Reserve hits of the day for a request that takes at most `seconds`; returns Reached if they are too many.

        None if hits are not limited. Every reservation must be ended with `release_hits`.
        """
        if limits.hits_per_day is None:
            return None
        reserved = await self._limiter(owner).reserve(_key("hits", owner), limits.hits_per_day, hits, seconds)
        return Reached("hits", reserved) if isinstance(reserved, float) else reserved

    async def release_hits(self, owner: Owner, reservation: Reservation, hits: int) -> None:
        """Count the hits that were returned, and release the rest of the reservation."""
        await self._limiter(owner).finish(reservation, hits)

    async def _counted(self, owner: Owner, limits: LimitsEntry, count: int) -> Reached | None:
        if limits.hits_per_day is not None:
            # Only asks whether the day is used up; the reservation follows when `k` is known.
            reached = await self.reserve_hits(owner, limits, 0, 0.0)
            if isinstance(reached, Reached):
                return reached
        if limits.rps is not None:
            window = window_of(limits.rps, limits.burst)
            seconds = await self._limiter(owner).take(_key("requests", owner), window, count)
            if seconds:
                return Reached("requests", max(0.001, seconds))
        return None

    def _limiter(self, owner: Owner) -> Limiter:
        if owner.address:
            # Opened on first use: most gateways have no limits.
            if self._addresses is None:
                self._addresses = self._open(4 * self._max_addresses, self._now)
            return self._addresses
        if self._tenants is None:
            self._tenants = self._open(TENANT_COUNTERS, self._now)
        return self._tenants

    def _now(self) -> float:
        return self._clock()

    def __repr__(self) -> str:
        under_way = sum(self._under_way.values())
        return f"<Quotas {under_way} limited requests in progress of {len(self._under_way)} owners>"


def at_once(limits: LimitsEntry) -> int | None:
    """The largest number of requests that can ever begin together; None if unlimited."""
    bounds = [] if limits.concurrent is None else [limits.concurrent]
    if limits.rps is not None:
        bounds.append(window_of(limits.rps, limits.burst).most)
    return min(bounds, default=None)


def window_of(rps: float, burst: int | None) -> Window:
    """`burst` requests at once and `rps` on average: at most `burst` in any `burst / rps` seconds.

    Without `burst` it is one second's worth, so `rps` is the most in any second.
    """
    most = max(1, ceil(rps)) if burst is None else burst
    return Window(most, most / rps)


def _key(use: str, owner: Owner) -> str:
    return f"{use}:{owner.tenant}:{owner.address}"
