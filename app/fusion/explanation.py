"""Contribution of each engine's list to a document's sum. Pure.

It reads the points of `rrf.blend`, so an explanation cannot disagree with the ranking that it explains.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from app.fusion.confidence import valid_confidence
from app.fusion.ranked_lists import FusionConfig, RankedList
from app.fusion.rrf import FusedOrder, blend


class Contribution(NamedTuple):
    """Points of one engine for one document."""

    engine: str
    rank: int
    """From 1, without duplicates inside the list."""
    confidence: float | None
    """As the engine stated it; None if missing, invalid or ignored by configuration."""
    points: float
    share: float
    """Of the document's sum, in [0,1]; 0 where the sum is 0."""


class Explanation(NamedTuple):
    """One document: its sum and the parts of it, largest first."""

    key: str
    total: float
    parts: Sequence[Contribution]


class EngineClaim(NamedTuple):
    """The confidence curve of one engine's list, before and after learned calibration."""

    source: str
    """Origin of the curve: CONFIDENCES, ESTIMATED or NOTHING."""
    claimed: Sequence[float]
    """Chance of relevance by rank; empty without a curve."""
    believed: Sequence[float]
    """The same after learned calibration, before the consensus of the engines."""
    evidence: float
    """Sum of rewards that the learned map is based on."""
    trust: float
    """Share of the learned map in the curve, in [0,1)."""


CONFIDENCES = "confidences"
ESTIMATED = "estimated from scores"
NOTHING = "nothing"


class Contributions(NamedTuple):
    """Explanations of some documents; `ceiling` is the largest possible sum."""

    method: str
    ceiling: float
    standings: Sequence[Explanation]
    claims: Mapping[str, EngineClaim]
    """By engine id."""


def shares_of(lists: Sequence[RankedList], options: FusionConfig, keys: Sequence[str]) -> Contributions:
    """Explain the documents with these identity keys, in their order."""
    whole = blend(lists, options)
    claims = {source.engine: _claim(whole, at) for at, (source, _, _) in enumerate(whole.document_index.lists)}
    return Contributions(whole.method, whole.ceiling, [_explanation(whole, key) for key in keys], claims)


def _claim(whole: FusedOrder, at: int) -> EngineClaim:
    source, hits, _ = whole.document_index.lists[at]
    claimed, believed = whole.claimed[at][0], whole.believed[at][0]
    silent = source.confidence == "ignore" or not any(
        valid_confidence(hit.get("confidence")) is not None for hit in hits
    )
    stated = NOTHING if not claimed else ESTIMATED if silent else CONFIDENCES
    maps = source.calibration
    learned = None if maps is None else maps.silent if silent else maps.confident
    evidence, trust = (0.0, 0.0) if learned is None else (learned.n, learned.trust)
    return EngineClaim(stated, claimed, believed, evidence, trust)


def _explanation(whole: FusedOrder, key: str) -> Explanation:
    found: list[tuple[str, int, float | None, float]] = []
    for at, place in whole.document_index.places(key):
        source, hits, _ = whole.document_index.lists[at]
        believed = None if source.confidence == "ignore" else valid_confidence(hits[place].get("confidence"))
        found.append((source.engine, place + 1, believed, whole.points[at][place]))
    total = sum(part[3] for part in found)
    parts = [Contribution(*part, share=part[3] / total if total > 0 else 0.0) for part in found]
    return Explanation(key, total, sorted(parts, key=lambda part: (-part.points, part.engine)))
