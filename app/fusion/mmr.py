"""Diversification by maximal marginal relevance, with the overlap of texts as similarity.

Greedy and deterministic. A document without text overlaps with nothing. Separate from its only importer because it is
ranking arithmetic with property tests of its own.
"""

from app.fusion.merge import FusedList

SHINGLE = 3
"""Words in one shingle; a shorter text is one shingle."""
POOL = 50
"""Smallest number of top documents considered; otherwise four per document wanted."""
FIRST_CHARACTERS = 1000
"""Characters of each text that are compared. All pairs are, without yielding to the event loop, so this is bounded."""


def diversify(fusion: FusedList, k: int, lambda_: float) -> list[int]:
    """Indexes into `fusion` of `k` documents, chosen by λ·score − (1 − λ)·(largest overlap with one already chosen).

    λ in [0,1]; 1 keeps the fused order. Among equals the better fused rank wins. `FusedList.pick` takes the result.
    """
    pool = range(min(len(fusion), max(POOL, 4 * k)))
    scores = fusion.scores()[: len(pool)]
    shingles = [shingles_of(fusion.text(index)) for index in pool]
    repeated = [0.0] * len(pool)
    waiting = list(pool)
    chosen: list[int] = []
    # Greedy: each step takes the best remaining document. `max` keeps the first of equals, which has the better rank.
    while waiting and len(chosen) < k:
        best = max(waiting, key=lambda index: lambda_ * scores[index] - (1 - lambda_) * repeated[index])
        waiting.remove(best)
        chosen.append(best)
        for index in waiting:
            repeated[index] = max(repeated[index], overlap(shingles[best], shingles[index]))
    return chosen


def shingles_of(text: str) -> frozenset[tuple[str, ...]]:
    """The distinct runs of SHINGLE words at the beginning, case folded."""
    words = text[:FIRST_CHARACTERS].casefold().split()
    if len(words) <= SHINGLE:
        return frozenset([tuple(words)]) if words else frozenset()
    return frozenset(zip(*(words[offset:] for offset in range(SHINGLE)), strict=False))


def overlap(some: frozenset[tuple[str, ...]], others: frozenset[tuple[str, ...]]) -> float:
    """Jaccard similarity, 0 if either is empty."""
    shared = len(some & others)
    return shared / (len(some) + len(others) - shared) if shared else 0.0
