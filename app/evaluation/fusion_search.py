"""Searches better fusion parameters (weights, rrfK, confidence weight) by coordinate descent.

Deterministic: the same objective function gives the same parameters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from app.fusion.calibration import EngineCalibration
from app.fusion.ranked_lists import MAX_WEIGHT, FusionConfig, RankedList, Reading, Silent
from app.fusion.rrf import fuse

if TYPE_CHECKING:
    from app.federation.offline_learning import Maps

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
"""Weights that are tried, as multiples of the largest present one: only their proportions matter."""
RRF_KS = (10, 20, 40, 60, 90, 120)
CONFIDENCE_WEIGHTS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
ROUNDS = 3
"""Times that every setting is looked at; the search ends sooner if a round changes nothing."""
MIN_GAIN = 5e-4
"""What a change must gain on the tuning queries: less is noise, and the present value is kept."""

Lists = Mapping[str, Sequence[dict[str, Any]]]
"""Engine -> its hits for one query, best first."""


@dataclass(frozen=True, slots=True)
class FusionParameters:
    """What the search may change."""

    weights: Mapping[str, float]
    rrf_k: int
    confidence_weight: float


Setting = Callable[[FusionParameters], list[FusionParameters]]
"""The blends that differ from one in this setting."""


@dataclass(frozen=True, slots=True)
class TrialPool:
    """Ranked lists of several engines for several queries, ready to be fused again and again."""

    queries: Mapping[str, Lists]
    readings: Mapping[str, Reading]
    """How an engine's confidences are read, where not as usual."""
    fetch_k: int
    """How many hits every engine was asked for."""
    silent: Silent = "scores"
    """How lists are read if no engine gives confidences …"""
    silents: Mapping[str, Silent] = field(default_factory=dict)
    """… and of which engines they are read in another way."""

    def engines(self) -> list[str]:
        """Whose lists these are."""
        return sorted({engine for lists in self.queries.values() for engine in lists})

    def rankings(
        self, blend: FusionParameters, depth: int, calibrations: Mapping[str, EngineCalibration] = MappingProxyType({})
    ) -> dict[str, list[str]]:
        """Query id -> the first `depth` documents as the gateway would fuse them under this blend. `calibrations`: what
        was learned, by engine id."""
        options = FusionConfig(rrf_k=blend.rrf_k, confidence_weight=blend.confidence_weight, silent=self.silent)
        return {
            qid: fuse(self._ranked(lists, blend, calibrations), options).keys()[:depth]
            for qid, lists in self.queries.items()
        }

    def learned(self, judgements: Mapping[str, Mapping[str, int]]) -> "dict[str, Maps]":
        """What the judgements of these queries teach about each engine's claims."""
        from app.federation.offline_learning import learned_from_judgements

        even = FusionParameters(dict.fromkeys(self.engines(), 1.0), 60, 1.0)
        return learned_from_judgements(
            [(self._ranked(lists, even, {}), judgements[qid]) for qid, lists in self.queries.items()]
        )

    def part(self, qids: Sequence[str]) -> "TrialPool":
        """The same with these queries only."""
        return replace(self, queries={qid: self.queries[qid] for qid in qids})

    def _ranked(
        self, lists: Lists, blend: FusionParameters, calibrations: Mapping[str, EngineCalibration]
    ) -> list[RankedList]:
        return [
            RankedList(
                engine,
                hits,
                weight=blend.weights[engine],
                fetch_k=self.fetch_k,
                confidence=self.readings.get(engine, "ranked"),
                silent=self.silents.get(engine),
                calibration=calibrations.get(engine),
            )
            for engine, hits in lists.items()
        ]


def trials_of(engines: int) -> int:
    """The most blends that a search over so many engines looks at."""
    return 1 + ROUNDS * (len(RRF_KS) + len(CONFIDENCE_WEIGHTS) + engines * len(SHARES))


def search(start: FusionParameters, gauge: Callable[[FusionParameters], float]) -> FusionParameters:
    """The best blend that coordinate descent finds from `start`; `gauge` says what one is worth, more is better.

    One setting after the other is set to the best of its values while the others stay. Calls `gauge` at most
    `trials_of(len(start.weights))` times.
    """
    best, worth = start, gauge(start)
    top = max(start.weights.values(), default=0.0) or 1.0
    settings: list[Setting] = [_confidence_weights, _rrf_ks]
    settings += [partial(_weights, engine, top) for engine in sorted(start.weights)]
    for _ in range(ROUNDS):
        before = best
        for variants in settings:
            rivals = [(gauge(rival), rival) for rival in variants(best) if rival != best]
            gained, rival = max(rivals, key=itemgetter(0))
            if gained >= worth + MIN_GAIN:
                best, worth = rival, gained
        if best == before:
            break
    return best


def _confidence_weights(blend: FusionParameters) -> list[FusionParameters]:
    return [replace(blend, confidence_weight=value) for value in CONFIDENCE_WEIGHTS]


def _rrf_ks(blend: FusionParameters) -> list[FusionParameters]:
    return [replace(blend, rrf_k=value) for value in RRF_KS]


def _weights(engine: str, top: float, blend: FusionParameters) -> list[FusionParameters]:
    values = sorted({min(MAX_WEIGHT, share * top) for share in SHARES})
    return [replace(blend, weights={**blend.weights, engine: value}) for value in values]
