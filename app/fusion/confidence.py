"""What an engine's confidences are worth: projection onto its own order, coherence, resolution, and the consensus.

An engine's order is authoritative; its confidences say how steeply relevance falls along it. Modesty is believed,
boasts are discounted. Pure arithmetic on lists of numbers: it refuses to know hits beyond their `confidence`.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import inf, nan, sqrt
from typing import Any

NEARLY_NOTHING = 1e-12
"""A first confidence below this says nothing about how the rest falls."""
LEAST_SAY = 1e-6
"""What an engine that claims everything still counts in the consensus."""

LEAST_SHARE = 1e-300
"""A smaller product of weight and say would be lost, and the mean divided by nothing."""

_NUMBERS = frozenset({float, int})
_ABSENT = {type(None)}


Testimony = tuple[Sequence[float], float, float, int]
"""What an engine's confidences say: p, ρ and ρ·τ of the definition, and how many values were no number in [0,1].
The curve is empty for an engine that gave no confidence."""

SILENCE: Testimony = ((), 1.0, 0.0, 0)

_OUT_OF_RANGE = [inf]


def valid_confidence(value: Any) -> float | None:
    """`value` if it is a number in [0,1], else None: booleans, NaN and other types count as missing."""
    kind = type(value)
    return value if (kind is float or kind is int) and 0 <= value <= 1 else None


def hear(hits: Sequence[dict[str, Any]], asked: int, independent: bool) -> Testimony:
    """The testimony of one deduplicated list; `asked` is K, not less than its length.

    The usual case, confidences that are all there and fall, is its own curve after one pass. `independent` ones come
    from a judge that does not follow the engine's ranking: no projection, full coherence.
    """
    values: list[Any] = [hit.get("confidence") for hit in hits]
    kinds = set(map(type, values))
    if kinds <= _ABSENT:
        return SILENCE
    faults = 0
    total = sum(values) if kinds <= _NUMBERS else nan
    # Without NaN, which a sum betrays, sorting is sound and shows the bounds as well.
    ordered = sorted(values, reverse=True) if total == total else _OUT_OF_RANGE
    if ordered[0] > 1 or ordered[-1] < 0:
        values, faults = _filled(values)
        if not values:
            return (), 1.0, 0.0, faults
        total, ordered = sum(values), sorted(values, reverse=True)
    if independent or values == ordered:
        return values, 1.0, _resolution(values[0], total, asked), faults
    curve, coherence = project(values, total / len(values))
    return curve, coherence, coherence * _resolution(curve[0], total, asked), faults


def _filled(values: Sequence[Any]) -> tuple[list[float], int]:
    """x, and the number of faults. A hole takes the last known value before it, a leading hole the first known one."""
    valid = [valid_confidence(value) for value in values]
    last = next((value for value in valid if value is not None), None)
    faults = len([None for value, given in zip(valid, values, strict=True) if value is None and given is not None])
    if last is None:
        return [], faults
    return [last := value if value is not None else last for value in valid], faults


def project(values: Sequence[float], mean: float) -> tuple[list[float], float]:
    """p and ρ of values with that mean.

    p is the non-increasing least-squares projection: neighbours that rise are pooled into their mean. ρ² = 1 − SSE/SST
    is the share of the spread that remains between the pools, and is computed so: without cancellation.
    """
    levels: list[float] = [inf]
    sizes: list[int] = [0]
    for value in values:
        level, size = value, 1
        while levels[-1] < level:
            before = sizes.pop()
            level = (levels.pop() * before + level * size) / (before + size)
            size += before
        levels.append(level)
        sizes.append(size)
    curve: list[float] = []
    between = 0.0
    for level, size in zip(levels, sizes, strict=True):
        if size:
            curve += [level] * size
            between += size * (level - mean) ** 2
    spread = sum([(value - mean) ** 2 for value in values])
    return curve, sqrt(min(1.0, between / spread)) if spread > 0 else 1.0


def _resolution(first: float, total: float, asked: int) -> float:
    """τ = 1 − Σp / (K·p(1)), not below 0: an engine that claims the same of everything resolves nothing."""
    if first < NEARLY_NOTHING:
        return 1.0
    resolved = 1 - total / (asked * first)
    return resolved if resolved > 0 else 0.0


def consensus(heard: Sequence[tuple[float, Testimony]]) -> list[float]:
    """c̄ by rank: the mean of the curves that reach it, by weight and say, never rising. All weights are positive."""
    voices = [
        (max(weight * (say if say > LEAST_SAY else LEAST_SAY), LEAST_SHARE), curve)
        for weight, (curve, _, say, _) in heard
    ]
    levels: list[float] = []
    for depth in sorted({len(curve) for _, curve in voices}):
        reached = len(levels)
        reaching = [voice for voice in voices if len(voice[1]) >= depth]
        shares = sum([share for share, _ in reaching])
        scaled = [[share * value for value in curve[reached:depth]] for share, curve in reaching]
        levels += [sum(column) / shares for column in zip(*scaled, strict=True)]
    return list(accumulate(levels, min))
