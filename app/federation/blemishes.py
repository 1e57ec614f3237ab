"""Fields of hits that are not as RCP shapes them (RCP §7.7): left out of what is served, with a note. Pure.

A hit with an id and a score is a hit (decision 7); one odd field of it must not make the whole answer unreadable to a
caller that has types. It refuses to know how the hits came to be served.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from app.federation.outcome import Hit
from app.protocol.params import MODALITIES, UNITS
from app.protocol.shapes import Shape, flag, mapping, number, numbers, one_of, record, several, share, text, whole

MISTRUST: Final = "untrusted"

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

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_CITED: Final = {"source": str, "uri": str, "title": str, "start": int, "end": int, "page": int}
_UNITS: Final = frozenset(UNITS)
_MODALITIES: Final = frozenset(MODALITIES)
_LESS_USUAL: Final = frozenset(_FIELDS).difference(("text", "unit", "modality", "citation"))


def mended(hits: Iterable[Hit]) -> list[str]:
    """Leave out of these fused hits what is malformed; the notes on it, by engine. Nothing in them is changed."""
    lost: dict[str, tuple[set[str], int]] = {}
    for hit in hits:
        if _plain(hit):
            continue
        odd = [(name, value) for name, value in hit.items() if name in _FIELDS and _FIELDS[name](value) is not value]
        if odd or None in hit.values():
            names = _mend(hit, odd)
            if names:
                engine = hit["meta"]["engine"]
                before, count = lost.get(engine, (set(), 0))
                lost[engine] = (before | names, count + 1)
    return [
        f"{engine}: of {count} hit(s) left out what has another shape than RCP's: {', '.join(sorted(names))}"
        for engine, (names, count) in sorted(lost.items())
    ]


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


def _mend(hit: Hit, odd: Iterable[tuple[str, Any]]) -> set[str]:
    """Put right the `odd` fields and drop the null ones; which ones were not null."""
    for name, value in odd:
        made = _FIELDS[name](value)
        if made is None:
            del hit[name]
        else:
            hit[name] = made
    for name in [name for name, value in hit.items() if value is None and name in _FIELDS]:
        del hit[name]
    return {name for name, _ in odd}
