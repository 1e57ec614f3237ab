"""Learned calibration: maps from an engine's confidences or scores to the chance that a hit is relevant
(docs/explanation/fusion.md).

One map per engine and kind of list, fitted by logistic regression; its prior leaves the engine's values unchanged. All
learned state is a sum, so maps of several processes merge by addition. Pure: the caller owns time and storage.
"""

from collections.abc import Iterable, Sequence
from math import exp, isfinite, log, log1p, log2, nan, sqrt
from operator import mul
from typing import Any, Final, Literal, NamedTuple

Kind = Literal["confident", "silent"]
Features = tuple[float, ...]

PRIORS: Final[dict[Kind, tuple[tuple[float, ...], tuple[float, ...]]]] = {
    "confident": ((0.0, 1.0), (1.0, 4.0)),
    "silent": ((-3.0, 1.0, 0.0, 0.0), (1.0, 4.0, 4.0, 4.0)),
}
"""By kind: θ₀, which leaves the engine's values unchanged, and the diagonal of the precision P."""

CLIP_CONFIDENCE: Final = 0.01
CLIP_STANDARD: Final = 4.0
CLIP_THETA: Final = 8.0
TRUST_HALF: Final = 5.0
"""Sum of rewards at which a map has trust ½."""
MAX_REWARDS: Final = 2000.0
"""Above this sum of rewards all sums of a map are scaled down, so that it still adapts to new evidence."""
ONLINE_FLOOR: Final = 0.1
JUDGED_FLOOR: Final = 1e-4
"""Lower bounds of p(1 − p) of an example: one surprising event must not move a confident map far."""
MOMENT_HALF_LIFE: Final = 2000.0
"""Answers after which an answer's scores have half their weight in the running mean and deviation."""
MOMENT_FADE: Final = 2 ** (-1 / MOMENT_HALF_LIFE)
EVIDENCE_HALF_LIFE: Final = 30 * 86400.0
"""Seconds after which an event has half its weight."""
MIN_VARIANCE: Final = 1e-13
MAX_SWEEPS: Final = 50
MAX_STEP: Final = 3.0
CONVERGED: Final = 1e-6


class Example(NamedTuple):
    """One hit that was shown to a caller: its features, its weight, and its reward in [0,1]."""

    features: Features
    weight: float
    reward: float


class Moments(NamedTuple):
    """Count, sum and sum of squares of an engine's scores, with older answers counting less."""

    seen: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    @property
    def mean(self) -> float:
        """Mean score; 0 without any."""
        return self.total / self.seen if self.seen > 0 else 0.0

    @property
    def deviation(self) -> float:
        """Population standard deviation; 0 if it cannot be computed."""
        if self.seen <= 0:
            return 0.0
        mean, square = self.total / self.seen, self.squares / self.seen
        variance = square - mean * mean
        # A smaller difference is rounding error of the subtraction.
        return sqrt(variance) if variance > square * MIN_VARIANCE and isfinite(variance) else 0.0

    def observed(self, scores: Sequence[float]) -> "Moments":
        """With the scores of one more answer. Scores that would make a sum infinite are dropped."""
        moments = Moments(
            self.seen * MOMENT_FADE + len(scores),
            self.total * MOMENT_FADE + sum(scores),
            self.squares * MOMENT_FADE + sum(map(mul, scores, scores)),
        )
        return moments if isfinite(moments.squares) and isfinite(moments.total) else self


class LearnedMap(NamedTuple):
    """A map as fusion applies it. `n`: sum of the rewards that it was learned from."""

    kind: Kind
    theta: tuple[float, ...]
    n: float
    mean: float = 0.0
    """Mean of the engine's scores; used by silent maps."""
    sd: float = 0.0

    @property
    def trust(self) -> float:
        """λ in [0, 1): share of the map against the engine's own values."""
        return self.n / (self.n + TRUST_HALF) if self.n > 0 else 0.0

    def chances(self, features: Iterable[Features]) -> list[float]:
        """The chance of relevance of each hit, in (0, 1)."""
        theta = self.theta
        return [_logistic(_dot(theta, phi)) for phi in features]


class EngineCalibration(NamedTuple):
    """The maps of one engine."""

    confident: LearnedMap | None = None
    silent: LearnedMap | None = None


def dump_calibration(learned: EngineCalibration | None) -> list[Any] | None:
    """The maps as plain data."""
    return None if learned is None else [None if one is None else [*one] for one in learned]


def load_calibration(plain: Any) -> EngineCalibration:
    """The inverse of `dump_calibration`."""
    confident, silent = [
        None if one is None else LearnedMap(one[0], tuple(one[1]), one[2], one[3], one[4]) for one in plain
    ]
    return EngineCalibration(confident, silent)


def confident_features(confidences: Sequence[float]) -> list[Features]:
    """φ of each hit of a list with confidences, holes filled."""
    return [
        (1.0, log(clipped / (1 - clipped)))
        for clipped in [min(max(value, CLIP_CONFIDENCE), 1 - CLIP_CONFIDENCE) for value in confidences]
    ]


def silent_features(standard: Sequence[float], scores: Sequence[float], mean: float, sd: float) -> list[Features]:
    """φ of each hit of a list without confidences: its score within this list, within all of the engine's, its rank."""
    return [
        (1.0, _clip(z, CLIP_STANDARD), _clip((score - mean) / sd, CLIP_STANDARD) if sd > 0 else 0.0, log2(rank))
        for rank, (z, score) in enumerate(zip(standard, scores), 1)
    ]


class Evidence:
    """The learned state of one map: A (upper triangle), b and n of the definition, as one list of sums."""

    __slots__ = ("kind", "sums")

    def __init__(self, kind: Kind, sums: Sequence[float] | None = None) -> None:
        self.kind: Kind = kind
        self.sums: list[float] = [0.0] * size_of(kind) if sums is None else list(sums)

    @property
    def n(self) -> float:
        """The sum of rewards."""
        return self.sums[-1]

    def theta(self) -> tuple[float, ...]:
        """(P + A)⁻¹(Pθ₀ + b), each coordinate clipped to ±8; θ₀ if the equations have no finite solution."""
        # The sums may come from a file or from Redis, so they need not be those of a valid map.
        try:
            solved = _solved(self.kind, self.sums)
        except ZeroDivisionError:
            solved = [nan]
        if not all(map(isfinite, solved)):
            return PRIORS[self.kind][0]
        return tuple([_clip(value, CLIP_THETA) for value in solved])

    def add(self, increments: Sequence[float]) -> None:
        """Add increments of this or another process, and keep the sum of rewards below MAX_REWARDS."""
        sums = [ours + theirs for ours, theirs in zip(self.sums, increments)]
        if sums[-1] > MAX_REWARDS:
            share = MAX_REWARDS / sums[-1]
            sums = [value * share for value in sums]
        self.sums = sums

    def fade(self, seconds: float) -> None:
        """Reduce the weight of all evidence by the decay of `seconds`."""
        share = 2 ** (-max(0.0, seconds) / EVIDENCE_HALF_LIFE)
        self.sums = [value * share for value in self.sums]

    def learned(self, moments: Moments | None = None) -> LearnedMap:
        """The map as fusion applies it."""
        found = moments or Moments()
        return LearnedMap(self.kind, self.theta(), self.n, found.mean, found.deviation)

    def __repr__(self) -> str:
        return f"<Evidence {self.kind}: n={self.n:.3g}, theta={[round(value, 3) for value in self.theta()]}>"


def size_of(kind: Kind) -> int:
    """How many sums a map of this kind has."""
    width = len(PRIORS[kind][0])
    return width * (width + 1) // 2 + width + 1


def increments_of(kind: Kind, theta: Sequence[float], examples: Iterable[Example], floor: float) -> list[float] | None:
    """What examples add to the sums of a map whose parameters are `theta`; None if that is not finite.

    A += hφφᵀ, b += φ(h·θφ + u(y − π)), n += uy, with π = σ(θφ) and h = u·max(π(1 − π), floor).
    """
    width = len(theta)
    sums = [0.0] * size_of(kind)
    start = width * (width + 1) // 2
    for phi, weight, reward in examples:
        level = _dot(theta, phi)
        chance = _logistic(level)
        spread = chance * (1 - chance)
        curvature = weight * (spread if spread > floor else floor)
        pull = curvature * level + weight * (reward - chance)
        cell = 0
        for row in range(width):
            scaled = curvature * phi[row]
            for column in range(row, width):
                sums[cell] += scaled * phi[column]
                cell += 1
            sums[start + row] += phi[row] * pull
        sums[-1] += weight * reward
    return sums if all(isfinite(value) for value in sums) else None


def shown_examples(
    features: Sequence[Features], places: Sequence[int], rewards: Sequence[float | None], share: float
) -> list[Example]:
    """The examples of one engine in one judged answer.

    `places`: position of each of its hits in the answer, from 1. `rewards`: in [0,1], None without a signal. `share`:
    weight of the caller's events.
    """
    # A hit without a signal counts as not useful, by the probability that it was seen at its position.
    return [
        Example(phi, share if reward is not None else share / log2(place + 1), reward or 0.0)
        for phi, place, reward in zip(features, places, rewards, strict=True)
    ]


def fitted(kind: Kind, examples: Sequence[Example]) -> Evidence:
    """The map of judged queries: Newton's method with step halving until θ converges."""
    evidence = Evidence(kind)
    theta = PRIORS[kind][0]
    for _ in range(MAX_SWEEPS):
        sums = increments_of(kind, theta, examples, JUDGED_FLOOR)
        if sums is None:
            return Evidence(kind)
        evidence = Evidence(kind, sums)
        steps = [_clip(then - now, MAX_STEP) for now, then in zip(theta, _solved(kind, sums))]
        # A full step overshoots where confidences are far from the truth, and would oscillate.
        worst = _misfit(kind, theta, examples)
        share = 1.0
        while share > CONVERGED and _misfit(kind, _moved(theta, steps, share), examples) > worst:
            share /= 2
        theta = _moved(theta, steps, share)
        if max([abs(step) for step in steps]) < CONVERGED:
            break
    return evidence


def _moved(theta: Sequence[float], steps: Sequence[float], share: float) -> tuple[float, ...]:
    return tuple([now + share * step for now, step in zip(theta, steps)])


def _misfit(kind: Kind, theta: Sequence[float], examples: Iterable[Example]) -> float:
    """Negative logarithm of the posterior of θ, up to a constant."""
    start, precision = PRIORS[kind]
    total = sum([p * (now - then) ** 2 / 2 for p, now, then in zip(precision, theta, start)])
    for phi, weight, reward in examples:
        level = _dot(theta, phi)
        # log(1 + e^level), written so that it does not overflow.
        softplus = level + log1p(exp(-level)) if level > 0 else log1p(exp(level))
        total += weight * (softplus - reward * level)
    return total


def _solved(kind: Kind, sums: Sequence[float]) -> list[float]:
    """(P + A)⁻¹(Pθ₀ + b) by elimination; P + A is positive definite, so pivots need no search."""
    start, precision = PRIORS[kind]
    width = len(start)
    rows = [[0.0] * width for _ in range(width)]
    cell = 0
    for row in range(width):
        for column in range(row, width):
            rows[row][column] = rows[column][row] = sums[cell]
            cell += 1
    right = []
    for row in range(width):
        rows[row][row] += precision[row]
        right.append(precision[row] * start[row] + sums[cell + row])
    for pivot in range(width):
        for row in range(pivot + 1, width):
            share = rows[row][pivot] / rows[pivot][pivot]
            right[row] -= share * right[pivot]
            for column in range(pivot, width):
                rows[row][column] -= share * rows[pivot][column]
    theta = [0.0] * width
    for row in range(width - 1, -1, -1):
        known = sum([rows[row][column] * theta[column] for column in range(row + 1, width)])
        theta[row] = (right[row] - known) / rows[row][row]
    return theta


def _dot(theta: Sequence[float], phi: Sequence[float]) -> float:
    total = 0.0
    for one, other in zip(theta, phi):
        total += one * other
    return total


def _logistic(level: float) -> float:
    """σ, within (0, 1) for any finite level."""
    if level < -36.0:
        level = -36.0
    elif level > 36.0:
        level = 36.0
    return 1 / (1 + exp(-level))


def _clip(value: float, bound: float) -> float:
    return -bound if value < -bound else bound if value > bound else value
