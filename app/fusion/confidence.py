"""What an engine's confidences are worth: projection onto its own order, coherence, resolution, and the consensus.

An engine's order is authoritative; its confidences say how steeply relevance falls along it. Modesty is believed,
boasts are discounted. Pure arithmetic on lists of numbers: it refuses to know hits beyond their `confidence`.
"""

from collections.abc import Sequence
from math import inf, sqrt
from typing import Any, Final

NEARLY_NOTHING: Final = 1e-12
"""A first confidence below this says nothing about how the rest falls."""
LEAST_SAY: Final = 1e-6
"""What an engine that claims everything still counts in the consensus."""

LEAST_SHARE: Final = 1e-300
"""A smaller product of weight and say would be lost, and the mean divided by nothing."""

ConfidenceCurve = tuple[list[float], float, float, int]
"""What an engine's confidences say: p, ρ and ρ·τ of the definition, and how many values were no number in [0,1].
The curve is empty for an engine that gave no confidence."""

SILENCE: Final[ConfidenceCurve] = ([], 1.0, 0.0, 0)


def valid_confidence(value: Any) -> float | None:
    """`value` if it is a number in [0,1], else None: booleans, NaN and other types count as missing."""
    if type(value) is float:
        return value if 0.0 <= value <= 1.0 else None
    return value if type(value) is int and 0 <= value <= 1 else None


def hear(hits: list[dict[str, Any]], asked: int, independent: bool) -> ConfidenceCurve:
    """The testimony of one deduplicated list; `asked` is K, not less than its length.

    The usual case, confidences that are all there and fall, is its own curve after one pass. `independent` ones come
    from a judge that does not follow the engine's ranking: no projection, full coherence.
    """
    values: list[Any] = [hit.get("confidence") for hit in hits]
    faults = 0
    sound, falling, total = _measured(values)
    if not sound:
        values, faults = _filled(values)
        if not values:
            return [], 1.0, 0.0, faults
        sound, falling, total = _measured(values)
    elif not values:
        return SILENCE
    if independent or falling:
        return values, 1.0, _resolution(values[0], total, asked), faults
    curve, coherence = project(values, total / len(values))
    return curve, coherence, coherence * _resolution(curve[0], total, asked), faults


def _measured(values: list[Any]) -> tuple[bool, bool, float]:
    """Whether all are numbers in [0,1], and if so whether they never rise, and their sum."""
    falling, last, total = True, 1.0, 0.0
    for value in values:
        if type(value) is not float and (type(value) is not int or not 0 <= value <= 1):
            return False, False, 0.0
        number: float = value
        if not 0.0 <= number <= last:
            if not 0.0 <= number <= 1.0:
                return False, False, 0.0
            falling = False
        last = number
        total += number
    return True, falling, total


def _filled(values: Sequence[Any]) -> tuple[list[float], int]:
    """x, and the number of faults. A hole takes the last known value before it, a leading hole the first known one."""
    valid = [valid_confidence(value) for value in values]
    last = next((value for value in valid if value is not None), None)
    faults = len([None for value, given in zip(valid, values, strict=True) if value is None and given is not None])
    if last is None:
        return [], faults
    return [last := value if value is not None else last for value in valid], faults


def project(values: list[float], mean: float) -> tuple[list[float], float]:
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
    for level, size in zip(levels, sizes):
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


def consensus(heard: Sequence[tuple[float, ConfidenceCurve]]) -> list[float]:
    """c̄ by rank: the mean of the curves that reach it, by weight and say, never rising. All weights are positive."""
    shares: list[float] = []
    curves: list[list[float]] = []
    for weight, (curve, _, say, _) in heard:
        shares.append(max(weight * (say if say > LEAST_SAY else LEAST_SAY), LEAST_SHARE))
        curves.append(curve)
    levels: list[float] = []
    lowest = inf
    for depth in sorted({len(curve) for curve in curves}):
        reaching = [place for place, curve in enumerate(curves) if len(curve) >= depth]
        shares, curves = [shares[place] for place in reaching], [curves[place] for place in reaching]
        whole = 0.0
        for share in shares:
            whole += share
        for rank in range(len(levels), depth):
            total = 0.0
            for share, curve in zip(shares, curves):
                total += share * curve[rank]
            lowest = min(lowest, total / whole)
            levels.append(lowest)
    return levels
