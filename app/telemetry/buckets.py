"""The bounds of a histogram's buckets, and in which of them a value belongs.

Telemetry room. It decides quickly where it can: most values belong where the last one did. It refuses to know what is
measured.
"""

from bisect import bisect_left
from collections.abc import Sequence
from math import inf
from typing import final


@final
class Buckets:
    """Rising bounds; a value on a bound belongs below it, as in Prometheus. The last bucket has no bound."""

    __slots__ = ("_above", "_at", "_up_to", "bounds")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = list(bounds)
        self._at = 0
        self._above = inf  # nothing is above it: the first value is looked for
        self._up_to = inf

    def place(self, value: float) -> int:
        """The index of the bucket of this value."""
        if self._above < value <= self._up_to:
            return self._at
        at = bisect_left(self.bounds, value)
        self._at = at
        self._above = self.bounds[at - 1] if at else -inf
        self._up_to = self.bounds[at] if at < len(self.bounds) else inf
        return at

    def __repr__(self) -> str:
        return f"<Scale of {len(self.bounds)} bounds, last in bucket {self._at}>"
