"""The copies of one document, in engine-id order, and which of them lends its body to the fused hit.

Decides richness alone: longer text, then more content blocks, then better rank, higher priority, smaller engine id.
It refuses to know fused scores.
"""

from collections.abc import Sequence
from typing import Any

from app.fusion.ranked import Ballot, RankedList

Copy = tuple[RankedList, int, dict[str, Any]]
"""Whose it is, its rank there (1 is best, duplicates closed up), and the hit as the engine sent it."""


def copies_of(key: str, ballots: Sequence[Ballot]) -> list[Copy]:
    """Every engine's copy of the document `key`, in the order of the ballots."""
    return [
        (ballot.source, place + 1, ballot.hits[place])
        for ballot in ballots
        if (place := ballot.places.get(key)) is not None
    ]


def richest(copies: Sequence[Copy]) -> Copy:
    """The copy whose body is kept. Of equals the first, so the smaller engine id."""
    return copies[0] if len(copies) == 1 else max(copies, key=_richness)


def _richness(copy: Copy) -> tuple[int, int, int, int]:
    source, rank, hit = copy
    text, content = hit.get("text"), hit.get("content")
    return (
        len(text) if type(text) is str else 0,
        len(content) if type(content) is list else 0,
        -rank,
        source.priority,
    )
