"""What engines send beside or in place of hits: communities, nodes and edges, clues, followups. Read and cleaned. Pure.

As for hits (decision 7) a malformed member is dropped with a note, and a result that lacks what its method is about
fails its engine. It refuses to know what is made of the findings.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from app.federation.outcome import MAX_HITS, Outcome, answered, own_notes, told
from app.protocol.errors import ProtocolViolation
from app.protocol.param_fields import is_id
from app.protocol.validators import Shape, anything, number, record, text, whole

MAX_SEEDS = 100
"""Seeds of one clue that are looked at."""


def found(
    needed: Sequence[str], engine: str, result: dict[str, Any], took: float, attempts: int, size: int = 0
) -> Outcome:
    """The outcome of a leg whose engine sent this result; `hits` are in `hits`, all else is cleaned in `result`.

    Raises ProtocolViolation unless the result has at least one of the `needed` fields.
    """
    if not any(_there(result, key) for key in needed):
        raise ProtocolViolation(f"the result has no {' and no '.join(repr(key) for key in needed)}")
    hits = type(result.get("hits")) is list
    outcome = answered(engine, result, took, attempts, size) if hits else _told(engine, result, took, attempts, size)
    kept = {key: value for key, value in result.items() if value is not None and key != "hits"}
    malformed = excess = 0
    for key in _LISTS.keys() & kept.keys():
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


def _told(engine: str, result: Mapping[str, Any], took: float, attempts: int, size: int) -> Outcome:
    usage = result.get("usage")
    notes = own_notes(engine, usage.get("notes")) if type(usage) is dict else ()
    return told(engine, result, took, attempts, size)._replace(notes=notes)


def _there(result: Mapping[str, Any], key: str) -> bool:
    return type(result.get(key)) is (str if key == "summary" else list)


def _has_id(member: Any) -> bool:
    return type(member) is dict and is_id(member.get("id"))


def _has_ends(member: Any) -> bool:
    return type(member) is dict and is_id(member.get("src")) and is_id(member.get("dst"))


def _leads_on(member: Any) -> bool:
    """A clue leads on by its query or by its seeds."""
    if type(member) is not dict:
        return False
    seeds = member.get("seedIds")
    return _says(member.get("query")) or (type(seeds) is list and any(is_id(seed) for seed in seeds[:MAX_SEEDS]))


def _seeds(value: Any) -> Any:
    """The first of them that can name something; who has so many cannot make everybody wait while they are read."""
    if type(value) is not list:
        return None
    kept = [seed for seed in value[:MAX_SEEDS] if is_id(seed)]
    return value if len(kept) == len(value) else kept


def _says(member: Any) -> bool:
    return type(member) is str and bool(member.strip())


_LISTS: Mapping[str, Callable[[Any], bool]] = MappingProxyType(
    {"communities": _has_id, "nodes": _has_id, "edges": _has_ends, "followups": _says, "clues": _leads_on}
)
"""Field -> whether a member of it is well formed."""

_PARTS: Mapping[str, Shape] = MappingProxyType(
    {
        "communities": record({"level": whole(0), "summary": text, "score": number}),
        "nodes": record({"score": number}),
        "edges": record({"weight": number}),
        "clues": record({"query": text, "seedIds": _seeds, "weight": number}),
    }
)
"""Field -> what counts of a member of it."""


def _notes(engine: str, malformed: int, excess: int) -> list[str]:
    lines = [f"{engine}: {malformed} malformed part(s) of its answer dropped"] if malformed else []
    return [*lines, f"{engine}: what came after {MAX_HITS} of a kind dropped ({excess})"] if excess else lines
