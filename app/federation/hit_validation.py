"""Removes malformed fields and members from what engines sent, and writes a note about it (RCP §7.7). Pure.

A hit with an id and a score is a hit (decision 7): a field of the wrong type is dropped rather than passed on to typed
callers. Results of `graph` and `memory/recall` are cleaned member by member."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from app.federation.outcome import MAX_HITS, Hit, Outcome, answered, engine_notes, succeeded
from app.protocol.errors import ProtocolViolation
from app.protocol.param_fields import is_id
from app.protocol.retrieve_params import MODALITIES, UNITS
from app.protocol.validators import (
    Shape,
    anything,
    flag,
    mapping,
    number,
    numbers,
    one_of,
    record,
    several,
    share,
    text,
    whole,
)

MISTRUST: Final = "untrusted"

MIN_PARTS: Final = 10_000
PARTS_OF_A_HIT: Final = 20
"""The budget of one response: members of arrays and objects that are inspected, for each hit and at least."""

_INTEGER: Final = whole()
_TRUST: Final = record(
    {
        "level": one_of("trusted", "community", MISTRUST),
        "score": share,
        "injectionSuspected": flag,
        "sanitized": flag,
    }
)
_CONTENT: Final = record(
    {
        "type": one_of("text", "image", "audio", "blob"),
        "text": text,
        "mimeType": text,
        "data": text,
        "uri": text,
    },
    needed=("type",),
)


def _content(value: Any) -> Any:
    """A content block (RCP §4): a text, or a MIME type with either data or a URI."""
    kept = _CONTENT(value)
    if kept is None:
        return None
    held = "text" in kept if kept["type"] == "text" else "mimeType" in kept and ("data" in kept) != ("uri" in kept)
    return kept if held else None


def _object(value: Any) -> Any:
    return value if type(value) is dict else None


def _trust(value: Any) -> Any:
    """`trust` without a level that RCP defines is kept, with the lowest level."""
    kept = _TRUST(value)
    return kept if kept is None or "level" in kept else {**kept, "level": MISTRUST}


_FIELDS: Final[Mapping[str, Shape]] = MappingProxyType(
    {
        "text": text,
        "content": several(_content),
        "modality": one_of(*MODALITIES),
        "unit": one_of(*UNITS),
        "level": whole(0),
        "vector": numbers,
        "scores": mapping(number),
        "citation": record(
            {"source": text, "uri": text, "title": text, "start": _INTEGER, "end": _INTEGER, "page": _INTEGER}
        ),
        "provenance": record(
            {
                "path": several(text),
                "nodes": several(text),
                "edges": several(record({"src": text, "dst": text}, needed=("src", "dst"))),
                "leaves": several(text),
            }
        ),
        "trust": _trust,
        "chunk": record({"docId": text, "index": _INTEGER, "context": text}),
    }
)
"""Field -> its validator. `id`, `score`, `confidence` and `meta` of a fused hit are written by the gateway."""

_OWN_FIELDS: Final[Mapping[str, Shape]] = MappingProxyType({**_FIELDS, "confidence": share, "meta": _object})
"""The same for a hit that is passed on as its engine sent it."""

_OF_MANY: Final = frozenset({"content", "provenance"})
"""Fields that may have any number of members, each of which takes time to inspect."""
_NONE: Final[set[str]] = set()

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_CITED: Final = {"source": str, "uri": str, "title": str, "start": int, "end": int, "page": int}
_UNITS: Final = frozenset(UNITS)
_MODALITIES: Final = frozenset(MODALITIES)
_LESS_USUAL: Final = frozenset(_FIELDS).difference(("text", "unit", "modality", "citation"))


def sanitized(hits: Sequence[Hit]) -> list[str]:
    """Remove malformed fields from these fused hits; returns a note for each engine. Values are never changed."""
    removed: dict[str, list[set[str]]] = {}
    budget = _Budget(len(hits))
    for hit in hits:
        # Most hits are of the usual kind; the full check costs about four times as much.
        if not _is_usual(hit) and (names := _sanitize_hit(hit, _FIELDS, budget)):
            removed.setdefault(hit["meta"]["engine"], []).append(names)
    return [_note(engine, names) for engine, names in sorted(removed.items())]


def relayed(engine: str, result: dict[str, Any]) -> tuple[dict[str, Any], Outcome]:
    """A result with `hits` for a caller that chose this engine: the same hits in the same order, without what is
    malformed and with notes about it; and the outcome that counts what was removed. Raises ProtocolViolation if
    `hits` is no array."""
    usage = result.get("usage")
    usage = usage if type(usage) is dict else {}
    # The same reading as for `retrieve`, so that the same hits are dropped.
    outcome = answered(engine, {"hits": result.get("hits")}, 0.0, 1)
    budget = _Budget(len(outcome.hits))
    removed = [names for hit in outcome.hits if (names := _sanitize_hit(hit, _OWN_FIELDS, budget))]
    lines = [*outcome.notes, *([_note(engine, removed)] if removed else [])]
    if not lines:
        return result, outcome
    value = usage.get("notes")
    notes = [*(text for text in value if type(text) is str), *lines] if type(value) is list else lines
    return {**result, "hits": outcome.hits, "usage": {**usage, "notes": notes}}, outcome


def _note(engine: str, removed: Sequence[set[str]]) -> str:
    names = ", ".join(sorted(set().union(*removed)))
    return f"{engine}: malformed fields removed from {len(removed)} hit(s): {names}"


def _is_usual(hit: Hit) -> bool:
    """Whether this is a well-formed hit with no fields but the usual ones. The fast path for most hits."""
    if type(hit.get("text", "")) is not str or not _LESS_USUAL.isdisjoint(hit):
        return False
    # Types are compared with `is`: bool is a subclass of int, and must not pass as one.
    unit, modality = hit.get("unit", "chunk"), hit.get("modality", "text")
    if type(unit) is not str or unit not in _UNITS or type(modality) is not str or modality not in _MODALITIES:
        return False
    citation = hit.get("citation", _NOTHING)
    if citation is not _NOTHING:
        if type(citation) is not dict:
            return False
        for name, value in citation.items():
            if type(value) is not _CITED.get(name, type(value)):
                return False
    return True


class _Budget:
    """Limits how many members of hits are inspected for one response; fields that exceed what is left are removed.

    Inspection takes a microsecond or two per member and blocks the event loop.
    """

    __slots__ = ("parts",)

    def __init__(self, hits: int) -> None:
        self.parts = max(MIN_PARTS, hits * PARTS_OF_A_HIT)

    def too_many(self, hit: Hit) -> list[str]:
        """The fields of this hit that exceed the budget; the others are charged to it."""
        return [name for name in _OF_MANY if name in hit and not self._holds(hit[name])]

    def _holds(self, value: Any) -> bool:
        kind = type(value)
        if kind is not dict and kind is not list:
            return True
        parts = len(value)
        if kind is dict and parts <= self.parts:
            # Members of members count, or nesting would bypass the budget.
            parts += sum([len(member) for member in value.values() if type(member) is list])
        if parts > self.parts:
            return False
        self.parts -= parts
        return True

    def __repr__(self) -> str:
        return f"<_Budget of {self.parts} parts>"


def _sanitize_hit(hit: Hit, fields: Mapping[str, Shape], budget: _Budget) -> set[str]:
    """Fix or remove malformed fields and remove null ones; returns the names of those that were not null."""
    too_large = () if _OF_MANY.isdisjoint(hit) else budget.too_many(hit)
    for name in too_large:
        del hit[name]
    odd = [(name, value) for name, value in hit.items() if name in fields and fields[name](value) is not value]
    for name, value in odd:
        made = fields[name](value)
        if made is None:
            del hit[name]
        else:
            hit[name] = made
    if None in hit.values():
        # null means absent; typed clients reject it.
        for name in [name for name, value in hit.items() if value is None and name in fields]:
            del hit[name]
    return {*too_large, *(name for name, _ in odd)} if too_large or odd else _NONE


# --- Results of graph and memory/recall ---

MAX_SEEDS = 100
"""Seeds of one clue that are read."""


def read_result(
    needed: Sequence[str], engine: str, result: dict[str, Any], took: float, attempts: int, size: int = 0
) -> Outcome:
    """The outcome of a call whose engine sent one of the `needed` fields. Raises ProtocolViolation."""
    if not any(_has_field(result, key) for key in needed):
        raise ProtocolViolation(f"the result has no {' and no '.join(repr(key) for key in needed)}")
    hits = type(result.get("hits")) is list
    outcome = (
        answered(engine, result, took, attempts, size)
        if hits
        else _succeeded_with_notes(engine, result, took, attempts, size)
    )
    kept = {key: value for key, value in result.items() if value is not None and key != "hits"}
    malformed = excess = 0
    for key in [key for key in _LISTS if key in kept]:
        # A value that is no list counts as one malformed member.
        sent = kept[key] if type(kept[key]) is list else [None]
        members = [member for member in sent[:MAX_HITS] if _LISTS[key](member)]
        kept[key] = [_PARTS.get(key, anything)(member) for member in members]
        malformed += min(len(sent), MAX_HITS) - len(members)
        malformed += sum(part is not member for part, member in zip(kept[key], members, strict=True))
        excess += max(0, len(sent) - MAX_HITS)
    if "summary" in kept and type(kept["summary"]) is not str:
        del kept["summary"]
        malformed += 1
    return outcome._replace(
        result=kept,
        notes=(*outcome.notes, *_notes(engine, malformed, excess)),
        malformed=outcome.malformed + malformed,
        excess=outcome.excess + excess,
    )


def _succeeded_with_notes(engine: str, result: Mapping[str, Any], took: float, attempts: int, size: int) -> Outcome:
    usage = result.get("usage")
    notes = engine_notes(engine, usage.get("notes")) if type(usage) is dict else ()
    return succeeded(engine, result, took, attempts, size)._replace(notes=notes)


def _has_field(result: Mapping[str, Any], key: str) -> bool:
    return type(result.get(key)) is (str if key == "summary" else list)


def _has_id(member: Any) -> bool:
    return type(member) is dict and is_id(member.get("id"))


def _has_ends(member: Any) -> bool:
    return type(member) is dict and is_id(member.get("src")) and is_id(member.get("dst"))


def _is_clue(member: Any) -> bool:
    """A clue needs a query or seeds."""
    if type(member) is not dict:
        return False
    seeds = member.get("seedIds")
    return _is_text(member.get("query")) or (type(seeds) is list and any(is_id(seed) for seed in seeds[:MAX_SEEDS]))


def _seeds(value: Any) -> Any:
    """The valid ids among the first MAX_SEEDS, so that a list of millions does not block the event loop."""
    if type(value) is not list:
        return None
    kept = [seed for seed in value[:MAX_SEEDS] if is_id(seed)]
    return value if len(kept) == len(value) else kept


def _is_text(member: Any) -> bool:
    return type(member) is str and bool(member.strip())


_LISTS: Mapping[str, Callable[[Any], bool]] = MappingProxyType(
    {"communities": _has_id, "nodes": _has_id, "edges": _has_ends, "followups": _is_text, "clues": _is_clue}
)
"""Field -> whether a member of it is well-formed."""

_PARTS: Mapping[str, Shape] = MappingProxyType(
    {
        "communities": record({"level": whole(0), "summary": text, "score": number}),
        "nodes": record({"score": number}),
        "edges": record({"weight": number}),
        "clues": record({"query": text, "seedIds": _seeds, "weight": number}),
    }
)
"""Field -> validator of its members; unknown fields are kept."""


def _notes(engine: str, malformed: int, excess: int) -> list[str]:
    lines = [f"{engine}: {malformed} malformed member(s) of its result dropped"] if malformed else []
    return [*lines, f"{engine}: {excess} member(s) beyond the first {MAX_HITS} of a list dropped"] if excess else lines
