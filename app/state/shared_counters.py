"""Where the limits library counts when gateways count together: in Redis, and in this process while that is lost.

Alone, each gateway lets through its share, so that all together let through no more than the limit. It decides what a
share is; it refuses to know what is counted. Only loaded when limits are set.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from limits.aio.storage import RedisStorage
from limits.aio.storage.base import SlidingWindowCounterSupport, Storage

from app.protocol.errors import StateUnreachable
from app.state.counters import Counters
from app.state.link import Link
from app.telemetry.state import StateMetrics

Count = TypeVar("Count")


class SharedCounters(Storage, SlidingWindowCounterSupport):
    """Counts in Redis under keys that begin with `prefix`; while alone, as one of `replicas` that do."""

    STORAGE_SCHEME = None

    def __init__(self, link: Link, local: Counters, replicas: int, prefix: str, metrics: StateMetrics) -> None:
        super().__init__()
        self._link = link
        self._local = local
        self._replicas = replicas
        self._metrics = metrics
        self._shared = RedisStorage(
            "redis://",
            implementation="redispy",
            key_prefix=prefix,
            connection_pool=link.pool,  # type: ignore[arg-type]
        )

    @property
    def base_exceptions(self) -> type[Exception]:
        """What can go wrong here: nothing that is not met here."""
        return ValueError

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """The counter after `amount` was added; a new one ends `expiry` seconds from now."""
        count = await self._ask(lambda: self._shared.incr(key, expiry, amount))
        return self._replicas * await self._local.incr(key, expiry, amount) if count is None else count

    async def get(self, key: str) -> int:
        """The counter, 0 if it is not there."""
        count = await self._ask(lambda: self._shared.get(key))
        return self._replicas * await self._local.get(key) if count is None else count

    async def get_expiry(self, key: str) -> float:
        """When the counter ends; now if it is not there."""
        end = await self._ask(lambda: self._shared.get_expiry(key))
        return await self._local.get_expiry(key) if end is None else end

    async def check(self) -> bool:
        """Whether all count together now."""
        return self._link.up

    async def reset(self) -> int | None:
        """Forget what was counted here."""
        return await self._local.reset()

    async def clear(self, key: str) -> None:
        """Forget one counter."""
        await self._ask(lambda: self._shared.clear(key))
        await self._local.clear(key)

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Count `amount` if the window has room for it. Alone, what the limit allows at once always finds room once."""
        taken = await self._ask(lambda: self._shared.acquire_sliding_window_entry(key, limit, expiry, amount))
        if taken is not None:
            return taken
        share = max(amount, limit // self._replicas) if amount <= limit else 0
        return await self._local.acquire_sliding_window_entry(key, share, expiry, amount)

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """(count of the window before, seconds it still weighs, count of this one, seconds until that is forgotten)."""
        window = await self._ask(lambda: self._shared.get_sliding_window(key, expiry))
        if window is not None:
            return window
        before, weighs, current, ends = await self._local.get_sliding_window(key, expiry)
        return before * self._replicas, weighs, current * self._replicas, ends

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Forget both windows."""
        await self._ask(lambda: self._shared.clear_sliding_window(key, expiry))
        await self._local.clear_sliding_window(key, expiry)

    async def _ask(self, counting: Callable[[], Awaitable[Count]]) -> Count | None:
        """What Redis counts; None if it is not at hand."""
        try:
            return await self._link.ask(lambda _: counting())
        except StateUnreachable:
            self._metrics.fell_back("limits")
            return None

    def __repr__(self) -> str:
        return f"<SharedCounters of {self._replicas} replicas, {self._link!r}, here {self._local!r}>"
