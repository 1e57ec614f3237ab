"""`rcp-gateway fuse`: fuse given ranked lists as the gateway would, JSON lines in and out. No engine is called."""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import typer

from app.fusion.identity import Identity
from app.fusion.ranked_lists import MAX_WEIGHT, FusionConfig, Method, RankedList, Reading

if TYPE_CHECKING:
    from app.protocol.errors import RcpError

DEFAULT_K = 10

_LINE = ("qid", "k", "options", "engines")
_OPTIONS = ("rrfK", "method", "confidenceWeight", "identity")
_ENGINE = ("hits", "weight", "fetchK", "scoreFloor", "confidence", "priority", "idNamespace")
_METHODS = get_args(Method)
_IDENTITIES = get_args(Identity)
_READINGS = get_args(Reading)


class FuseLine(NamedTuple):
    """One parsed line."""

    k: int
    options: FusionConfig
    lists: list[RankedList]
    notes: list[str]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("fuse")(fuse_lines)


def fuse_lines() -> None:
    """Fuse ranked lists from stdin (JSON lines) and print one result per line, in order.

    In: {"qid", "k", "options": {rrfK, method, confidenceWeight}, "engines": {id: {"hits": [{id, score, confidence?}],
    "weight"?, "fetchK"?, "scoreFloor"?}}}. Out: {"qid", "hits": [{id, score, confidence?, meta}]}.

    For an invalid line the result is an error; the other lines are still processed, and the exit code is 1.
    """
    from app.protocol.envelope import dumps

    if sys.stdin.isatty():
        typer.echo("reading JSON lines from the terminal; press Ctrl-D to end", err=True)
    source, output = sys.stdin.buffer, sys.stdout.buffer
    faulty = False
    for number, line in enumerate(source, 1):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line.strip():
            continue
        answer = answer_line(line, number)
        try:
            written = dumps(answer)
        except TypeError:  # the writer allows less nesting than the parser
            answer = _failed(answer, "the hits' meta is nested too deeply; flatten it", number, "engines")
            written = dumps(answer)
        faulty = faulty or "error" in answer
        output.write(written + b"\n")
        output.flush()  # a program at the other end may wait for each line
    if faulty:
        raise typer.Exit(1)


def answer_line(line: bytes, number: int = 1) -> dict[str, Any]:
    """The result of one line: `{qid?, hits, notes?}` or `{qid?, error}`. Raises nothing."""
    from app.fusion.rrf import fuse
    from app.protocol.envelope import loads
    from app.protocol.errors import InvalidParams, ParseError, RcpError

    answer: dict[str, Any] = {}
    try:
        message = loads(line)
        if type(message) is not dict:
            raise InvalidParams('a line must be an object with "engines": {id: {"hits": [...]}}', field="engines")
        if "qid" in message:
            qid = message["qid"]
            if qid is not None and type(qid) not in (str, int, float):
                raise InvalidParams("'qid' must be a string or a number", field="qid")
            answer["qid"] = qid
        parsed = read_fuse_line(message)
    except ParseError as fault:
        return {"error": _located(ParseError(fault.message.replace("the body", "the line", 1)), number)}
    except RcpError as fault:
        return {**answer, "error": _located(fault, number)}
    fused = fuse(parsed.lists, parsed.options)
    answer["hits"] = [_ranking_fields(hit) for hit in fused.hits(0, parsed.k)]
    notes = [*parsed.notes, *fused.notes]
    return {**answer, "notes": notes} if notes else answer


def _located(fault: "RcpError", number: int) -> dict[str, Any]:
    body = fault.body()
    return {**body, "data": {**body.get("data", {}), "line": number}}


def _failed(answer: Mapping[str, Any], message: str, number: int, field: str) -> dict[str, Any]:
    from app.protocol.errors import InvalidParams

    qid = {"qid": answer["qid"]} if "qid" in answer else {}
    return {**qid, "error": _located(InvalidParams(message, field=field), number)}


def _ranking_fields(hit: Mapping[str, Any]) -> dict[str, Any]:
    """Id, score, confidence and meta of a hit. The caller already has the rest."""
    return {name: hit[name] for name in ("id", "score", "confidence", "meta") if name in hit}


def read_fuse_line(message: Mapping[str, Any]) -> FuseLine:
    """A parsed line as lists to fuse. Unknown keys and malformed hits become notes. Raises InvalidParams."""
    notes: list[str] = []
    _note_unknown(message, _LINE, "", notes)
    k = _whole(message, "k", DEFAULT_K, "k", least=1)
    stated = _object(message.get("options", {}), "options", 'an object such as {"rrfK": 60}')
    _note_unknown(stated, _OPTIONS, "options.", notes)
    options = FusionConfig(
        method=_one_of(stated, "method", _METHODS, "options.method"),
        rrf_k=_whole(stated, "rrfK", FusionConfig().rrf_k, "options.rrfK", least=1),
        confidence_weight=_number(
            stated, "confidenceWeight", FusionConfig().confidence_weight, "options.confidenceWeight", most=1
        ),
        identity=_one_of(stated, "identity", _IDENTITIES, "options.identity"),
    )
    engines = _object(message.get("engines"), "engines", 'an object such as {"docs": {"hits": []}}', required=True)
    lists = [_read_list(engine, stated, notes) for engine, stated in engines.items()]
    return FuseLine(k, options, lists, notes)


def _read_list(engine: str, stated: Any, notes: list[str]) -> RankedList:
    place = f"engines.{engine}"
    stated = _object(stated, place, 'an object such as {"hits": []}', required=True)
    _note_unknown(stated, _ENGINE, f"{place}.", notes)
    hits = stated.get("hits")
    if type(hits) is not list:
        raise _wrong(f"{place}.hits", "an array of hits, best first", hits)
    floor = stated.get("scoreFloor")
    namespace = stated.get("idNamespace")
    if namespace is not None and (type(namespace) is not str or not namespace):
        raise _wrong(f"{place}.idNamespace", "a non-empty string", namespace)
    return RankedList(
        engine,
        _valid_hits(hits, place, notes),
        weight=_number(stated, "weight", 1.0, f"{place}.weight", most=MAX_WEIGHT),
        priority=_whole(stated, "priority", 0, f"{place}.priority"),
        fetch_k=_whole(stated, "fetchK", 0, f"{place}.fetchK", least=0),
        score_floor=None if floor is None else _number(stated, "scoreFloor", 0.0, f"{place}.scoreFloor", least=None),
        confidence=_one_of(stated, "confidence", _READINGS, f"{place}.confidence"),
        namespace=namespace,
    )


def _valid_hits(hits: Sequence[Any], place: str, notes: list[str]) -> list[dict[str, Any]]:
    """The well-formed hits. Malformed ones are dropped with a note, and later ranks move up."""
    valid = []
    faults = []
    for position, hit in enumerate(hits):
        fault = _hit_fault(hit)
        if fault is None:
            valid.append(hit)
        else:
            faults.append(f"hits[{position}] {fault}")
    if faults:
        notes.append(f"{place}: {len(faults)} malformed hit(s) dropped; {faults[0]}")
    return valid


def _hit_fault(hit: Any) -> str | None:
    if type(hit) is not dict:
        return "is not an object"
    if type(hit.get("id")) not in (str, int, float):
        return "has no 'id' that is a string or a number"
    if type(hit.get("score")) not in (int, float):
        return "has no 'score' that is a number"
    return None


def _note_unknown(found: Mapping[str, Any], known: Sequence[str], prefix: str, notes: list[str]) -> None:
    from difflib import get_close_matches

    for key in found:
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"allowed: {', '.join(known)}"
            notes.append(f"{prefix}{key}: unknown, ignored; {hint}")


def _object(value: Any, field: str, example: str, *, required: bool = False) -> Mapping[str, Any]:
    if value is None and not required:
        return {}
    if type(value) is not dict:
        raise _wrong(field, example, value)
    return value


def _whole(found: Mapping[str, Any], key: str, default: int, field: str, *, least: int | None = None) -> int:
    value = found.get(key)
    if value is None:
        return default
    if type(value) is not int or (least is not None and value < least):
        raise _wrong(field, "an integer" if least is None else f"an integer of at least {least}", value)
    return value


def _number(
    found: Mapping[str, Any],
    key: str,
    default: float,
    field: str,
    *,
    least: float | None = 0,
    most: float | None = None,
) -> float:
    value = found.get(key)
    if value is None:
        return default
    outside = type(value) in (int, float) and (
        (least is not None and value < least) or (most is not None and value > most)
    )
    if type(value) not in (int, float) or outside:
        bounds = "" if least is None else f" of at least {least:g}" if most is None else f" from {least:g} to {most:g}"
        raise _wrong(field, f"a number{bounds}", value)
    return float(value)


def _one_of(found: Mapping[str, Any], key: str, allowed: tuple[Any, ...], field: str) -> Any:
    """The value of a choice; the first allowed value is the default."""
    value = found.get(key)
    if value is None:
        return allowed[0]
    if type(value) is not str or value not in allowed:
        raise _wrong(field, "one of " + ", ".join(allowed), value)
    return value


def _wrong(field: str, wanted: str, found: Any) -> Exception:
    from app.protocol.envelope import dumps
    from app.protocol.errors import InvalidParams

    kinds = {type(None): "nothing", list: "an array", dict: "an object"}
    shown = kinds.get(type(found)) or dumps(found).decode()
    return InvalidParams(f"'{field}' must be {wanted}, not {shown:.60}", field=field)
