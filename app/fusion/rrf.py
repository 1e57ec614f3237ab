"""Fusion of ranked lists (RCP §16.3): confidence-tempered RRF, weighted and convex sums.

Lists are processed in engine-id order and sums are exact, so the result does not depend on the order of arrival.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import fsum, isfinite
from operator import attrgetter
from typing import Final, NamedTuple

from app.fusion.confidence import (
    SILENCE,
    ConfidenceCurve,
    ScoreShape,
    calibrated,
    consensus,
    estimate,
    hear,
    shape_of,
)
from app.fusion.document_index import DocumentIndex, DocumentRanks
from app.fusion.features import chances_of
from app.fusion.merge import FusedList
from app.fusion.ranked_lists import FusionConfig, Method, RankedList
from app.fusion.score_table import count, grid_for

_engine_of: Final = attrgetter("engine")


class FusedOrder(NamedTuple):
    """What each list gave to each document, before anything is added up."""

    method: Method
    """The one that was applied."""
    document_index: DocumentIndex
    points: list[list[float]]
    """Of each ballot, by rank; may be longer than it."""
    ceiling: float
    """The most that one document could have."""
    notes: tuple[str, ...]
    claimed: list[ConfidenceCurve]
    """By ballot, the confidence curve of the engine itself."""
    believed: list[ConfidenceCurve]
    """The same after what was learned of it; the points are made with these."""
    estimated: bool
    """Whether the curves were estimated from scores, since no engine gave a confidence."""


def fuse(lists: Sequence[RankedList], options: FusionConfig) -> FusedList:
    """One ranked list out of many (RCP §16.3). Every list given is of an engine that answered, even an empty one.

    Convex falls back to rrf, with a note, unless every list states a `score_floor`. Raises nothing for lists that keep
    the promises of RankedList.
    """
    method, document_index, points, ceiling, notes, _, _, _ = blend(lists, options)
    return FusedList(method, notes, count(document_index, points, ceiling))


def blend(lists: Sequence[RankedList], options: FusionConfig) -> FusedOrder:
    """The points of `fuse`."""
    document_index = DocumentIndex(sorted(lists, key=_engine_of), options.identity)
    ballots = document_index.lists
    weights = [source.weight for source, _, _ in ballots]
    method, fallback = _allowed(options.method, ballots)
    claimed = believed = [_confidence_curve(ranked_list) for ranked_list in ballots]
    estimated = False
    shapes: list[ScoreShape | None] = [None] * len(ballots)
    if method == "rrf" and options.confidence_weight > 0:
        if not any(said[0] and weight > 0 for weight, said in zip(weights, claimed)):
            # What is learned of a silent engine is applied to the same shape, so it is made once.
            shapes = [_shape(ranked_list, said, options) for ranked_list, said in zip(ballots, claimed)]
            claimed = [_estimated(ranked[0], said, shape) for ranked, said, shape in zip(ballots, claimed, shapes)]
            estimated = True
        believed = [
            said if ranked_list[0].calibration is None else _calibrated(ranked_list, said, shape)
            for ranked_list, said, shape in zip(ballots, claimed, shapes)
        ]
    best = 1 / (options.rrf_k + 1) if method == "rrf" else 1.0
    grid = grid_for(fsum(weights) * best)
    if method == "rrf":
        longest = max([len(named) for _, _, named in ballots], default=0)
        points = _tempered(weights, believed, longest, options, grid)
    else:
        points = [_scaled(ranked_list, method, grid) for ranked_list in ballots]
    ceiling = sum([(weight * best + grid) - grid for weight in weights])
    notes = (*fallback, *_faults(ballots, claimed))
    return FusedOrder(method, document_index, points, ceiling, notes, claimed, believed, estimated)


def _allowed(wished: Method, ballots: list[DocumentRanks]) -> tuple[Method, tuple[str, ...]]:
    if wished != "convex":
        return wished, ()
    without = [source.engine for source, _, _ in ballots if source.score_floor is None]
    if not without:
        return wished, ()
    return "rrf", (f"fusion: rrf in place of convex, which needs a scoreFloor from {', '.join(without)}",)


def _faults(ballots: list[DocumentRanks], testimonies: list[ConfidenceCurve]) -> list[str]:
    return [
        f"{source.engine}: {faults} confidence value(s) not in [0,1] counted as missing"
        for (source, _, _), (_, _, _, faults) in zip(ballots, testimonies)
        if faults
    ]


def _confidence_curve(ranked_list: DocumentRanks) -> ConfidenceCurve:
    source, hits, _ = ranked_list
    reading = source.confidence
    if reading == "ignore":
        return SILENCE
    return hear(hits, source.fetch_k, reading == "independent")


def _shape(ranked_list: DocumentRanks, said: ConfidenceCurve, options: FusionConfig) -> ScoreShape | None:
    """The shape of the scores of a list that is read by them; None for any other."""
    source, hits, _ = ranked_list
    return None if said[0] or (source.silent or options.silent) == "ranks" else shape_of(hits)


def _estimated(source: RankedList, said: ConfidenceCurve, shape: ScoreShape | None) -> ConfidenceCurve:
    if shape is None:
        return said
    curve, coherence, say, _ = estimate(shape, source.fetch_k)
    return curve, coherence, say, said[3]


def _calibrated(ranked_list: DocumentRanks, said: ConfidenceCurve, shape: ScoreShape | None) -> ConfidenceCurve:
    """The testimony after what was learned of the engine; unchanged without evidence."""
    source, hits, _ = ranked_list
    maps = source.calibration
    if maps is None or not ((maps.confident and maps.confident.n > 0) or (maps.silent and maps.silent.n > 0)):
        return said
    found = chances_of(source, hits, maps, said[0], shape)
    if found is None:
        return said
    learned, chances = found
    independent = learned.kind == "confident" and source.confidence == "independent"
    return calibrated(said, chances, learned.trust, source.fetch_k, independent)


@lru_cache(maxsize=64)
def reciprocals(rrf_k: int, size: int) -> tuple[float, ...]:
    """1/(rrfK + r) for r = 1 … size."""
    return tuple([1 / (rrf_k + rank) for rank in range(1, size + 1)])


def _tempered(
    weights: list[float], testimonies: list[ConfidenceCurve], longest: int, options: FusionConfig, grid: float
) -> list[list[float]]:
    """w·[(1 − β) + β·ĉ(r)]/(rrfK + r); plain points if β is 0 or no engine with a weight gives any confidence."""
    beta = options.confidence_weight
    # Tables come in powers of two, so that few of them serve all lengths.
    table = list(reciprocals(options.rrf_k, 1 << max(7, longest.bit_length()))[:longest])
    heard = [(weight, said) for weight, said in zip(weights, testimonies) if said[0] and weight > 0]
    if beta == 0 or not heard:
        plain = {weight: _agreeing(weight, table, grid) for weight in set(weights)}
        return [plain[weight] for weight in weights]
    level = consensus(heard)
    level += level[-1:] * (longest - len(level))
    # Written as 1 − β(1 − c̄), so that full confidence gives exactly the plain point.
    believed = [t * (1.0 - beta * (1.0 - c)) for t, c in zip(table, level)]
    steps = [beta * t for t in table]
    return [
        _deviating(weight, believed, steps, level, said, grid) if said[0] else _agreeing(weight, believed, grid)
        for weight, said in zip(weights, testimonies)
    ]


def _agreeing(weight: float, believed: list[float], grid: float) -> list[float]:
    """The points of one engine that says nothing of its own."""
    return [(weight * point + grid) - grid for point in believed]


def _deviating(
    weight: float, believed: list[float], steps: list[float], level: list[float], said: ConfidenceCurve, grid: float
) -> list[float]:
    """The points of one engine: what the consensus believes, and the step from there to what the engine says."""
    curve, modesty, boast, _ = said
    return [
        (weight * (b + (boast if p > c else modesty) * (p - c) * step) + grid) - grid
        for b, step, c, p in zip(believed, steps, level, curve)
    ]


def _scaled(ranked_list: DocumentRanks, method: Method, grid: float) -> list[float]:
    """Weight times the score brought into [0,1] between the list's lowest score, or its floor, and its highest.

    Without a span, weighted gives 1 to all (RCP §16.3) and convex 0: their best is as low as a score can be.
    """
    source, hits, _ = ranked_list
    weight, floor = source.weight, source.score_floor
    scores = [float(hit["score"]) for hit in hits]
    finite = [score for score in scores if isfinite(score)] or [0.0]
    top = max(finite)
    low = floor if method == "convex" and floor is not None else min(finite)
    if top <= low:
        same = (weight + grid) - grid if method == "weighted" else 0.0
        return [same if isfinite(score) else 0.0 for score in scores]
    # Halved where the span of two huge scores would not be finite.
    scale = 1.0 if isfinite(top - low) else 0.5
    low *= scale
    span = top * scale - low
    # `max` in this order makes 0 of NaN, too.
    return [(weight * min(1.0, max(0.0, (score * scale - low) / span)) + grid) - grid for score in scores]
