"""A copy of a document, and which of several lends its body to the fused hit.

Decides richness alone: longer text, then more content blocks, then better rank, higher priority, smaller engine id.
It refuses to know fused scores.
"""

from typing import Any

from app.fusion.ranked_lists import RankedList

Copy = tuple[RankedList, int, dict[str, Any]]
"""Whose it is, its rank there (1 is best, duplicates closed up), and the hit as the engine sent it."""


def richest(copies: list[Copy]) -> Copy:
    """The copy whose body is kept, of copies in engine-id order. Of equals the first, so the smaller id."""
    best, longest = copies[0], -1
    for copy in copies:
        text = copy[2].get("text")
        length = len(text) if type(text) is str else 0
        if length > longest:
            best, longest = copy, length
        elif length == longest and _better(copy, best):
            best = copy
    return best


def _better(copy: Copy, best: Copy) -> bool:
    """Whether `copy` is richer than `best` although their texts are equally long."""
    blocks, most = copy[2].get("content"), best[2].get("content")
    if blocks is not None or most is not None:
        count = len(blocks) if type(blocks) is list else 0
        limit = len(most) if type(most) is list else 0
        if count != limit:
            return count > limit
    if copy[1] != best[1]:
        return copy[1] < best[1]
    return copy[0].priority > best[0].priority
