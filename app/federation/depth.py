"""How deep engines are asked where an answer continues another. Pure.

It refuses to know who is asked, and what was answered before.
"""

from typing import Final, NamedTuple


class Depth(NamedTuple):
    """How much further down than `k` needs engines are asked, since what was answered before is left out."""

    beyond: int = 0
    """Documents that may have to be left out."""
    least: int = 0
    """The smallest window: deeper than the one before."""
    whole: frozenset[str] = frozenset()
    """Engines whose kept list is all they have."""


SURFACE: Final = Depth()
