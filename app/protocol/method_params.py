"""Params of `query/transform`, `graph`, `feedback` and `memory/*` (RCP §7.8, §7.9, §7.16, §7.17).

Each reader refuses what is malformed whatever the engines advertise (-32602 with the field), and values that RCP does
not define (-32005).
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from app.protocol.errors import OptionUnsupported, ProtocolViolation
from app.protocol.param_fields import (
    Id,
    check_id,
    forwardable,
    read_count,
    read_ids,
    read_level,
    read_session,
    read_text,
    refuse,
    refuse_value,
    required_text,
    shown,
)
from app.protocol.validators import reshaped, text

MAX_VARIANTS: Final = 8
"""Largest `n` sent to engines; larger values are clamped, as `k` is."""


class Transform(NamedTuple):
    """One well-formed `query/transform`: its method, and the params sent to an engine."""

    method: str
    sent: dict[str, Any]


def read_transform(params: Mapping[str, Any]) -> Transform:
    """Check the params. Raises InvalidParams (-32602)."""
    required_text(params, "query")
    method = required_text(params, "method")
    variants = read_count(params, "n")
    sent = forwardable(params)
    if variants is not None:
        sent["n"] = min(variants, MAX_VARIANTS)
    return Transform(method, sent)


def transformed(result: dict[str, Any]) -> dict[str, Any]:
    """`result` without a malformed `hypothetical`. Raises ProtocolViolation if it has no queries."""
    queries = result.get("queries")
    if type(queries) is not list or not all(type(query) is str for query in queries):
        raise ProtocolViolation("the result has no 'queries' array of strings")
    return reshaped(result, {"hypothetical": text})


OPS: Final = ("local", "global", "drift", "communities", "neighbors")
MAX_HOPS: Final = 5
"""Limit of `hops`: the nodes reached grow exponentially with it."""

_ADAPTED: Final = ("k", "seedIds", "hops", "sessionId", "cursor")


class GraphParams(NamedTuple):
    """One well-formed `graph`."""

    op: str
    k: int | None
    seeds: list[Id] | None
    hops: int | None
    """Within MAX_HOPS."""
    session_id: str | None
    raw: dict[str, Any]
    """Params sent to every engine unchanged."""
    notes: tuple[str, ...] = ()


def read_graph(params: Mapping[str, Any]) -> GraphParams:
    """Check the params of `graph`; more than MAX_HOPS are lowered, with a note.

    Raises InvalidParams (-32602) for what is malformed, OptionUnsupported (-32005) for an `op` that RCP does not know.
    """
    op = required_text(params, "op")
    if op not in OPS:
        raise OptionUnsupported(f"'op' must be one of {', '.join(OPS)}, not {shown(op)}", option="op")
    read_text(params, "query")
    read_level(params)
    seeds = read_ids(params, "seedIds")
    if op == "neighbors" and seeds is None:
        refuse("seedIds", "'seedIds' is required for neighbors: an array of ids")
    hops = read_count(params, "hops")
    notes: tuple[str, ...] = ()
    if hops is not None and hops > MAX_HOPS:
        notes = (f"hops: at most {MAX_HOPS} are walked, not {hops}",)
        hops = MAX_HOPS
    raw = forwardable(params, *_ADAPTED)
    return GraphParams(op, read_count(params, "k"), seeds, hops, read_session(params), raw, notes)


MAX_SIGNALS: Final = 1000
"""Signals of one `feedback`."""

FLAGS: Final = ("used", "cited", "helpful", "poisonSuspected", "injectionSuspected")


class FeedbackParams(NamedTuple):
    """One well-formed `feedback`."""

    signals: list[dict[str, Any]]
    """Without nulls; unknown fields are kept."""
    session_id: str | None
    raw: dict[str, Any]
    """Params sent to every engine unchanged."""


def read_feedback(params: Mapping[str, Any]) -> FeedbackParams:
    """Check the params of `feedback`. Raises InvalidParams (-32602)."""
    sent = params.get("signals")
    if type(sent) is not list or len(sent) > MAX_SIGNALS:
        refuse("signals", f"'signals' must be an array of at most {MAX_SIGNALS} objects with a 'hitId'")
    signals = [_signal(signal, f"signals[{index}]") for index, signal in enumerate(sent)]
    read_text(params, "query")
    return FeedbackParams(signals, read_session(params), forwardable(params, "signals", "sessionId"))


def _signal(signal: Any, name: str) -> dict[str, Any]:
    if type(signal) is not dict:
        refuse_value(name, "an object with a 'hitId'", signal)
    said = {key: value for key, value in signal.items() if value is not None}
    check_id(said.get("hitId"), f"{name}.hitId")
    for flag in FLAGS:
        if type(said.get(flag, False)) is not bool:
            refuse_value(f"{name}.{flag}", "true or false", said[flag])
    reward = said.get("reward", 0)
    if type(reward) not in (int, float) or not -1 <= reward <= 1:
        refuse_value(f"{name}.reward", "a number from -1 to 1", reward)
    return said


SCOPES: Final = ("global", "session")
MAX_DOCUMENTS: Final = 10_000
"""Documents of one `memory/build`; the size of the request bounds them further."""


class BuildParams(NamedTuple):
    """One well-formed `memory/build`."""

    memory_id: str | None
    scope: str | None
    raw: dict[str, Any]
    """Params sent to the engine unchanged."""


class RecallParams(NamedTuple):
    """One well-formed `memory/recall`."""

    memory_id: str | None
    session_id: str | None
    n: int | None
    raw: dict[str, Any]
    """Params sent to every engine unchanged."""


def read_build(params: Mapping[str, Any]) -> BuildParams:
    """Check the params of `memory/build`. Raises InvalidParams (-32602), OptionUnsupported (-32005) for a `scope` that
    RCP does not know."""
    documents = params.get("documents")
    if documents is not None:
        _check_documents(documents)
    scope = read_text(params, "scope")
    if scope is not None and scope not in SCOPES:
        raise OptionUnsupported(f"'scope' must be one of {', '.join(SCOPES)}, not {shown(scope)}", option="scope")
    return BuildParams(read_text(params, "memoryId"), scope, forwardable(params, "memoryId"))


def read_recall(params: Mapping[str, Any]) -> RecallParams:
    """Check the params of `memory/recall`. Raises InvalidParams (-32602)."""
    required_text(params, "query")
    raw = forwardable(params, "memoryId", "sessionId")
    return RecallParams(read_text(params, "memoryId"), read_session(params), read_count(params, "n"), raw)


def _check_documents(documents: Any) -> None:
    if type(documents) is not list or len(documents) > MAX_DOCUMENTS:
        refuse("documents", f"'documents' must be an array of at most {MAX_DOCUMENTS} objects with a 'text'")
    for index, document in enumerate(documents):
        name = f"documents[{index}]"
        if type(document) is not dict:
            refuse_value(name, "an object with a 'text'", document)
        if type(document.get("text")) is not str:
            refuse_value(f"{name}.text", "a string", document.get("text"))
        if document.get("id") is not None:
            check_id(document["id"], f"{name}.id")
