"""Key-value stores for what must outlive one request, and the in-memory implementation.

Every value has a key, an expiry and a size. An in-memory store keeps values as they are; a store outside the process
keeps the plain data that `dump` returns and gives back what `load` makes of it."""

from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol, TypeVar

from app.state.rate_limit import Limiter, LocalLimiter
from app.state.sums import Sums

Value = TypeVar("Value")


class Store(Protocol):
    """Values by key. Readers must cope with a missing value: limits may evict it before it expires."""

    @property
    def degraded(self) -> bool:
        """Whether the shared state is unavailable: a value that is not found may exist there."""
        ...

    async def get(self, key: str, load: Callable[[Any], Value]) -> Value | None:
        """The value; None if it was never stored, has expired or was evicted."""
        ...

    async def put(self, key: str, value: Value, seconds: float, dump: Callable[[Value], Any], *, size: int = 1) -> None:
        """Store `value` for `seconds`; `size` is what it counts towards the store's limit.

        `dump` is called only by a store outside the process. A value that was changed after `get` must be stored
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
        """Replace the value by what `change` returns for it (None if there is none), atomically.

        `change` may be called several times, may modify its argument, and returns None to leave the value as it is.
        Returns the value that is stored afterwards.
        """
        ...

    async def delete(self, key: str) -> None:
        """Remove the value, if it exists."""
        ...


_Entry = tuple[Any, float, int]
"""Value, expiry and size; a plain tuple, because one is created for most responses."""


class MemoryStore:
    """In-memory store, bounded by entries and by size; evicts the least recently used. Stores values without
    copying.

    There is no background task: an expired value is removed when it is read or when its space is needed. Every
    operation is O(1), apart from evictions.
    """

    __slots__ = (
        "_budget",
        "_clock",
        "_counted",
        "_entries",
        "_evicted",
        "_max_entries",
        "_refused",
        "_size",
        "_turnover",
        "max_size",
    )

    def __init__(
        self, max_entries: int, max_size: int, clock: Callable[[], float] = monotonic, *, turnover_seconds: float = 0.0
    ) -> None:
        """`clock` is in seconds. A value larger than `max_size` is not stored.

        `turnover_seconds`: the store is refilled at most once in this time. Under a flood of values some are not
        stored, so that those which are live long enough to be useful.
        """
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._max_entries = max_entries
        self.max_size = max_size
        self._clock = clock
        self._turnover = turnover_seconds
        self._budget = float(max_size)
        self._counted = clock()
        self._size = 0
        self._evicted = 0
        self._refused = 0

    @property
    def degraded(self) -> bool:
        """Always False: nothing is shared."""
        return False

    async def get(self, key: str, load: Callable[[Any], Any]) -> Any:
        """The stored object itself; marks it as used."""
        return self._read(key)

    def _read(self, key: str) -> Any:
        entry = self._entries.get(key)
        if entry is None:
            return None
        # Expired entries are removed when they are met; there is no background task.
        if entry[1] <= self._clock():
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return entry[0]

    async def put(self, key: str, value: Any, seconds: float, dump: Callable[[Any], Any], *, size: int = 1) -> None:
        """Store the object itself, evicting the least recently used."""
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
        """Change the stored object, in one step."""
        value = self._read(key)
        changed = change(value)
        if changed is None:
            return value
        self._keep(key, changed, seconds, size(changed))
        return changed

    def _keep(self, key: str, value: Any, seconds: float, size: int) -> None:
        now = self._clock()
        entries = self._entries
        # Removed first, so that a replaced value does not count twice.
        if key in entries:
            self._drop(key)
        # Refused before anything is evicted: a flood must not displace what is in use.
        if self._turnover and not self._allowed(now, size):
            self._refused += 1
            return
        entries[key] = (value, now + seconds, size)
        self._size += size
        while self._size > self.max_size or len(entries) > self._max_entries:
            self._evicted += self._drop_oldest() > now
        # Also removes expired entries at the old end, so memory is released without being read.
        while entries and next(iter(entries.values()))[1] <= now:
            self._drop_oldest()

    async def delete(self, key: str) -> None:
        """Remove the value, if it exists."""
        if key in self._entries:
            self._drop(key)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """Sum of the sizes of the stored values."""
        return self._size

    @property
    def evicted(self) -> int:
        """Values evicted before they expired, since the start."""
        return self._evicted

    def _allowed(self, now: float, size: int) -> bool:
        """Whether the turnover allows another value of this size now; if so, it is counted."""
        most = float(self.max_size)
        # A token bucket of `max_size` tokens, refilled once per turnover.
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
        """Evict the least recently used entry; returns its expiry."""
        _, (_, end, size) = self._entries.popitem(last=False)
        self._size -= size
        return end

    def __repr__(self) -> str:
        return (
            f"<MemoryStore {len(self)}/{self._max_entries} entries, size {self._size}/{self.max_size}, "
            f"{self._evicted} evicted, {self._refused} not stored>"
        )


class StateBackend(Protocol):
    """Opens stores and limiters. Each has an in-memory stand-in for outages."""

    @property
    def degraded(self) -> bool:
        """Whether the shared state is unavailable, so that every process is on its own."""
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
        """Open a store. `constant`: values never change; `max_bytes`: longer values are stored in `local` only;
        `permanent`: values survive a change of the registry."""
        ...

    def limiter(self, max_entries: int, clock: Callable[[], float]) -> Limiter:
        """Open a rate limiter with at most `max_entries` keys in this process; `clock` in seconds."""
        ...

    def sums(self) -> Sums | None:
        """Where sums that several processes add to are shared; None: nowhere."""
        ...

    async def start(self) -> None:
        """Connect."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...


class InMemoryState:
    """State of a gateway that shares it with no other. Implements `StateBackend`."""

    __slots__ = ()

    @property
    def degraded(self) -> bool:
        """Always False: nothing is shared."""
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
        """Returns `local`."""
        return local

    def limiter(self, max_entries: int, clock: Callable[[], float]) -> LocalLimiter:
        """A limiter in this process."""
        return LocalLimiter(max_entries, clock)

    def sums(self) -> Sums | None:
        """Always None: nothing is shared."""
        return None

    async def start(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to disconnect from."""

    def __repr__(self) -> str:
        return "<InMemoryState>"


IN_MEMORY = InMemoryState()
