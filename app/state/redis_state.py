"""The state that gateways share, behind one link to Redis: opens every store and limiter over it.

It decides what keys begin with, so that gateways which differ in what they serve never read each other's values. It
refuses to know what is kept. Only loaded when `state.url` names a Redis.
"""

from collections.abc import Callable

from app.settings.state import StateSettings
from app.state.memory_store import MemoryStore
from app.state.rate_limit import LocalLimiter
from app.state.redis import RedisConnection
from app.state.redis_errors import cause_of
from app.state.redis_rate_limit import SharedLimiter
from app.state.redis_store import RedisStore
from app.state.redis_sums import SharedSums
from app.telemetry.metric_groups import StateMetrics


class RedisState:
    """Satisfies `state.store.Sharing`."""

    __slots__ = ("_identity", "_link", "_metrics", "_name", "_wishes")

    def __init__(self, wishes: StateSettings, name: str, identity: Callable[[], str], metrics: StateMetrics) -> None:
        """`name`: of the gateway, whatever its engines are: limits are counted by it. `identity`: what it is now, with
        its engines: values are kept under it."""
        self._wishes = wishes
        self._name = name
        self._identity = identity
        self._metrics = metrics
        self._link = RedisConnection(
            wishes.url, wishes.connections, wishes.timeout_ms / 1000, f"{wishes.prefix}:probe", metrics
        )

    @property
    def degraded(self) -> bool:
        """Whether it is not at hand."""
        return not self._link.up

    def store(
        self,
        use: str,
        local: MemoryStore,
        *,
        constant: bool = False,
        max_bytes: int | None = None,
        permanent: bool = False,
    ) -> RedisStore:
        """A store over the link that falls back on `local`."""
        namespace = self._permanent_namespace if permanent else self._namespace
        return RedisStore(use, self._link, local, namespace, self._metrics, constant=constant, max_bytes=max_bytes)

    def limiter(self, max_entries: int, clock: Callable[[], float]) -> SharedLimiter:
        """Where limits are counted."""
        wishes = self._wishes
        prefix = f"{wishes.prefix}:{self._name}:limits"
        return SharedLimiter(self._link, LocalLimiter(max_entries, clock), wishes.replicas, prefix, self._metrics)

    def sums(self) -> SharedSums:
        """Sums over the link, by the gateway's name: whatever its engines are, each has its own."""
        return SharedSums(self._link, lambda: f"{self._wishes.prefix}:{self._name}")

    async def start(self) -> None:
        """Look whether Redis is at hand; a gateway starts without it too."""
        await self._link.start()

    async def fault(self) -> str | None:
        """Why Redis cannot be used, None if it can."""
        fault = await self._link.fault()
        return None if fault is None else cause_of(fault)

    async def close(self) -> None:
        """Give up the link."""
        await self._link.close()

    def _namespace(self) -> str:
        return f"{self._wishes.prefix}:{self._identity()}"

    def _permanent_namespace(self) -> str:
        return f"{self._wishes.prefix}:{self._name}"

    def __repr__(self) -> str:
        return f"<SharedState of {self._namespace()}, {self._link!r}>"
