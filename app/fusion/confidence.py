"""What an engine's confidences are worth: projection onto its own order, coherence, resolution, and the consensus.

An engine's order is authoritative; its confidences say how steeply relevance falls along it. Modesty is believed,
boasts are discounted. Pure arithmetic on lists of numbers: it refuses to know hits beyond their `confidence`.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import sqrt
from typing import Any, NamedTuple

NEARLY_NOTHING = 1e-12
"""A first confidence below this says nothing about how the rest falls."""
LEAST_SAY = 1e-6
"""What an engine that claims everything still counts in the consensus."""

_NUMBERS = frozenset({float, int})
_ABSENT = frozenset({type(None)})


class Claims(NamedTuple):
    """One engine's confidences in list order, holes filled; empty if it gave none. `faults` were no number in [0,1]."""

    values: Sequence[float]
    total: float
    falling: bool
    faults: int = 0


class Testimony(NamedTuple):
    """What the claims are believed to say: p, ρ and ρ·τ of the definition."""

    curve: Sequence[float]
    coherence: float
    say: float


SILENCE = Claims((), 0.0, True)


def valid_confidence(value: Any) -> float | None:
    """`value` if it is a number in [0,1], else None: booleans, NaN and other types count as missing."""
    kind = type(value)
    return value if (kind is float or kind is int) and 0 <= value <= 1 else None


def read_claims(hits: Sequence[dict[str, Any]]) -> Claims:
    """The confidences of one deduplicated list. The usual case, all there and falling, takes one pass."""
    values = [hit.get("confidence") for hit in hits]
    kinds = frozenset(map(type, values))
    if kinds <= _ABSENT:
        return SILENCE
    if kinds <= _NUMBERS:
        total = sum(values)  # type: ignore[arg-type]
        falling = values == sorted(values, reverse=True)  # type: ignore[type-var]
        # NaN compares false with everything, but it survives a sum.
        if falling and total == total and values[0] <= 1 and values[-1] >= 0:  # type: ignore[operator]
            return Claims(values, total, True)  # type: ignore[arg-type]
    return _filled(values)


def _filled(values: Sequence[Any]) -> Claims:
    """A hole takes the last known value before it, a leading hole the first known one."""
    valid = [valid_confidence(value) for value in values]
    known = next((value for value in valid if value is not None), None)
    faults = sum(value is None and given is not None for value, given in zip(valid, values, strict=True))
    if known is None:
        return Claims((), 0.0, True, faults)
    filled = []
    for value in valid:
        if value is not None:
            known = value
        filled.append(known)
    return Claims(filled, sum(filled), filled == sorted(filled, reverse=True), faults)


def weigh_claims(claims: Claims, asked: int, independent: bool) -> Testimony:
    """The testimony in claims that are not empty. `asked` is K, never less than their number.

    `independent` claims come from a judge that does not follow the engine's ranking: no projection, full coherence.
    """
    values = claims.values
    if claims.falling or independent:
        return Testimony(values, 1.0, _resolution(values[0], claims.total, asked))
    curve = project(values)
    coherence = _coherence(values, curve, claims.total)
    return Testimony(curve, coherence, coherence * _resolution(curve[0], claims.total, asked))


def project(values: Sequence[float]) -> list[float]:
    """The non-increasing least-squares projection: neighbours that rise are pooled into their mean."""
    sums: list[float] = []
    sizes: list[int] = []
    for value in values:
        pooled, size = value, 1
        while sums and sums[-1] * size < pooled * sizes[-1]:
            pooled += sums.pop()
            size += sizes.pop()
        sums.append(pooled)
        sizes.append(size)
    curve: list[float] = []
    for pooled, size in zip(sums, sizes, strict=True):
        curve += [pooled / size] * size
    return curve


def _coherence(values: Sequence[float], curve: Sequence[float], total: float) -> float:
    """ρ = √(1 − SSE/SST): 1 for claims that fall with the ranks, 0 for claims that rise."""
    mean = total / len(values)
    spread = sum([(value - mean) ** 2 for value in values])
    if spread == 0:
        return 1.0
    missed = sum([(value - fitted) ** 2 for value, fitted in zip(values, curve, strict=True)])
    return sqrt(min(1.0, max(0.0, 1 - missed / spread)))


def _resolution(first: float, total: float, asked: int) -> float:
    """τ = 1 − Σp / (K·p(1)): near 0 for an engine that claims the same of everything."""
    if first < NEARLY_NOTHING:
        return 1.0
    return min(1.0, max(0.0, 1 - total / (asked * first)))


def consensus(testimonies: Iterable[tuple[float, Testimony]]) -> list[float]:
    """c̄ by rank: the mean of the curves that reach it, by weight and say, never rising. Weights are positive."""
    heard = [(weight * max(testimony.say, LEAST_SAY), testimony.curve) for weight, testimony in testimonies]
    levels: list[float] = []
    reached = 0
    for depth in sorted({len(curve) for _, curve in heard}):
        reaching = [(share, curve) for share, curve in heard if len(curve) >= depth]
        sums = [0.0] * (depth - reached)
        for share, curve in reaching:
            sums = [total + share * value for total, value in zip(sums, curve[reached:depth], strict=True)]
        shares = sum([share for share, _ in reaching])
        levels += [total / shares for total in sums]
        reached = depth
    return list(accumulate(levels, min))
