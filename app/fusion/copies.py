"""Copies of one document, and which of them becomes the body of the fused hit.

Preferred is the longer text, then more content blocks, better rank, higher priority, smaller engine id. Separate from
`merge`, because the id collision check and the tie-break of sums use it too.
"""

from typing import Any

from app.fusion.ranked_lists import RankedList

Copy = tuple[RankedList, int, dict[str, Any]]
"""(source list, rank in it from 1 without duplicates, the hit as the engine sent it)."""


def richest(copies: list[Copy]) -> Copy:
    """The copy whose body is kept. Copies come in engine-id order; among equals the first one wins."""
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
