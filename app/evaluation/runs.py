"""Results of one system for many queries: of a single engine, or of the whole gateway.

Kept are ids and the rank, score and confidence that the engine itself gave.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Hit = dict[str, Any]

ALL_ENGINES = "all engines"
"""In place of an engine's id: the gateway without engine selection. No id contains a space."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one system returned: an engine alone, or the whole gateway where `engine` is None."""

    engine: str | None
    answers: dict[str, list[Hit]] = field(default_factory=dict)
    """Query id -> hits, best first, each `{id, score, confidence?}` with a stringified id."""
    refusals: dict[str, str] = field(default_factory=dict)
    """Query id -> why the query was refused: this system cannot honour it, and takes no part in answering it."""
    failures: dict[str, str] = field(default_factory=dict)
    """Query id -> why there is no answer although there should be one."""
    missed: dict[str, int] = field(default_factory=dict)
    """Engine -> in how many answers it was missing because it failed."""

    @property
    def name(self) -> str:
        """As it is called in tables."""
        return "gateway" if self.engine is None else self.engine

    def rankings(self) -> dict[str, list[str]]:
        """Query id -> document ids, best first."""
        return {qid: [hit["id"] for hit in hits] for qid, hits in self.answers.items()}

    def notes(self) -> Iterator[str]:
        """What to say about queries that were not answered, and about answers that lack an engine."""
        for lost, verb in ((self.refusals, "refused"), (self.failures, "failed")):
            if lost:
                first = next(iter(lost.values()))
                yield f"{self.name}: {counted(len(lost), 'query', 'queries')} {verb}, first: {first}"
        for engine, count in sorted(self.missed.items()):
            yield f"{self.name}: {counted(count, 'answer')} without {engine}, which failed"


def counted(number: int, one: str, many: str = "") -> str:
    """A number and what it counts."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def read_hits(result: Mapping[str, Any], engine: str | None) -> list[Hit]:
    """The hits of a result; with an engine, as that engine ranked and scored them (`meta.engines`)."""
    sound = [hit for hit in result["hits"] if isinstance(hit, dict) and _is_id(hit.get("id"))]
    if engine is None or engine == ALL_ENGINES:
        return [{"id": str(hit["id"]), "score": hit.get("score")} for hit in sound]
    marked = [(hit, _mark(hit, engine)) for hit in sound]
    if all(type(mark.get("rank")) is int for _, mark in marked):
        marked.sort(key=lambda pair: pair[1]["rank"])
    return [_as_sent(hit, mark) for hit, mark in marked]


def _is_id(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


def _mark(hit: Mapping[str, Any], engine: str) -> Mapping[str, Any]:
    """What the gateway says that this engine said of the hit."""
    meta = hit.get("meta")
    marks = meta.get("engines") if isinstance(meta, dict) else None
    found = (mark for mark in (marks if isinstance(marks, list) else []) if isinstance(mark, dict))
    return next((mark for mark in found if mark.get("id") == engine), {})


def _as_sent(hit: Mapping[str, Any], mark: Mapping[str, Any]) -> Hit:
    score = mark.get("score")
    sent: Hit = {"id": str(hit["id"]), "score": score if type(score) in (int, float) else 0.0}
    if "confidence" in mark:
        sent["confidence"] = mark["confidence"]
    return sent


def degraded_of(result: Mapping[str, Any]) -> list[str]:
    """The engines that failed and are missing in this answer."""
    meta = result.get("_meta")
    dropped = meta.get("degraded") if isinstance(meta, dict) else None
    return [name for name in dropped if isinstance(name, str)] if isinstance(dropped, list) else []
