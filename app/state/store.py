"""Key-value stores for what must outlive one request, and the in-memory implementation.

Every value has a key, an expiry and a size. An in-memory store keeps values as they are; a store outside the process
keeps the plain data that `dump` returns and gives back what `load` makes of it."""

from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol, TypeVar

from app.state.rate_limit import Limiter, LocalLimiter

Value = TypeVar("Value")


class Store(Protocol):
    """Values by key. Whoever reads must cope with a value that is gone: bounds may take it before its time."""

    @property
    def degraded(self) -> bool:
        """Whether what others share cannot be read or written now: what is not found here may be there."""
        ...

    async def get(self, key: str, load: Callable[[Any], Value]) -> Value | None:
        """The value, or None if it was never there, is over or was let go."""
        ...

    async def put(self, key: str, value: Value, seconds: float, dump: Callable[[Value], Any], *, size: int = 1) -> None:
        """Keep `value` for so many seconds in place of any before; `size` is what it counts of the store's bound.

        `dump` is called only by a store that cannot keep the value itself. What is changed after `get` must be put
        again, or the change may be lost.
        """
        ...

    async def change(
        self,
        key: str,
        change: Callable[[Value | None], Value | None],
        seconds: float,
        load: Callable[[Any], Value],
        dump: Callable[[Value], Any],
        *,
        size: Callable[[Value], int],
    ) -> Value | None:
        """Keep what `change` makes of the value (None if there is none), so that of two changes none is lost.

        `change` may be called several times, may alter what it is given, and returns None to leave things as they are.
        What is kept then, as `put` and `get` would have it.
        """
        ...

    async def delete(self, key: str) -> None:
        """Let the value go, if it is there."""
        ...


_Entry = tuple[Any, float, int]
"""Value, when it ends, and its size; a plain tuple, since one is made for most answers."""


class MemoryStore:
    """Keeps values as they are, so none is ever copied. Satisfies `state.store.Store`."""

    __slots__ = (
        "_budget",
        "_clock",
        "_counted",
        "_entries",
        "_evicted",
        "_max_entries",
        "_max_size",
        "_refused",
        "_size",
        "_turnover",
    )

    def __init__(
        self, max_entries: int, max_size: int, clock: Callable[[], float] = monotonic, *, turnover_seconds: float = 0.0
    ) -> None:
        """`clock` is in seconds. A value that alone is larger than `max_size` is not kept at all.

        `turnover_seconds`: the store is not filled anew in less time than this. Under a flood of values some are not
        kept, so that those which are live long enough to be of use; and what nobody keeps costs nothing.
        """
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._max_entries = max_entries
        self._max_size = max_size
        self._clock = clock
        self._turnover = turnover_seconds
        self._budget = float(max_size)
        self._counted = clock()
        self._size = 0
        self._evicted = 0
        self._refused = 0

    @property
    def degraded(self) -> bool:
        """Never: there is nobody to share with."""
        return False

    async def get(self, key: str, load: Callable[[Any], Any]) -> Any:
        """The very value that was put; it counts as used now."""
        return self._read(key)

    def _read(self, key: str) -> Any:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry[1] <= self._clock():
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return entry[0]

    async def put(self, key: str, value: Any, seconds: float, dump: Callable[[Any], Any], *, size: int = 1) -> None:
        """Keep the value itself; the least recently used make room."""
        self._keep(key, value, seconds, size)

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
        """Change the very value that was put, in one step."""
        value = self._read(key)
        changed = change(value)
        if changed is None:
            return value
        self._keep(key, changed, seconds, size(changed))
        return changed

    def _keep(self, key: str, value: Any, seconds: float, size: int) -> None:
        now = self._clock()
        entries = self._entries
        if key in entries:
            self._drop(key)
        if self._turnover and not self._allowed(now, size):
            self._refused += 1
            return
        entries[key] = (value, now + seconds, size)
        self._size += size
        while self._size > self._max_size or len(entries) > self._max_entries:
            self._evicted += self._drop_oldest() > now
        while entries and next(iter(entries.values()))[1] <= now:
            self._drop_oldest()

    async def delete(self, key: str) -> None:
        """Let the value go, if it is there."""
        if key in self._entries:
            self._drop(key)

    def __len__(self) -> int:
        return len(self._entries)

    def _allowed(self, now: float, size: int) -> bool:
        """Whether one more value of this size may come in now; it is counted if so."""
        most = float(self._max_size)
        gained = (now - self._counted) * most / self._turnover
        self._counted = now
        self._budget = min(most, self._budget + gained)
        if size > self._budget:
            return False
        self._budget -= size
        return True

    def _drop(self, key: str) -> None:
        self._size -= self._entries.pop(key)[2]

    def _drop_oldest(self) -> float:
        """Let the least recently used entry go; when it would have ended."""
        _, (_, end, size) = self._entries.popitem(last=False)
        self._size -= size
        return end

    def __repr__(self) -> str:
        return (
            f"<MemoryStore {len(self)}/{self._max_entries} entries, size {self._size}/{self._max_size}, "
            f"{self._evicted} let go early, {self._refused} not kept>"
        )


class StateBackend(Protocol):
    """With whom the state is shared: opens stores and limiters, each with what stands in for it in this process."""

    @property
    def degraded(self) -> bool:
        """Whether what is shared is not at hand, so that every process is on its own."""
        ...

    def store(
        self,
        use: str,
        local: MemoryStore,
        *,
        constant: bool = False,
        max_bytes: int | None = None,
        permanent: bool = False,
    ) -> Store:
        """Opens a store. `constant`: values never change; `max_bytes`: what is longer is kept in `local` alone;
        `lasting`: values stay when the registry changes."""
        ...

    def limiter(self, max_entries: int, clock: Callable[[], float]) -> Limiter:
        """Where limits are counted, of at most so many keys in this process; `clock` in seconds."""
        ...

    async def start(self) -> None:
        """Begin."""
        ...

    async def close(self) -> None:
        """End."""
        ...


class InMemoryState:
    """Satisfies `state.store.Sharing`."""

    __slots__ = ()

    @property
    def degraded(self) -> bool:
        """Never: there is nobody to be cut off from."""
        return False

    def store(
        self,
        use: str,
        local: MemoryStore,
        *,
        constant: bool = False,
        max_bytes: int | None = None,
        permanent: bool = False,
    ) -> Store:
        """`local` as it is."""
        return local

    def limiter(self, max_entries: int, clock: Callable[[], float]) -> LocalLimiter:
        """Where limits are counted."""
        return LocalLimiter(max_entries, clock)

    async def start(self) -> None:
        """Nothing is to be reached."""

    async def close(self) -> None:
        """Nothing is held."""

    def __repr__(self) -> str:
        return "<Alone>"


IN_MEMORY = InMemoryState()
