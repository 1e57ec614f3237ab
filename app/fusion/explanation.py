"""Why a document stands where it stands: what each engine's list gave to its sum. Pure.

The blend's own points, taken apart again; nothing is worked out a second time in another way. It refuses to know who
wants to see it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from app.fusion.confidence import valid_confidence
from app.fusion.ranked_lists import FusionConfig, RankedList
from app.fusion.rrf import FusedOrder, blend


class Contribution(NamedTuple):
    """What one engine gave to one document."""

    engine: str
    rank: int
    """From 1, after duplicates inside the list are gone."""
    confidence: float | None
    """As the engine stated it; None if it did not, or is not believed."""
    points: float
    share: float
    """Of the document's sum, in [0,1]; 0 where the sum is 0."""


class Explanation(NamedTuple):
    """One document: its sum, and what it is made of, the largest part first."""

    key: str
    total: float
    parts: Sequence[Contribution]


class EngineClaim(NamedTuple):
    """What one engine's list claims of its hits, and what is believed of it."""

    source: str
    """Where the claim is from: CONFIDENCES, ESTIMATED or NOTHING."""
    claimed: Sequence[float]
    """Chance of relevance by rank; empty if nothing is claimed."""
    believed: Sequence[float]
    """The same after learned calibration, before the consensus of the engines."""
    evidence: float
    """Rewards that the learned map is based on."""
    trust: float
    """How far the map replaces the claim, in [0,1)."""


CONFIDENCES = "confidences"
ESTIMATED = "estimated from scores"
NOTHING = "nothing"


class Contributions(NamedTuple):
    """Documents taken apart; `ceiling` is the most that one could have."""

    method: str
    ceiling: float
    standings: Sequence[Explanation]
    claims: Mapping[str, EngineClaim]
    """By engine id."""


def shares_of(lists: Sequence[RankedList], options: FusionConfig, keys: Sequence[str]) -> Contributions:
    """The documents with these identity keys, in their order."""
    whole = blend(lists, options)
    claims = {
        ranked_list[0].engine: _claim(whole, turn) for turn, ranked_list in enumerate(whole.document_index.ballots)
    }
    return Contributions(whole.method, whole.ceiling, [_standing(whole, key) for key in keys], claims)


def _claim(whole: FusedOrder, turn: int) -> EngineClaim:
    source, hits, _ = whole.document_index.ballots[turn]
    claimed, believed = whole.claimed[turn][0], whole.believed[turn][0]
    silent = source.confidence == "ignore" or not any(
        valid_confidence(hit.get("confidence")) is not None for hit in hits
    )
    said = NOTHING if not claimed else ESTIMATED if silent else CONFIDENCES
    maps = source.calibration
    learned = None if maps is None else maps.silent if silent else maps.confident
    evidence, trust = (0.0, 0.0) if learned is None else (learned.n, learned.trust)
    return EngineClaim(said, claimed, believed, evidence, trust)


def _standing(whole: FusedOrder, key: str) -> Explanation:
    found: list[tuple[str, int, float | None, float]] = []
    for turn, place in whole.document_index.places(key):
        source, hits, _ = whole.document_index.ballots[turn]
        believed = None if source.confidence == "ignore" else valid_confidence(hits[place].get("confidence"))
        found.append((source.engine, place + 1, believed, whole.points[turn][place]))
    total = sum(part[3] for part in found)
    parts = [Contribution(*part, share=part[3] / total if total > 0 else 0.0) for part in found]
    return Explanation(key, total, sorted(parts, key=lambda part: (-part.points, part.engine)))
