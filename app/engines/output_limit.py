"""A stream that nobody asked for: how much of it is read at once, and when it is too much (room engines).

Pure arithmetic on bytes, with the time handed in. It refuses to know pipes and what the bytes say.
"""

from typing import Final

BURST_BYTES: Final = 1_048_576
"""Read in one second without a pause."""

PAUSE_SECONDS: Final = 0.05
"""Between two reads of more than that in the same second; one read is 64 KiB or so."""

MOST_BYTES: Final = 67_108_864
"""Without anything asked for in between; a writer of more has gone mad. By then it has been read for a minute."""

LINE_COST: Final = 100
"""Bytes that a line counts for beside its own: it is the number of lines that costs time."""


class OutputLimit:
    """The bytes of one stream that were for nobody."""

    __slots__ = ("_fresh", "_in_second", "_second", "total")

    def __init__(self) -> None:
        self.total = 0
        """Since it last ebbed."""
        self._fresh = 0
        self._in_second = 0
        self._second = 0.0

    @property
    def drowning(self) -> bool:
        """Whether it is too much."""
        return self.total > MOST_BYTES

    def swell(self, size: int, lines: int = 0) -> None:
        """So many more bytes, in so many lines."""
        self.total += size
        self._fresh += size + lines * LINE_COST

    def ebb(self) -> None:
        """Something came that was asked for."""
        self.total = 0

    def pause(self, now: float) -> float:
        """Seconds to read nothing after what has come; 0 for less than a flood."""
        if now >= self._second + 1.0:
            self._second, self._in_second = now, 0
        self._in_second += self._fresh
        fresh, self._fresh = self._fresh, 0
        return PAUSE_SECONDS if fresh and self._in_second > BURST_BYTES else 0.0

    def __repr__(self) -> str:
        return f"<Flood {self.total} bytes, {self._in_second} of them weighed in the last second>"
