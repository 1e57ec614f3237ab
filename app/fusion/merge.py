"""The fused list: one hit per document with the richest body, merged meta, its origins and a score in [0,1].

Hits are built on demand, as new objects; what the engines sent is never changed.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, final

from app.fusion.calibration import Features, Kind
from app.fusion.confidence import valid_confidence
from app.fusion.copies import Copy, richest
from app.fusion.features import features_of
from app.fusion.id_collisions import clashing
from app.fusion.identity import body_text, public_id
from app.fusion.score_table import UNIT, ScoreTable
from app.fusion.trust import capped, merged_trust

Claim = tuple[str, Kind, Features]
"""(engine id, kind of its list, features of its hit for learned calibration)."""

_NO_COPIES: Final[list[Copy]] = []
MAX_COMPARED: Final = 100
"""Copies whose texts are compared in one response: about 5 µs each."""


class Reranked(NamedTuple):
    """Result of reranking, by identity key."""

    scores: Mapping[str, float]
    """New `score` of every document that moved: the score of its new position, so that scores still fall."""
    values: Mapping[str, float]
    """The reranker's own values, reported as `scores.rerank`."""


@final
class FusedList:
    """Documents of several engines in one total order."""

    __slots__ = ("_copies", "_score_table", "duplicates", "method", "notes", "reranking")

    def __init__(
        self, method: str, notes: tuple[str, ...], score_table: ScoreTable, reranking: Reranked | None = None
    ) -> None:
        """`reranking`: the outcome of a reranker, if there was one."""
        self.method = method
        self.notes = notes
        self.reranking = reranking
        self._score_table = score_table
        self._copies: list[list[Copy]] = [_NO_COPIES] * len(score_table.units)
        self.duplicates = sum([len(source.hits) for source, _, _ in score_table.document_index.lists]) - len(
            score_table.units
        )
        """Hits merged into another hit, across engines and within lists."""

    def __len__(self) -> int:
        """Unique documents."""
        return len(self._score_table.order(0))

    def __repr__(self) -> str:
        engines = ", ".join(
            [f"{source.engine}:{len(hits)}" for source, hits, _ in self._score_table.document_index.lists]
        )
        return f"<FusedList {self.method} of {engines or 'nothing'}: {len(self)} unique, {self.duplicates} duplicate>"

    def keys(self, start: int = 0, stop: int | None = None) -> list[str]:
        """The identity keys, best first, from `start` up to `stop`."""
        keys = self._score_table.document_index.keys
        return [keys[number] for number in self._numbers(start, stop)]

    def scores(self) -> list[float]:
        """The reported `score` of every document, best first, without building hits."""
        units = self._score_table.units
        numbers = self._score_table.order(0)
        scores = [self._score(units[number]) for number in numbers]
        if self.reranking is None:
            return scores
        given, keys = self.reranking.scores, self._score_table.document_index.keys
        return [given.get(keys[number], score) for number, score in zip(numbers, scores)]

    def hits(self, start: int = 0, stop: int | None = None) -> list[dict[str, Any]]:
        """The fused hits from `start` up to `stop` (RCP §16.3)."""
        hits = [self._fused(number) for number in self._numbers(start, stop)]
        return hits if self.reranking is None else _stamped(self.keys(start, stop), hits, self.reranking)

    def origins(self, keys: Iterable[str]) -> dict[str, dict[str, str | int | float]]:
        """Public id -> engine id -> the id at that engine, for the documents with these keys."""
        found = {}
        numbers = self._score_table.document_index.numbers
        for key in keys:
            copies = self._copies_of(numbers[key])
            source, _, hit = richest(copies)
            found[f"{public_id(hit, source.namespace)}"] = {copy[0].engine: copy[2]["id"] for copy in copies}
        return found

    def claims(self, keys: Iterable[str]) -> list[list[Claim]]:
        """By key: for each engine that returned the document, the features that learned calibration needs."""
        document_index = self._score_table.document_index
        seen = [features_of(source, hits) for source, hits, _ in document_index.lists]
        found = []
        for key in keys:
            claims: list[Claim] = []
            for turn, place in document_index.places(key):
                features = seen[turn]
                if features is not None:
                    claims.append((document_index.lists[turn][0].engine, features[0], features[1][place]))
            found.append(claims)
        return found

    def text(self, index: int) -> str:
        """The text of the kept copy of the document at `index`; may be empty."""
        return body_text(richest(self._score_table.document_index.copies(self._score_table.order()[index]))[2])

    def pick(self, order: Iterable[int]) -> "FusedList":
        """The same list with only the documents at these indexes, in this order."""
        numbers = self._score_table.order()
        return self._picked([numbers[index] for index in order], self.reranking)

    def reranked(self, top: int, values: Mapping[int, float]) -> "FusedList":
        """The same documents, the first `top` of them ordered by a reranker's `values` (index -> value).

        Documents without a value follow those with one; ties keep the fused order. Each place keeps its score, so that
        scores still fall.
        """
        keys, scores = self.keys(), self.scores()
        top = min(top, len(keys))
        order = sorted(range(top), key=lambda index: (index not in values, -values.get(index, 0.0)))
        reranking = Reranked(
            {keys[index]: score for index, score in zip(order, scores, strict=False)},
            {keys[index]: value for index, value in values.items()},
        )
        return self.restored([keys[index] for index in order] + keys[top:], reranking)

    def restored(self, keys: Iterable[str], reranking: Reranked | None) -> "FusedList":
        """The same list in the order of `keys`: that of an earlier page."""
        numbers = self._score_table.document_index.numbers
        return self._picked([numbers[key] for key in keys], reranking)

    def collisions(self, start: int = 0, stop: int | None = None, most: int = MAX_COMPARED) -> list[tuple[str, str]]:
        """Pairs of engines without namespace that use one id for clearly different texts, one pair per copy.

        Examines the documents from `start` up to `stop` and compares at most `most` copies.
        """
        document_index = self._score_table.document_index
        found: list[tuple[str, str]] = []
        if document_index.identity != "id":
            return found
        for number in self._numbers(start, stop):
            copies = self._copies_of(number)
            if len(copies) > 1:
                found += clashing(copies[: most + 1])
                most -= len(copies) - 1
                if most < 1:
                    break
        return found

    def _numbers(self, start: int, stop: int | None) -> list[int]:
        """The documents from `start` up to `stop`."""
        return self._score_table.order(stop)[start:stop]

    def _picked(self, numbers: list[int], reranking: Reranked | None) -> "FusedList":
        return FusedList(self.method, self.notes, self._score_table.picked(numbers), reranking)

    def _copies_of(self, number: int) -> list[Copy]:
        """The copies of one document; cached, because hits, overlap and the collision check all need them."""
        copies = self._copies[number]
        if not copies:
            copies = self._copies[number] = self._score_table.document_index.copies(number)
        return copies

    def _score(self, units: float) -> float:
        ceiling = self._score_table.ceiling
        return min(1.0, units / ceiling) if ceiling > 0 else 0.0

    def _fused(self, number: int) -> dict[str, Any]:
        copies = self._copies_of(number)
        units = self._score_table.units[number]
        if len(copies) == 1:
            return self._single(copies[0], units)
        source, rank, hit = richest(copies)
        marks, confidence = _contributors(copies)
        # `meta` of the gateway is written last: an engine cannot forge where a hit comes from.
        meta = _merged_meta(hit, copies)
        meta["engine"] = source.engine
        meta["engineRank"] = rank
        meta["engineScore"] = hit["score"]
        meta["fusedScore"] = units / UNIT
        meta["engines"] = marks
        fused = {**hit, "score": self._score(units), "meta": meta}
        if source.namespace is not None:
            fused["id"] = public_id(hit, source.namespace)
        if source.max_trust is not None:
            _cap_trust(fused, source.max_trust)
        if confidence is not None:
            fused["confidence"] = confidence
        else:
            fused.pop("confidence", None)
        _complete(fused, hit, copies)
        return fused

    def _single(self, copy: Copy, units: float) -> dict[str, Any]:
        """The hit of a document that one engine returned: the usual case, without merging."""
        source, rank, hit = copy
        score = hit["score"]
        own = hit.get("meta")
        mark = {"id": source.engine, "rank": rank, "score": score}
        fused = {
            **hit,
            "score": self._score(units),
            "meta": {
                **(own if type(own) is dict else {}),
                "engine": source.engine,
                "engineRank": rank,
                "engineScore": score,
                "fusedScore": units / UNIT,
                "engines": [mark],
            },
        }
        if source.namespace is not None:
            fused["id"] = public_id(hit, source.namespace)
        if source.max_trust is not None:
            _cap_trust(fused, source.max_trust)
        if "confidence" in hit:
            given = hit["confidence"]
            if valid_confidence(given) is None or source.confidence == "ignore":
                del fused["confidence"]
            else:
                mark["confidence"] = given  # not the valid one: compiled, that is a float, and 1 would become 1.0
        return fused


def _stamped(keys: Sequence[str], hits: list[dict[str, Any]], reranking: Reranked) -> list[dict[str, Any]]:
    """Write the outcome of reranking into `hits`, which must not be shared."""
    for key, hit in zip(keys, hits, strict=True):
        score, value = reranking.scores.get(key), reranking.values.get(key)
        if score is not None:
            hit["score"] = score
        if value is not None:
            own = hit.get("scores")
            hit["scores"] = {**(own if type(own) is dict else {}), "rerank": value}
    return hits


def _cap_trust(fused: dict[str, Any], highest: str) -> None:
    """Lower the trust level of a hit to the highest one allowed for its engine."""
    trust = capped(fused.get("trust"), highest)
    if trust is not None:
        fused["trust"] = trust


def _merged_meta(kept: dict[str, Any], copies: list[Copy]) -> dict[str, Any]:
    """Merged `meta`: the kept copy's keys win, then the others' in engine-id order. A non-object is ignored."""
    meta: dict[str, Any] = {}
    # Backwards, so that the first engine's keys overwrite those of later ones.
    place = len(copies)
    while place:
        place -= 1
        own = copies[place][2].get("meta")
        if type(own) is dict:
            meta.update(own)
    if kept is not copies[0][2]:
        own = kept.get("meta")
        if type(own) is dict:
            meta.update(own)
    return meta


def _contributors(copies: list[Copy]) -> tuple[list[dict[str, Any]], float | None]:
    """`meta.engines`, and the weighted mean of the raw confidences; None without any.

    The mean is unweighted if all weights are 0.
    """
    marks: list[dict[str, Any]] = []
    claimed = weighed = weights = 0.0
    responses = 0
    for source, rank, hit in copies:
        given = hit.get("confidence")
        stated = None if source.confidence == "ignore" else valid_confidence(given)
        if stated is None:
            marks.append({"id": source.engine, "rank": rank, "score": hit["score"]})
            continue
        marks.append({"id": source.engine, "rank": rank, "score": hit["score"], "confidence": given})
        weight = source.weight
        responses += 1
        claimed += stated
        weighed += weight * stated
        weights += weight
    if not responses:
        return marks, None
    if responses == 1 or not weights > 0:
        return marks, min(1.0, claimed / responses)
    return marks, min(1.0, weighed / weights)


def _complete(fused: dict[str, Any], kept: dict[str, Any], copies: list[Copy]) -> None:
    """Add what only other copies have: a citation, and a lower trust level."""
    cited = type(fused.get("citation")) is dict
    statements: list[Any] = []
    for source, _, hit in copies:
        if hit is kept:
            continue
        if not cited and type(hit.get("citation")) is dict:
            fused["citation"] = hit["citation"]
            cited = True
        trust = hit.get("trust")
        if source.max_trust is not None:
            trust = capped(trust, source.max_trust)
        if trust is not None:
            statements.append(trust)
    if statements:
        trust = merged_trust(fused.get("trust"), statements)
        if trust is not None:
            fused["trust"] = trust
