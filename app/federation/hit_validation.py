"""Fields of hits that are not as RCP shapes them (RCP §7.7): left out of what is served, with a note. Pure.

A hit with an id and a score is a hit (decision 7); one odd field of it must not make the whole answer unreadable to a
caller that has types. It refuses to know how the hits came to be served.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from app.federation.outcome import Hit, Outcome, answered
from app.protocol.retrieve_params import MODALITIES, UNITS
from app.protocol.validators import Shape, flag, mapping, number, numbers, one_of, record, several, share, text, whole

MISTRUST: Final = "untrusted"

LEAST_PARTS: Final = 10_000
PARTS_OF_A_HIT: Final = 20
"""Members of arrays and objects in the odd fields of one answer that are looked at: so many for each hit, at least so
many for the answer."""

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
    """A block that holds something (RCP §4): a text, or a type with data or an address."""
    kept = _CONTENT(value)
    if kept is None:
        return None
    held = "text" in kept if kept["type"] == "text" else "mimeType" in kept and ("data" in kept) != ("uri" in kept)
    return kept if held else None


def _object(value: Any) -> Any:
    return value if type(value) is dict else None


def _trust(value: Any) -> Any:
    """What is said without a level that RCP knows is kept, and trusted least."""
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
"""Field -> its shape; `id`, `score`, `confidence` and `meta` of a fused hit are the gateway's own."""

_OWN_FIELDS: Final[Mapping[str, Shape]] = MappingProxyType({**_FIELDS, "confidence": share, "meta": _object})
"""The same of a hit that is passed on as its engine gave it."""

_OF_MANY: Final = frozenset({"content", "provenance"})
"""Fields that may have any number of parts, each of which takes a while to look at."""
_NONE: Final[set[str]] = set()

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_CITED: Final = {"source": str, "uri": str, "title": str, "start": int, "end": int, "page": int}
_UNITS: Final = frozenset(UNITS)
_MODALITIES: Final = frozenset(MODALITIES)
_LESS_USUAL: Final = frozenset(_FIELDS).difference(("text", "unit", "modality", "citation"))


def sanitized(hits: Sequence[Hit]) -> list[str]:
    """Leave out of these fused hits what is malformed; the notes on it, by engine. Nothing in them is changed."""
    lost: dict[str, list[set[str]]] = {}
    room = _Budget(len(hits))
    for hit in hits:
        if not _plain(hit) and (names := _mend(hit, _FIELDS, room)):
            lost.setdefault(hit["meta"]["engine"], []).append(names)
    return [_line(engine, names) for engine, names in sorted(lost.items())]


def relayed(engine: str, result: dict[str, Any]) -> tuple[dict[str, Any], Outcome]:
    """A result with `hits` for whoever asked this engine alone: the same hits in the same order, without what is
    malformed, and notes on it; and the outcome that counts what was left out. Raises ProtocolViolation if `hits` is no
    array.
    """
    usage = result.get("usage")
    usage = usage if type(usage) is dict else {}
    outcome = answered(engine, {"hits": result.get("hits")}, 0.0, 1)
    room = _Budget(len(outcome.hits))
    lost = [names for hit in outcome.hits if (names := _mend(hit, _OWN_FIELDS, room))]
    lines = [*outcome.notes, *([_line(engine, lost)] if lost else [])]
    if not lines:
        return result, outcome
    said = usage.get("notes")
    notes = [*(text for text in said if type(text) is str), *lines] if type(said) is list else lines
    return {**result, "hits": outcome.hits, "usage": {**usage, "notes": notes}}, outcome


def _line(engine: str, lost: Sequence[set[str]]) -> str:
    names = ", ".join(sorted(set().union(*lost)))
    return f"{engine}: of {len(lost)} hit(s) left out what has another shape than RCP's: {names}"


def _plain(hit: Hit) -> bool:
    """Whether this is a well-formed hit of the usual kind: a text, its kind, a citation, and no more. The quick way."""
    if type(hit.get("text", "")) is not str or not _LESS_USUAL.isdisjoint(hit):
        return False
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
    """How many more parts of hits are looked at for one answer; fields with more than are left do not count.

    Looking takes a microsecond or two for each, and meanwhile nobody else is served.
    """

    __slots__ = ("parts",)

    def __init__(self, hits: int) -> None:
        self.parts = max(LEAST_PARTS, hits * PARTS_OF_A_HIT)

    def too_many(self, hit: Hit) -> list[str]:
        """The fields of this hit for which there is no room; the others take theirs."""
        return [name for name in _OF_MANY if name in hit and not self._holds(hit[name])]

    def _holds(self, value: Any) -> bool:
        kind = type(value)
        if kind is not dict and kind is not list:
            return True
        parts = len(value)
        if kind is dict and parts <= self.parts:
            parts += sum([len(member) for member in value.values() if type(member) is list])
        if parts > self.parts:
            return False
        self.parts -= parts
        return True

    def __repr__(self) -> str:
        return f"<_Room for {self.parts} parts>"


def _mend(hit: Hit, fields: Mapping[str, Shape], room: _Budget) -> set[str]:
    """Put right what is odd among these fields and drop the null ones; which ones were not null."""
    unread = () if _OF_MANY.isdisjoint(hit) else room.too_many(hit)
    for name in unread:
        del hit[name]
    odd = [(name, value) for name, value in hit.items() if name in fields and fields[name](value) is not value]
    for name, value in odd:
        made = fields[name](value)
        if made is None:
            del hit[name]
        else:
            hit[name] = made
    if None in hit.values():
        for name in [name for name, value in hit.items() if value is None and name in fields]:
            del hit[name]
    return {*unread, *(name for name, _ in odd)} if unread or odd else _NONE
