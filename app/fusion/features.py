"""Features of one engine's list for learned calibration (docs/explanation/fusion.md).

They are computed to apply a learned map, and stored until feedback on the hits arrives.
"""

from functools import lru_cache
from math import exp, log2
from typing import Any, Final

from app.fusion.calibration import (
    CLIP_CONFIDENCE,
    CLIP_STANDARD,
    EngineCalibration,
    Features,
    Kind,
    LearnedMap,
    confident_features,
    silent_features,
)
from app.fusion.confidence import ScoreShape, filled_confidences, shape_of, standardized
from app.fusion.ranked_lists import RankedList


def features_of(source: RankedList, hits: list[dict[str, Any]]) -> tuple[Kind, list[Features]] | None:
    """The kind of a deduplicated list and φ by rank; None for a list without confidences whose scores have no shape."""
    if source.confidence != "ignore":
        confidences = filled_confidences(hits)
        if confidences:
            return "confident", confident_features(confidences)
    shape = shape_of(hits)
    if shape is None:
        return None
    learned = None if source.calibration is None else source.calibration.silent
    mean, sd = (0.0, 0.0) if learned is None else (learned.mean, learned.sd)
    return "silent", silent_features(standardized(shape), shape[0], mean, sd)


MAX_LEVEL: Final = 36.0
"""Beyond this, σ is 0 or 1 to the last digit."""


def chances_of(
    source: RankedList,
    hits: list[dict[str, Any]],
    maps: EngineCalibration,
    claimed: list[float],
    shape: ScoreShape | None,
) -> tuple[LearnedMap, list[float]] | None:
    """The learned map for this kind of list, and its chances by rank; None without evidence or without features.

    Gives the same as `LearnedMap.chances` of `features_of`, several times faster: this runs for every list of every
    request. `claimed`: the engine's curve. `shape`: that of its scores if it is known already.
    """
    if source.confidence != "ignore":
        values = [hit.get("confidence") for hit in hits]
        # The curve usually is the list of confidences itself, which saves validating them again.
        confidences: list[float] = claimed
        if values != claimed:
            confidences = [] if values.count(None) == len(values) else filled_confidences(hits)
        if confidences:
            learned = maps.confident
            return None if learned is None or learned.n <= 0 else (learned, _of_confidences(confidences, learned.theta))
    learned = maps.silent
    if learned is None or learned.n <= 0:
        return None
    shape = shape_of(hits) if shape is None else shape
    return None if shape is None else (learned, _of_scores(standardized(shape), shape[0], learned))


def _of_confidences(confidences: list[float], theta: tuple[float, ...]) -> list[float]:
    """σ(θ₀ + θ₁ logit p), written with a power in place of a logarithm and an exponential."""
    shift, slope = exp(-theta[0]), theta[1]
    low, high = CLIP_CONFIDENCE, 1 - CLIP_CONFIDENCE
    clipped = [low if p < low else high if p > high else p for p in confidences]
    return [1 / (1 + shift * ((1 - p) / p) ** slope) for p in clipped]


def _of_scores(standard: list[float], scores: list[float], learned: LearnedMap) -> list[float]:
    """σ(θ·φ) of a list without confidences."""
    bias, of_list, of_engine, of_rank = learned.theta
    bound, mean = CLIP_STANDARD, learned.mean
    scale = 1 / learned.sd if learned.sd > 1e-300 else 0.0  # the reciprocal of less is not finite
    places = [(score - mean) * scale for score in scores] if scale else [0.0] * len(scores)
    if max(standard) > bound or min(standard) < -bound:
        standard = [_clip(z) for z in standard]
    if max(places) > bound or min(places) < -bound:
        places = [_clip(g) for g in places]
    ranks = logarithms(len(scores))
    levels = [bias + of_list * z + of_engine * g + of_rank * rank for z, g, rank in zip(standard, places, ranks)]
    if max(levels) > MAX_LEVEL or min(levels) < -MAX_LEVEL:
        levels = [min(MAX_LEVEL, max(-MAX_LEVEL, level)) for level in levels]
    return [1 / (1 + exp(-level)) for level in levels]


def _clip(value: float) -> float:
    return min(CLIP_STANDARD, max(-CLIP_STANDARD, value))


@lru_cache(maxsize=64)
def logarithms(size: int) -> tuple[float, ...]:
    """log₂ r for r = 1 … size."""
    return tuple([log2(rank) for rank in range(1, size + 1)])
