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
    confidence_curve,
    consensus,
    estimate,
    shape_of,
)
from app.fusion.document_index import DocumentIndex, DocumentRanks
from app.fusion.features import chances_of
from app.fusion.merge import FusedList
from app.fusion.ranked_lists import FusionConfig, Method, RankedList
from app.fusion.score_table import count, grid_for

_engine_of: Final = attrgetter("engine")


class FusedOrder(NamedTuple):
    """The points of each list for each document, before they are added up."""

    method: Method
    """The method applied, which may differ from the one requested."""
    document_index: DocumentIndex
    points: list[list[float]]
    """By list and rank; a row may be longer than its list."""
    ceiling: float
    """Largest possible sum of one document."""
    notes: tuple[str, ...]
    claimed: list[ConfidenceCurve]
    """By list, the curve that the engine's confidences, or its scores, give."""
    believed: list[ConfidenceCurve]
    """The same after learned calibration. The points are computed from these."""
    estimated: bool
    """Whether the curves were estimated from scores, since no engine gave a confidence."""


def fuse(lists: Sequence[RankedList], options: FusionConfig) -> FusedList:
    """Fuse ranked lists into one (RCP §16.3). Engines that answered with no hits take part with an empty list.

    `convex` falls back to `rrf`, with a note, unless every list states a `score_floor`. Raises nothing for lists that
    satisfy RankedList.
    """
    method, document_index, points, ceiling, notes, _, _, _ = blend(lists, options)
    return FusedList(method, notes, count(document_index, points, ceiling))


def blend(lists: Sequence[RankedList], options: FusionConfig) -> FusedOrder:
    """The points of `fuse`."""
    document_index = DocumentIndex(sorted(lists, key=_engine_of), options.identity)
    indexed = document_index.lists
    weights = [source.weight for source, _, _ in indexed]
    method, fallback = _allowed(options.method, indexed)
    claimed = believed = [_confidence_curve(ranked_list) for ranked_list in indexed]
    estimated = False
    shapes: list[ScoreShape | None] = [None] * len(indexed)
    if method == "rrf" and options.confidence_weight > 0:
        if not any(stated[0] and weight > 0 for weight, stated in zip(weights, claimed)):
            # Learned calibration of engines without confidences reads the same shapes, so they are computed once.
            shapes = [_shape(ranked_list, stated, options) for ranked_list, stated in zip(indexed, claimed)]
            claimed = [_estimated(ranked[0], stated, shape) for ranked, stated, shape in zip(indexed, claimed, shapes)]
            estimated = True
        believed = [
            stated if ranked_list[0].calibration is None else _calibrated(ranked_list, stated, shape)
            for ranked_list, stated, shape in zip(indexed, claimed, shapes)
        ]
    # All points are rounded to one grid: sums on it are exact, so their order cannot change the result.
    best = 1 / (options.rrf_k + 1) if method == "rrf" else 1.0
    grid = grid_for(fsum(weights) * best)
    if method == "rrf":
        longest = max([len(named) for _, _, named in indexed], default=0)
        points = _tempered(weights, believed, longest, options, grid)
    else:
        points = [_scaled(ranked_list, method, grid) for ranked_list in indexed]
    ceiling = sum([(weight * best + grid) - grid for weight in weights])
    notes = (*fallback, *_faults(indexed, claimed))
    return FusedOrder(method, document_index, points, ceiling, notes, claimed, believed, estimated)


def _allowed(wanted: Method, indexed: list[DocumentRanks]) -> tuple[Method, tuple[str, ...]]:
    if wanted != "convex":
        return wanted, ()
    without = [source.engine for source, _, _ in indexed if source.score_floor is None]
    if not without:
        return wanted, ()
    return "rrf", (f"fusion: rrf in place of convex, which needs a scoreFloor from {', '.join(without)}",)


def _faults(indexed: list[DocumentRanks], curves: list[ConfidenceCurve]) -> list[str]:
    return [
        f"{source.engine}: {faults} confidence value(s) not in [0,1] counted as missing"
        for (source, _, _), (_, _, _, faults) in zip(indexed, curves)
        if faults
    ]


def _confidence_curve(ranked_list: DocumentRanks) -> ConfidenceCurve:
    source, hits, _ = ranked_list
    reading = source.confidence
    if reading == "ignore":
        return SILENCE
    return confidence_curve(hits, source.fetch_k, reading == "independent")


def _shape(ranked_list: DocumentRanks, stated: ConfidenceCurve, options: FusionConfig) -> ScoreShape | None:
    """The shape of the scores of a list that is read by them; None for any other."""
    source, hits, _ = ranked_list
    return None if stated[0] or (source.silent or options.silent) == "ranks" else shape_of(hits)


def _estimated(source: RankedList, stated: ConfidenceCurve, shape: ScoreShape | None) -> ConfidenceCurve:
    if shape is None:
        return stated
    curve, coherence, influence, _ = estimate(shape, source.fetch_k)
    return curve, coherence, influence, stated[3]


def _calibrated(ranked_list: DocumentRanks, stated: ConfidenceCurve, shape: ScoreShape | None) -> ConfidenceCurve:
    """The curve after learned calibration of the engine; unchanged while nothing has been learned."""
    source, hits, _ = ranked_list
    maps = source.calibration
    if maps is None or not ((maps.confident and maps.confident.n > 0) or (maps.silent and maps.silent.n > 0)):
        return stated
    found = chances_of(source, hits, maps, stated[0], shape)
    if found is None:
        return stated
    learned, chances = found
    independent = learned.kind == "confident" and source.confidence == "independent"
    return calibrated(stated, chances, learned.trust, source.fetch_k, independent)


@lru_cache(maxsize=64)
def reciprocals(rrf_k: int, size: int) -> tuple[float, ...]:
    """1/(rrfK + r) for r = 1 … size."""
    return tuple([1 / (rrf_k + rank) for rank in range(1, size + 1)])


def _tempered(
    weights: list[float], curves: list[ConfidenceCurve], longest: int, options: FusionConfig, grid: float
) -> list[list[float]]:
    """w·[(1 − β) + β·ĉ(r)]/(rrfK + r); plain points if β is 0 or no engine with a weight gives any confidence."""
    beta = options.confidence_weight
    # Sizes are powers of two, so that a few cached tables serve all lengths.
    table = list(reciprocals(options.rrf_k, 1 << max(7, longest.bit_length()))[:longest])
    weighted_curves = [(weight, stated) for weight, stated in zip(weights, curves) if stated[0] and weight > 0]
    if beta == 0 or not weighted_curves:
        plain = {weight: _agreeing(weight, table, grid) for weight in set(weights)}
        return [plain[weight] for weight in weights]
    level = consensus(weighted_curves)
    level += level[-1:] * (longest - len(level))
    # Written as 1 − β(1 − c̄) instead of (1 − β) + βc̄: full confidence then gives exactly the plain RRF point.
    believed = [t * (1.0 - beta * (1.0 - c)) for t, c in zip(table, level)]
    steps = [beta * t for t in table]
    return [
        _deviating(weight, believed, steps, level, stated, grid) if stated[0] else _agreeing(weight, believed, grid)
        for weight, stated in zip(weights, curves)
    ]


def _agreeing(weight: float, believed: list[float], grid: float) -> list[float]:
    """The points of an engine without a curve: the consensus applies to it unchanged."""
    return [(weight * point + grid) - grid for point in believed]


def _deviating(
    weight: float, believed: list[float], steps: list[float], level: list[float], stated: ConfidenceCurve, grid: float
) -> list[float]:
    """The points of an engine with a curve: the consensus plus its own deviation from it.

    A deviation downwards counts by the engine's coherence, one upwards by its influence, which also asks whether its
    confidences distinguish hits at all.
    """
    curve, coherence, influence, _ = stated
    return [
        (weight * (b + (influence if p > c else coherence) * (p - c) * step) + grid) - grid
        for b, step, c, p in zip(believed, steps, level, curve)
    ]


def _scaled(ranked_list: DocumentRanks, method: Method, grid: float) -> list[float]:
    """Weight times the score, scaled to [0,1] between the list's lowest score (`convex`: its floor) and its highest.

    If all scores are equal, `weighted` gives 1 to all (RCP §16.3). `convex` gives 0: the best score is at the floor.
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
    # The difference of two huge scores may be infinite, that of their halves is not.
    scale = 1.0 if isfinite(top - low) else 0.5
    low *= scale
    span = top * scale - low
    # max(0.0, NaN) is 0.0, while max(NaN, 0.0) is NaN: the order matters.
    return [(weight * min(1.0, max(0.0, (score * scale - low) / span)) + grid) - grid for score in scores]
