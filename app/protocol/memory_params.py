"""What a caller may send with `memory/build` and `memory/recall` (RCP §7.17).

Decides what is malformed whatever the capabilities (-32602 with the field). It refuses to know engines, and what a
memory's name means.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from app.protocol.errors import OptionUnsupported
from app.protocol.id_params import check_id, read_session
from app.protocol.param_errors import refuse, refuse_value, shown
from app.protocol.param_fields import forwardable, read_count, read_text, required_text

SCOPES: Final = ("global", "session")
MAX_DOCUMENTS: Final = 10_000
"""Documents of one `memory/build`; the size of the request bounds them further."""


class BuildParams(NamedTuple):
    """One well-formed `memory/build`."""

    memory_id: str | None
    scope: str | None
    raw: dict[str, Any]
    """What goes to the engine as it is."""


class RecallParams(NamedTuple):
    """One well-formed `memory/recall`."""

    memory_id: str | None
    session_id: str | None
    n: int | None
    raw: dict[str, Any]
    """What goes to every engine as it is."""


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
