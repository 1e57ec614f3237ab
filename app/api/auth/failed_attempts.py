"""How often each address has presented a wrong credential of late: a table that no flood of addresses makes larger.

Decides when an address has done so too often. It refuses to know credentials, and never sees one; whoever presents a
right one is let in whatever others behind the same address do.
"""

from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

WINDOW = 60.0
"""Seconds in which failures are counted, from the first."""


class FailedAuthLimiter:
    """Counts failures by address; of more than `max_addresses`, the least recently seen are forgotten."""

    __slots__ = ("_clock", "_failures", "_max_addresses", "_most")

    def __init__(self, most: int, max_addresses: int, clock: Callable[[], float] = monotonic) -> None:
        """`most`: failures of one address within a minute; `clock` in seconds."""
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._most = most
        self._max_addresses = max_addresses
        self._clock = clock

    def failed(self, address: str) -> float:
        """Count one failure; 0 if that is still in order, else the seconds until it is again."""
        now = self._clock()
        count, end = self._failures.get(address, (0, now + WINDOW))
        if end <= now:
            count, end = 0, now + WINDOW
        self._failures[address] = (count + 1, end)
        self._failures.move_to_end(address)
        if len(self._failures) > self._max_addresses:
            self._failures.popitem(last=False)
        return 0.0 if count < self._most else end - now

    def __len__(self) -> int:
        return len(self._failures)

    def __repr__(self) -> str:
        return f"<Strangers {len(self)}/{self._max_addresses} addresses>"
