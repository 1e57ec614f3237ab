"""State shared between gateways: a store in Redis that falls back to memory, and the backend that opens such stores.

A value written during an outage stays in the process that wrote it until it expires; nothing is synchronised
afterwards. Imported only if `state.url` names a Redis, because it loads the Redis library."""

from collections.abc import Callable
from hashlib import blake2b
from secrets import token_hex
from typing import Any

from app.protocol.envelope import dumps, loads
from app.protocol.errors import ParseError, StateUnreachable
from app.settings.state import StateSettings
from app.state.rate_limit import LocalLimiter
from app.state.redis import RedisConnection, cause_of
from app.state.redis_rate_limit import SharedLimiter
from app.state.redis_sums import SharedSums
from app.state.store import MemoryStore
from app.telemetry.metric_groups import StateMetrics

FORMAT = b"1:"
"""Prefix of every value; incremented whenever the format of values changes. Values of another format are ignored."""

_STAMP = 12
_HEAD = len(FORMAT) + _STAMP + 1
"""Bytes before the JSON: the format, a stamp unique to each write, and a colon."""

MAX_NAME = 200
"""Keys up to this length are written as they are; longer or non-printable ones as a digest."""

MOST_TRIES = 16
"""Attempts of a change against concurrent ones; after that it overwrites them."""


class RedisStore:
    """A store in Redis. Implements `Store`."""

    __slots__ = ("_constant", "_link", "_local", "_max_bytes", "_metrics", "_namespace", "_use")

    def __init__(
        self,
        use: str,
        link: RedisConnection,
        local: MemoryStore,
        namespace: Callable[[], str],
        metrics: StateMetrics,
        *,
        constant: bool = False,
        max_bytes: int | None = None,
    ) -> None:
        """`use`: label in metrics. `namespace`: current prefix of every key.

        `constant`: the value of a key never changes, so it is also stored in this process and read there first; a
        value that `local` does not accept is not shared either. A value of more than `max_bytes` of JSON is stored
        in this process only.
        """
        self._use = use
        self._link = link
        self._local = local
        self._namespace = namespace
        self._metrics = metrics
        self._constant = constant
        self._max_bytes = max_bytes

    @property
    def degraded(self) -> bool:
        """Whether Redis is unavailable."""
        return not self._link.up

    async def get(self, key: str, load: Callable[[Any], Any]) -> Any:
        """The shared value, else the one that this process stored during an outage."""
        if self._constant:
            value = await self._local.get(key, load)
            if value is not None:
                return value
        try:
            # A value that cannot be read counts as missing: another version may have written it.
            value = _read(await self._text(key), load)
        except StateUnreachable:
            value = None
        return value if value is not None or self._constant else await self._local.get(key, load)

    async def put(self, key: str, value: Any, seconds: float, dump: Callable[[Any], Any], *, size: int = 1) -> None:
        """Store the value in Redis, or in this process during an outage."""
        if self._constant:
            await self._local.put(key, value, seconds, dump, size=size)
            if await self._local.get(key, _as_it_is) is None:
                return  # beyond the turnover of the store, Redis does not store it either
        text = dumps(dump(value))
        if self._max_bytes is None or len(text) <= self._max_bytes:
            try:
                # Evaluated before the first await, so that both belong to the same namespace.
                name, ms = self._name(key), _milliseconds(seconds)
                await self._ask(lambda redis: redis.set(name, _stamped(text), px=ms))
            except StateUnreachable:
                pass
            else:
                await self._forget(key)
                return
        if not self._constant:
            await self._local.put(key, value, seconds, dump, size=size)

    async def change(
        self,
        key: str,
        change: Callable[[Any], Any],
        seconds: float,
        load: Callable[[Any], Any],
        dump: Callable[[Any], Any],
        *,
        size: Callable[[Any], int],
    ) -> Any:
        """Change the shared value atomically."""
        try:
            # Optimistic locking: read, change, and write only if the stamp is still the same.
            for left in reversed(range(MOST_TRIES)):
                text = await self._text(key)
                value = _read(text, load)
                changed = change(value)
                if changed is None:
                    return value
                written = _stamped(dumps(dump(changed)))
                # Too many concurrent changes: losing one of them is better than failing the request.
                if not left:
                    await self.put(key, changed, seconds, dump, size=size(changed))
                elif not await self._link.swap(self._name(key), text[:_HEAD], written, _milliseconds(seconds)):
                    continue
                await self._forget(key)
                return changed
        except StateUnreachable:
            self._metrics.fell_back(self._use)
        return await self._local.change(key, change, seconds, load, dump, size=size)

    async def delete(self, key: str) -> None:
        """Remove the value, in this process and in Redis."""
        await self._local.delete(key)
        name = self._name(key)
        try:
            await self._ask(lambda redis: redis.delete(name))
        except StateUnreachable:
            return  # it will expire

    async def _text(self, key: str) -> bytes:
        """The stored bytes; empty if there are none. Raises StateUnreachable."""
        name = self._name(key)
        return await self._ask(lambda redis: redis.get(name)) or b""

    async def _ask(self, command: Callable[[Any], Any]) -> Any:
        try:
            return await self._link.ask(command)
        except StateUnreachable:
            self._metrics.fell_back(self._use)
            raise

    async def _forget(self, key: str) -> None:
        """A value stored here during an outage is older than the shared one."""
        # Usually empty: only an outage puts values there.
        if not self._constant and len(self._local):
            await self._local.delete(key)

    def _name(self, key: str) -> str:
        if len(key) > MAX_NAME or not key.isascii() or not key.isprintable():
            # Redis keys should be short and printable, whatever callers send.
            key = f"#{blake2b(key.encode('utf-8', 'surrogatepass'), digest_size=20).hexdigest()}"
        return f"{self._namespace()}:{self._use}:{key}"

    def __repr__(self) -> str:
        return f"<RedisStore for {self._use}, {self._link!r}, locally {self._local!r}>"


def _as_it_is(value: Any) -> Any:
    return value


def _stamped(text: bytes) -> bytes:
    return b"%b%b:%b" % (FORMAT, token_hex(_STAMP // 2).encode(), text)


def _read(text: bytes, load: Callable[[Any], Any]) -> Any:
    """The stored value; None if there is none, or if it cannot be read."""
    if not text.startswith(FORMAT):
        return None
    try:
        return load(loads(text[_HEAD:]))
    except (ParseError, TypeError, ValueError, LookupError, AttributeError):
        return None


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


class RedisState:
    """State shared in Redis. Implements `StateBackend`.

    Keys begin with the identity of the gateway and its engines, so gateways with different engines never read each
    other's values.
    """

    __slots__ = ("_identity", "_link", "_metrics", "_name", "_settings")

    def __init__(self, settings: StateSettings, name: str, identity: Callable[[], str], metrics: StateMetrics) -> None:
        """`name`: of the gateway, independent of its engines; limits are counted under it. `identity`: its current
        identity, which includes its engines; values are stored under it."""
        self._settings = settings
        self._name = name
        self._identity = identity
        self._metrics = metrics
        self._link = RedisConnection(
            settings.url, settings.connections, settings.timeout_ms / 1000, f"{settings.prefix}:probe", metrics
        )

    @property
    def degraded(self) -> bool:
        """Whether Redis is unavailable."""
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
        """A store in Redis that falls back to `local`."""
        namespace = self._permanent_namespace if permanent else self._namespace
        return RedisStore(use, self._link, local, namespace, self._metrics, constant=constant, max_bytes=max_bytes)

    def limiter(self, max_entries: int, clock: Callable[[], float]) -> SharedLimiter:
        """A rate limiter in Redis."""
        settings = self._settings
        prefix = f"{settings.prefix}:{self._name}:limits"
        return SharedLimiter(self._link, LocalLimiter(max_entries, clock), settings.replicas, prefix, self._metrics)

    def sums(self) -> SharedSums:
        """Sums in Redis under the name of the gateway, whatever engines it has: every engine has its own sums."""
        return SharedSums(self._link, lambda: f"{self._settings.prefix}:{self._name}")

    async def start(self) -> None:
        """Check whether Redis is available; the gateway starts without it too."""
        await self._link.start()

    async def fault(self) -> str | None:
        """Why Redis cannot be used; None if it can."""
        fault = await self._link.fault()
        return None if fault is None else cause_of(fault)

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()

    def _namespace(self) -> str:
        return f"{self._settings.prefix}:{self._identity()}"

    def _permanent_namespace(self) -> str:
        return f"{self._settings.prefix}:{self._name}"

    def __repr__(self) -> str:
        return f"<RedisState {self._namespace()}, {self._link!r}>"
