"""How similar two rankings are: overlap at a depth, and rank-biased overlap. Pure.

Separate from the federation, because it is arithmetic with a definition of its own.
"""

from collections.abc import Sequence


def overlap_at(first: Sequence[str], second: Sequence[str], depth: int = 10) -> float:
    """Share of common items among the first `depth` of both, relative to the longer one; 1 for two empty rankings."""
    ours, theirs = frozenset(first[:depth]), frozenset(second[:depth])
    longest = max(len(ours), len(theirs))
    return len(ours & theirs) / longest if longest else 1.0


def rank_biased_overlap(first: Sequence[str], second: Sequence[str], p: float = 0.9) -> float:
    """Extrapolated rank-biased overlap of two rankings without duplicates, which may differ in length.

    This is equation 32 of Webber, Moffat and Zobel, "A similarity measure for indefinite rankings" (2010). Agreement at
    the end of the lists is assumed to continue below it. 1 for equal rankings, 0 without a common item.
    """
    shorter, longer = (first, second) if len(first) <= len(second) else (second, first)
    s, size = len(shorter), len(longer)
    if s == 0:
        return 1.0 if size == 0 else 0.0
    seen_short: set[str] = set()
    seen_long: set[str] = set()
    common = 0  # items that both rankings have up to the current depth
    common_at_s = 0
    total = 0.0
    for depth in range(1, size + 1):
        item = longer[depth - 1]
        seen_long.add(item)
        common += item in seen_short
        if depth <= s:
            item = shorter[depth - 1]
            seen_short.add(item)
            common += item in seen_long
            common_at_s = common
        total += common / depth * p**depth
        if depth > s:
            # The shorter list is assumed to agree below its end as much as it does at its end.
            total += common_at_s * (depth - s) / (depth * s) * p**depth
    rest = ((common - common_at_s) / size + common_at_s / s) * p**size
    return (1 - p) / p * total + rest
