"""The fused list: one hit per document with the richest body, merged meta, origin marks and a score in [0,1].

Hits are built on demand, only those asked for, as fresh objects; what the engines sent is never changed. It refuses to
know how points were given.
"""

from collections.abc import Container, Iterable, Sequence
from math import fsum
from typing import Any

from app.fusion.collision import clashing
from app.fusion.confidence import valid_confidence
from app.fusion.copies import Copy, copies_of, richest
from app.fusion.identity import Identity, body_text, public_id
from app.fusion.tally import UNIT, Tally
from app.fusion.trust import merged_trust


class Fusion:
    """Documents of several engines in one total order."""

    __slots__ = ("_identity", "_tally", "duplicates", "method", "notes")

    def __init__(
        self,
        method: str,
        notes: tuple[str, ...],
        tally: Tally,
        identity: Identity = "id",
        duplicates: int | None = None,
    ) -> None:
        self.method = method
        self.notes = notes
        self._tally = tally
        self._identity = identity
        if duplicates is None:
            returned = sum([len(ballot.places) + ballot.dropped for ballot in tally.ballots])
            duplicates = returned - len(tally.order)
        self.duplicates = duplicates
        """Copies merged away, across engines and within lists."""

    def __len__(self) -> int:
        """Unique documents."""
        return len(self._tally.order)

    def __repr__(self) -> str:
        engines = ", ".join(f"{ballot.source.engine}:{len(ballot.places)}" for ballot in self._tally.ballots)
        return f"<Fusion {self.method} of {engines or 'nothing'}: {len(self)} unique, {self.duplicates} duplicate>"

    def keys(self) -> list[str]:
        """The identity keys, best first."""
        return list(self._tally.order)

    def scores(self) -> list[float]:
        """The reported `score` of every document, best first, without building hits."""
        units = self._tally.units
        return [self._score(units[key]) for key in self._tally.order]

    def hits(self, start: int = 0, stop: int | None = None) -> list[dict[str, Any]]:
        """The fused hits from `start` up to `stop` (RCP §16.3)."""
        return [self._fused(key) for key in self._tally.order[start:stop]]

    def text(self, index: int) -> str:
        """The text of the document at `index`: of its kept copy, or empty."""
        return body_text(richest(copies_of(self._tally.order[index], self._tally.ballots))[2])

    def pick(self, order: Iterable[int]) -> "Fusion":
        """The same fusion with only the documents at these indexes, in this order."""
        chosen = [self._tally.order[index] for index in order]
        return Fusion(self.method, self.notes, self._tally._replace(order=chosen), self._identity, self.duplicates)

    def collisions(
        self, start: int = 0, stop: int | None = None, known: Container[tuple[str, str]] = ()
    ) -> list[tuple[str, str, str]]:
        """`(engine_a, engine_b, id)` where two engines without namespace gave one id to clearly different texts.

        Looks only at the asked slice, and not at pairs that are `known`.
        """
        if self._identity != "id":
            return []
        found: list[tuple[str, str, str]] = []
        for key in self._tally.order[start:stop]:
            copies = copies_of(key, self._tally.ballots)
            if len(copies) > 1:
                found += [(a, b, key) for a, b in clashing(copies, known)]
        return found

    def _score(self, units: float) -> float:
        ceiling = self._tally.ceiling
        return min(1.0, units / ceiling) if ceiling > 0 else 0.0

    def _fused(self, key: str) -> dict[str, Any]:
        copies = copies_of(key, self._tally.ballots)
        kept = richest(copies)
        source, rank, hit = kept
        units = self._tally.units[key]
        fused = hit.copy()
        fused["id"] = public_id(hit, source.namespace)
        fused["score"] = self._score(units)
        meta = _merged_meta(kept, copies)
        meta["engine"] = source.engine
        meta["engineRank"] = rank
        meta["engineScore"] = hit["score"]
        meta["fusedScore"] = units / UNIT
        meta["engines"], confidence = _contributors(copies)
        fused["meta"] = meta
        if confidence is not None:
            fused["confidence"] = confidence
        elif "confidence" in fused:
            del fused["confidence"]
        if len(copies) > 1:
            _complete(fused, kept, copies)
        return fused


def _merged_meta(kept: Copy, copies: Sequence[Copy]) -> dict[str, Any]:
    """The kept copy's keys win, then the others' in engine-id order. A `meta` that is no object is left out."""
    meta: dict[str, Any] = {}
    if len(copies) > 1:
        for _, _, hit in reversed(copies):
            stated = hit.get("meta")
            if type(stated) is dict:
                meta.update(stated)
    own = kept[2].get("meta")
    if type(own) is dict:
        meta.update(own)
    return meta


def _contributors(copies: Sequence[Copy]) -> tuple[list[dict[str, Any]], float | None]:
    """`meta.engines`, and the mean of the raw confidences by weight: plain if nobody has a weight, None if none."""
    marks: list[dict[str, Any]] = []
    said: list[float] = []
    weights: list[float] = []
    for source, rank, hit in copies:
        mark = {"id": source.engine, "rank": rank, "score": hit["score"]}
        confidence = None if source.confidence == "ignore" else valid_confidence(hit.get("confidence"))
        if confidence is not None:
            mark["confidence"] = confidence
            said.append(confidence)
            weights.append(source.weight)
        marks.append(mark)
    if len(said) < 2:
        return marks, said[0] if said else None
    total = fsum(weights)
    if not total > 0:
        weights, total = [1.0] * len(said), float(len(said))
    return marks, min(1.0, fsum([w * c for w, c in zip(weights, said, strict=True)]) / total)


def _complete(fused: dict[str, Any], kept: Copy, copies: Sequence[Copy]) -> None:
    """A citation where only another copy has one, and the most cautious trust. The kept copy has the longest text."""
    others = [copy for copy in copies if copy is not kept]
    if type(fused.get("citation")) is not dict:
        cited = (hit["citation"] for _, _, hit in others if type(hit.get("citation")) is dict)
        citation = next(cited, None)
        if citation is not None:
            fused["citation"] = citation
    if any("trust" in hit for _, _, hit in others):
        trust = merged_trust(fused.get("trust"), [hit.get("trust") for _, _, hit in others])
        if trust is not None:
            fused["trust"] = trust
