"""Learned calibration without a running gateway: from judged queries, or from recorded events (docs/fusion.md).

The same arithmetic and the same state as in a gateway; only where lists and rewards come from differs.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.federation.learned_maps import written_maps
from app.federation.learning import Event, Learning
from app.fusion.calibration import EngineCalibration, Evidence, Example, Kind, LearnedMap, Moments, fitted
from app.fusion.document_index import DocumentIndex
from app.fusion.features import features_of
from app.fusion.ranked_lists import FusionConfig, RankedList
from app.fusion.rrf import fuse

Maps = dict[Kind, tuple[Evidence, Moments]]
"""What was learned of one engine."""


def learned_from_judgements(queries: Iterable[tuple[Sequence[RankedList], Mapping[str, int]]]) -> dict[str, Maps]:
    """By engine id, what judged queries teach: the lists of a query, and the relevance of documents to it.

    Every hit of every list is an example; a document that nobody judged is not relevant.
    """
    lists: dict[str, list[tuple[DocumentIndex, Mapping[str, int]]]] = {}
    for sources, judged in queries:
        for source in sources:
            if source.hits:
                lists.setdefault(source.engine, []).append((DocumentIndex([source], "id"), judged))
    return {engine: _fitted(found) for engine, found in sorted(lists.items())}


def _fitted(lists: Sequence[tuple[DocumentIndex, Mapping[str, int]]]) -> Maps:
    """The maps of one engine. The scale of its scores comes first: features of lists without confidences need it."""
    scores = [_scores(document_index) for document_index, _ in lists]
    seen = sum([len(given) for given in scores])
    # No list is older than another here, so none counts less.
    moments = Moments(seen, sum(map(sum, scores)), sum([score * score for given in scores for score in given]))
    scale = EngineCalibration(None, LearnedMap("silent", (), 0.0, moments.mean, moments.deviation))
    examples: dict[Kind, list[Example]] = {}
    for document_index, judged in lists:
        ((source, hits, _),) = document_index.lists
        found = features_of(source._replace(calibration=scale), hits)
        if found is not None:
            kind, features = found
            rewards = [1.0 if judged.get(key, 0) > 0 else 0.0 for key in document_index.keys]
            examples.setdefault(kind, []).extend(map(Example, features, [1.0] * len(rewards), rewards))
    return {kind: (fitted(kind, given), moments if kind == "silent" else Moments()) for kind, given in examples.items()}


def _scores(document_index: DocumentIndex) -> list[float]:
    """The scores of a list without confidences, if they have a shape."""
    ((source, hits, _),) = document_index.lists
    found = features_of(source, hits)
    return [float(hit["score"]) for hit in hits] if found is not None and found[0] == "silent" else []


class Recorded:
    """Learns from events in their order, as a gateway would within one day."""

    def __init__(self) -> None:
        self._learning = Learning(clock=lambda: 0.0)

    def learn(
        self, caller: str, lists: Sequence[RankedList], shown: Sequence[str], rewards: Mapping[str, float]
    ) -> None:
        """One judged answer: the engines' lists, the ids that were shown in order, and rewards by id."""
        maps = self.maps()
        lists = [source._replace(calibration=maps.get(source.engine)) for source in lists]
        fusion = fuse(lists, FusionConfig())
        known = frozenset(fusion.keys())
        places = [key for key in shown if key in known]
        claims = dict(zip(places, fusion.claims(places), strict=True))
        self._learning.observe("", lists, (), frozen=False)
        if any(key in rewards for key in shown):
            judged = [(place, rewards.get(key), claims.get(key, [])) for place, key in enumerate(shown, 1)]
            self._learning.learn(Event("", caller), [judged])

    def maps(self) -> Mapping[str, EngineCalibration]:
        """What fusion applies, by engine id."""
        return self._learning.maps("")

    def learned(self) -> dict[str, Maps]:
        """By engine id, what was learned so far."""
        return self._learning.learned("")

    def __repr__(self) -> str:
        return f"<Recorded {self._learning!r}>"


def calibrations_of(learned: Mapping[str, Maps]) -> dict[str, EngineCalibration]:
    """What fusion applies, by engine id."""
    found = {}
    for engine, maps in learned.items():
        ready = {kind: evidence.learned(moments) for kind, (evidence, moments) in maps.items()}
        found[engine] = EngineCalibration(ready.get("confident"), ready.get("silent"))
    return found


def written(learned: Mapping[str, Maps]) -> dict[str, Any]:
    """Maps by engine id, as `calibrate` prints them."""
    return {engine: written_maps(maps) for engine, maps in learned.items() if maps}
