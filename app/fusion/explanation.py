"""Contribution of each engine's list to a document's sum. Pure.

It reads the points of `rrf.blend`, so an explanation cannot disagree with the ranking that it explains.
"""

from collections.abc import Sequence
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


class Contributions(NamedTuple):
    """Explanations of some documents; `ceiling` is the largest possible sum."""

    method: str
    ceiling: float
    standings: Sequence[Explanation]


def shares_of(lists: Sequence[RankedList], options: FusionConfig, keys: Sequence[str]) -> Contributions:
    """Explain the documents with these identity keys, in their order."""
    whole = blend(lists, options)
    return Contributions(whole.method, whole.ceiling, [_explanation(whole, key) for key in keys])


def _explanation(whole: FusedOrder, key: str) -> Explanation:
    found: list[tuple[str, int, float | None, float]] = []
    for at, place in whole.document_index.places(key):
        source, hits, _ = whole.document_index.lists[at]
        believed = None if source.confidence == "ignore" else valid_confidence(hits[place].get("confidence"))
        found.append((source.engine, place + 1, believed, whole.points[at][place]))
    total = sum(part[3] for part in found)
    parts = [Contribution(*part, share=part[3] / total if total > 0 else 0.0) for part in found]
    return Explanation(key, total, sorted(parts, key=lambda part: (-part.points, part.engine)))
