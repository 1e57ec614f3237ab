"""What an engine's confidences are worth: projection onto its own order, coherence, resolution, and the consensus.

An engine's order is authoritative; its confidences say how steeply relevance falls along it. Modesty is believed,
boasts are discounted. Pure arithmetic on lists of numbers: it refuses to know hits beyond their `confidence`.
"""

from collections.abc import Sequence
from math import exp, inf, isfinite, sqrt
from operator import mul
from typing import Any, Final

NEARLY_NOTHING: Final = 1e-12
"""A first confidence below this says nothing about how the rest falls."""
LEAST_SAY: Final = 1e-6
"""What an engine that claims everything still counts in the consensus."""
FEW: Final = 5
"""A list of fewer hits than this has not shown that its confidences fall."""
LEAST_SHAPE: Final = 4
"""Fewer scores than this have no shape."""
TINIEST_SPREAD: Final = 1e-14
"""A variance below this share of the squares is the rounding of equal scores."""
SMALLEST_SQUARES: Final = 1e-200
LARGEST_SQUARES: Final = 1e300
"""Sums of squares outside of these have lost digits."""

LEAST_SHARE: Final = 1e-300
"""A smaller product of weight and say would be lost, and the mean divided by nothing."""

ConfidenceCurve = tuple[list[float], float, float, int]
"""What an engine's confidences say: p, ρ and ρ·τ of the definition, and how many values were no number in [0,1].
The curve is empty for an engine that gave no confidence."""

ScoreShape = tuple[list[float], list[float], float, float]
"""Finite scores of one list; the same relative to the first one, or to it after scaling; the mean of these; 1/sd."""

SILENCE: Final[ConfidenceCurve] = ([], 1.0, 0.0, 0)


def valid_confidence(value: Any) -> float | None:
    """`value` if it is a number in [0,1], else None: booleans, NaN and other types count as missing."""
    if type(value) is float:
        return value if 0.0 <= value <= 1.0 else None
    return value if type(value) is int and 0 <= value <= 1 else None


def hear(hits: list[dict[str, Any]], asked: int, independent: bool) -> ConfidenceCurve:
    """The confidence curve of one deduplicated list of an engine that was asked for `asked` hits.

    The usual case, confidences that are all there and fall, is its own curve after one pass. `independent` ones come
    from a judge that does not follow the engine's ranking: no projection, full coherence.
    """
    values: list[Any] = [hit.get("confidence") for hit in hits]
    faults = 0
    if values and values[0] is None and values.count(None) == len(values):
        return SILENCE
    sound, falling, total = _measured(values)
    if not sound:
        values, faults = _filled(values)
        if not values:
            return [], 1.0, 0.0, faults
        sound, falling, total = _measured(values)
    elif not values:
        return SILENCE
    return _curve(values, total, falling or independent, asked, faults)


def estimate(shape: ScoreShape | None, asked: int) -> ConfidenceCurve:
    """The confidence curve of a list without confidences, estimated from the shape of its scores.

    x(r) = 1/(1 + exp(3 − z(r))): a score that stands out from its list is trusted, others are not. SILENCE for lists
    of fewer than four hits, and for scores that are not finite or all equal.
    """
    if shape is None:
        return SILENCE
    _, steps, mean, scale = shape
    # z written out: a list less, for one is made of every list of every request.
    middle = 3.0 + mean * scale
    values = [1 / (1 + odds) for odds in map(exp, [middle - step * scale for step in steps])]
    return _curve(values, sum(values), values == sorted(values, reverse=True), asked, 0)


def shape_of(hits: list[dict[str, Any]]) -> ScoreShape | None:
    """The scores of a list and their shape; None for scores that are not finite, and where there is no shape."""
    scores = finite_scores(hits)
    shape = None if scores is None else _shape_of(scores)
    if scores is None or shape is None:
        return None
    steps, mean, scale = shape
    return scores, steps, mean, scale


def finite_scores(hits: list[dict[str, Any]]) -> list[float] | None:
    """The scores of a list, or None if one of them is no finite number."""
    try:
        scores = [float(hit["score"]) for hit in hits]
    except OverflowError:  # an integer beyond what a double can hold
        return None
    # A sum is finite unless a score is not, or the scores are near the end of what a double can hold.
    return scores if isfinite(sum(scores)) or all(map(isfinite, scores)) else None


def standardized(shape: ScoreShape) -> list[float]:
    """z(r) = (s_r − mean)/sd of a list's finite scores (population sd)."""
    _, steps, mean, scale = shape
    return [(step - mean) * scale for step in steps]


def _shape_of(scores: list[float]) -> tuple[list[float], float, float] | None:
    """Scores relative to the first one, the mean of these, and 1/sd: in one pass and without cancellation."""
    count = len(scores)
    if count < LEAST_SHAPE:
        return None
    first = scores[0]
    steps = [score - first for score in scores]
    squares = sum(map(mul, steps, steps))
    if not SMALLEST_SQUARES < squares < LARGEST_SQUARES:
        largest = max([abs(score) for score in scores])
        if max(scores) == min(scores) or largest == 1.0:
            return None
        # Squares overflow or vanish. The shape does not depend on the scale.
        return _shape_of([score / largest for score in scores])
    mean = sum(steps) / count
    variance = squares / count - mean * mean
    return (steps, mean, 1 / sqrt(variance)) if variance > squares * TINIEST_SPREAD else None


def calibrated(
    said: ConfidenceCurve, chances: list[float], trust: float, asked: int, independent: bool
) -> ConfidenceCurve:
    """What an engine claims, mixed with what it is worth by experience: λ = `trust` of its learned `chances`.

    An engine that claims nothing is heard as far as its map is trusted.
    """
    total = sum(chances)
    if not independent and chances != sorted(chances, reverse=True):
        chances, _ = project(chances, total / len(chances))
    worth = _resolution(chances[0], total, _asked(asked, len(chances)))
    curve, coherence, say, faults = said
    if not curve:
        return chances, trust, trust * worth, faults
    mixed = [(1 - trust) * claimed + trust * chance for claimed, chance in zip(curve, chances)]
    return mixed, (1 - trust) * coherence + trust, (1 - trust) * say + trust * worth, faults


def filled_confidences(hits: list[dict[str, Any]]) -> list[float]:
    """x of step 1: the list's confidences with holes filled; empty if it has none."""
    return _filled([hit.get("confidence") for hit in hits])[0]


def _curve(values: list[float], total: float, as_is: bool, asked: int, faults: int) -> ConfidenceCurve:
    """p, ρ and ρτ of values with that sum."""
    asked = _asked(asked, len(values))
    if as_is:
        return values, 1.0, _resolution(values[0], total, asked), faults
    curve, coherence = project(values, total / len(values))
    return curve, coherence, coherence * _resolution(curve[0], total, asked), faults


def _asked(asked: int, returned: int) -> int:
    """K: a hit that was not returned is no evidence of modesty, but a few hits alone cannot claim to resolve much."""
    return max(returned, min(asked, FEW))


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
        for column in zip(*[curve[len(levels) : depth] for curve in curves]):
            mean = sum(map(mul, shares, column)) / whole
            lowest = mean if mean < lowest else lowest
            levels.append(lowest)
    return levels
