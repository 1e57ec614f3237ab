"""Variety in the fused list: maximal marginal relevance by overlap of the texts.

Decides an order of indexes, greedily and without chance: a document counts less the more it repeats what is already
chosen. It refuses to know embeddings; without text a document repeats nothing.
"""

from app.fusion.merge import FusedList

SHINGLE = 3
"""Neighbouring words taken together; a shorter text is one shingle."""
POOL = 50
"""At least so many of the best documents are considered, or four for each one wanted."""
FIRST_CHARACTERS = 1000
"""Characters of each text that are compared: every pair of documents is, while nobody else gets a turn."""


def diversify(fusion: FusedList, k: int, lambda_: float) -> list[int]:
    """Indexes into `fusion` of its `k` documents by λ·score − (1 − λ)·(largest overlap with one already chosen).

    λ in [0,1]; 1 keeps the fused order. Equal gains go to the better fused rank. `FusedList.pick` takes the answer.
    """
    pool = range(min(len(fusion), max(POOL, 4 * k)))
    scores = fusion.scores()[: len(pool)]
    shingles = [shingles_of(fusion.text(index)) for index in pool]
    repeated = [0.0] * len(pool)
    waiting = list(pool)
    chosen: list[int] = []
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
