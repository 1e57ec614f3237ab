"""Where the limits library counts while nothing outside this process does: bounded, without a task or a thread.

The library's own memory storage starts a task for every request, looks at every key in it, and grows with the keys. It
decides which counter goes when there are too many; it refuses to know what is counted. Only loaded when limits are set.
"""

from collections import OrderedDict
from collections.abc import Callable
from math import floor

from limits.aio.storage.base import SlidingWindowCounterSupport, Storage


class Counters(Storage, SlidingWindowCounterSupport):
    """At most `max_entries` counters, each with an end; of more, the least recently used go. `clock` in seconds."""

    STORAGE_SCHEME = None

    def __init__(self, max_entries: int, clock: Callable[[], float]) -> None:
        super().__init__()
        self._entries: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._max_entries = max_entries
        self._clock = clock

    @property
    def base_exceptions(self) -> type[Exception]:
        """What can go wrong here: nothing of the world's."""
        return ValueError

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """The counter after `amount` was added; a new one ends `expiry` seconds from now."""
        return self._add(key, expiry, amount)

    async def get(self, key: str) -> int:
        """The counter, 0 if it is not there."""
        return self._read(key)

    async def get_expiry(self, key: str) -> float:
        """When the counter ends; now if it is not there."""
        entry = self._entries.get(key)
        return self._clock() if entry is None else entry[1]

    async def check(self) -> bool:
        """Always at hand."""
        return True

    async def reset(self) -> int | None:
        """Forget everything; how much there was."""
        count = len(self._entries)
        self._entries.clear()
        return count

    async def clear(self, key: str) -> None:
        """Forget one counter."""
        self._entries.pop(key, None)

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Count `amount` if the window has room for it: its own part and what still weighs of the one before."""
        number, share = self._window(expiry)
        before = self._read(f"{key}/{number - 1}")
        current = self._read(f"{key}/{number}")
        if floor(before * share + current) + amount > limit:
            return False
        self._add(f"{key}/{number}", 2 * expiry, amount)
        return True

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """(count of the window before, seconds it still weighs, count of this one, seconds until that is forgotten)."""
        number, share = self._window(expiry)
        before = self._read(f"{key}/{number - 1}")
        return before, share * expiry if before else 0.0, self._read(f"{key}/{number}"), (share + 1) * expiry

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Forget both windows."""
        number, _ = self._window(expiry)
        for each in (number, number - 1):
            self._entries.pop(f"{key}/{each}", None)

    def __len__(self) -> int:
        return len(self._entries)

    def _window(self, expiry: int) -> tuple[int, float]:
        """The number of the present window, and the share of it that is still to come."""
        windows = self._clock() / expiry
        number = floor(windows)
        return number, 1 - (windows - number)

    def _read(self, key: str) -> int:
        entry = self._entries.get(key)
        if entry is None:
            return 0
        if entry[1] <= self._clock():
            del self._entries[key]
            return 0
        self._entries.move_to_end(key)
        return entry[0]

    def _add(self, key: str, expiry: float, amount: int) -> int:
        count = self._read(key) + amount
        end = self._entries[key][1] if key in self._entries else self._clock() + expiry
        self._entries[key] = (count, end)
        if len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)
        return count

    def __repr__(self) -> str:
        return f"<Counters {len(self)}/{self._max_entries}>"
