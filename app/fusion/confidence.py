"""How far an engine's confidences count: projection onto its own order, coherence, resolution, and the consensus.

The order of an engine is authoritative; its confidences only describe how steeply relevance falls along it. A low
confidence is believed, a high one is discounted by how little the engine's confidences differ. Pure arithmetic.
"""

from collections.abc import Sequence
from math import exp, inf, isfinite, sqrt
from operator import mul
from typing import Any, Final

MIN_FIRST: Final = 1e-12
"""Below this first confidence, the quotient that measures the resolution has no meaning."""
MIN_INFLUENCE: Final = 1e-6
"""Influence on the consensus of an engine that gives the same confidence to all of its hits."""
FEW_HITS: Final = 5
"""A shorter list is treated as if the missing hits had confidence 0, up to this length."""
MIN_SCORES: Final = 4
"""Fewer scores than this have no usable shape."""
MIN_VARIANCE_SHARE: Final = 1e-14
"""A variance below this share of the sum of squares is the rounding error of equal scores."""
MIN_SQUARES: Final = 1e-200
MAX_SQUARES: Final = 1e300
"""Sums of squares outside these bounds have lost digits; the scores are scaled first."""

MIN_SHARE: Final = 1e-300
"""Lower bound of weight times influence: smaller products could add up to 0, and the mean would divide by it."""

ConfidenceCurve = tuple[list[float], float, float, int]
"""(p, ρ, ρ·τ, invalid values): the projected confidences by rank, the coherence, the influence on the consensus, and
how many values were not numbers in [0,1] (docs/explanation/fusion.md). p is empty if the engine gave no confidence."""

ScoreShape = tuple[list[float], list[float], float, float]
"""(scores, steps, mean, scale): the finite scores of a list, their differences from the first one (after scaling where
squares would overflow), the mean of the differences, and 1/sd."""

SILENCE: Final[ConfidenceCurve] = ([], 1.0, 0.0, 0)


def valid_confidence(value: Any) -> float | None:
    """`value` if it is a number in [0,1], else None: booleans, NaN and other types count as missing."""
    if type(value) is float:
        return value if 0.0 <= value <= 1.0 else None
    return value if type(value) is int and 0 <= value <= 1 else None


def confidence_curve(hits: list[dict[str, Any]], asked: int, independent: bool) -> ConfidenceCurve:
    """The confidence curve of a list without duplicates. `asked`: number of hits requested from the engine.

    `independent` confidences come from a judge that does not follow the engine's ranking: they are not projected, and
    count as fully coherent.
    """
    values: list[Any] = [hit.get("confidence") for hit in hits]
    faults = 0
    if values and values[0] is None and values.count(None) == len(values):
        return SILENCE
    sound, falling, total = _measured(values)
    # The common case needs no further pass: complete confidences that never rise are their own projection.
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

    x(r) = 1/(1 + exp(3 − z(r))): only a score far above the mean of its list counts as confident. Returns SILENCE for
    lists of fewer than four hits, and for scores that are not finite or all equal.
    """
    if shape is None:
        return SILENCE
    _, steps, mean, scale = shape
    # The z-scores are not stored in a list of their own: this runs for every list of every request.
    middle = 3.0 + mean * scale
    values = [1 / (1 + odds) for odds in map(exp, [middle - step * scale for step in steps])]
    return _curve(values, sum(values), values == sorted(values, reverse=True), asked, 0)


def shape_of(hits: list[dict[str, Any]]) -> ScoreShape | None:
    """The shape of a list's scores; None if a score is not finite, there are too few, or all are equal."""
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
    """(steps, mean, scale) of finite scores, see ScoreShape."""
    count = len(scores)
    if count < MIN_SCORES:
        return None
    # Relative to the first score, so that large scores which differ little lose no digits in the squares.
    first = scores[0]
    steps = [score - first for score in scores]
    squares = sum(map(mul, steps, steps))
    if not MIN_SQUARES < squares < MAX_SQUARES:
        largest = max([abs(score) for score in scores])
        if max(scores) == min(scores) or largest == 1.0:
            return None
        # The squares overflow or vanish. Scaling is allowed because the shape does not depend on the scale.
        return _shape_of([score / largest for score in scores])
    mean = sum(steps) / count
    variance = squares / count - mean * mean
    return (steps, mean, 1 / sqrt(variance)) if variance > squares * MIN_VARIANCE_SHARE else None


def calibrated(
    stated: ConfidenceCurve, chances: list[float], trust: float, asked: int, independent: bool
) -> ConfidenceCurve:
    """A stated curve mixed with learned `chances` of relevance by rank; `trust` in [0,1) is the share of the latter.

    For an engine without confidences the learned chances alone are the curve, with coherence `trust`.
    """
    total = sum(chances)
    if not independent and chances != sorted(chances, reverse=True):
        # Learned chances may rise where a map weighs the score within the list against the rank.
        chances, _ = project(chances, total / len(chances))
    worth = _resolution(chances[0], total, _asked(asked, len(chances)))
    curve, coherence, influence, faults = stated
    if not curve:
        return chances, trust, trust * worth, faults
    mixed = [(1 - trust) * claimed + trust * chance for claimed, chance in zip(curve, chances)]
    return mixed, (1 - trust) * coherence + trust, (1 - trust) * influence + trust * worth, faults


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
    """K of the resolution τ: hits returned, or FEW_HITS if more were requested than returned."""
    # A missing hit is no evidence of low confidence, but one or two hits must not count as a steep curve either.
    return max(returned, min(asked, FEW_HITS))


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
    """Valid values with gaps filled, and the number of invalid values.

    A gap takes the value before it, a leading gap the first valid value. Empty if no value is valid.
    """
    valid = [valid_confidence(value) for value in values]
    last = next((value for value in valid if value is not None), None)
    faults = len([None for value, given in zip(valid, values, strict=True) if value is None and given is not None])
    if last is None:
        return [], faults
    return [last := value if value is not None else last for value in valid], faults


def project(values: list[float], mean: float) -> tuple[list[float], float]:
    """(p, ρ) of values with that mean: the non-increasing least-squares projection, and the coherence.

    Pool adjacent violators: neighbours that rise are replaced by their mean. ρ² = 1 − SSE/SST is the share of the
    variance that remains after pooling.
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
        if size:  # 0 is the sentinel at the bottom of the stack
            curve += [level] * size
            # Summed between pools instead of subtracting SSE from SST, which would cancel for coherent curves.
            between += size * (level - mean) ** 2
    spread = sum([(value - mean) ** 2 for value in values])
    return curve, sqrt(min(1.0, between / spread)) if spread > 0 else 1.0


def _resolution(first: float, total: float, asked: int) -> float:
    """τ = 1 − Σp / (K·p(1)), at least 0: an engine that gives all hits the same confidence distinguishes nothing."""
    if first < MIN_FIRST:
        return 1.0
    resolved = 1 - total / (asked * first)
    return resolved if resolved > 0 else 0.0


def consensus(weighted_curves: Sequence[tuple[float, ConfidenceCurve]]) -> list[float]:
    """c̄ by rank: mean of the curves that reach it, by weight and influence, never rising. Weights are positive."""
    shares: list[float] = []
    curves: list[list[float]] = []
    for weight, (curve, _, influence, _) in weighted_curves:
        shares.append(max(weight * (influence if influence > MIN_INFLUENCE else MIN_INFLUENCE), MIN_SHARE))
        curves.append(curve)
    levels: list[float] = []
    lowest = inf
    # Between two lengths of curves the same engines take part, so a block of ranks shares one set of weights.
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
