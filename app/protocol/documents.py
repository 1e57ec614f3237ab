"""Params and results of `index/add` and `index/delete` (RCP §7.10, §7.11), and the idempotency key of a call."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from app.protocol.errors import ProtocolViolation
from app.protocol.filters import json_type
from app.protocol.param_fields import forwardable, is_id, read_flag, refuse, refuse_value

NAMESPACE_END: Final = ":"
"""Between an engine's `idNamespace` and the id of its own."""

DocumentId = str | int | float
"""A string in what is asked; engines may answer with numbers."""


class Addition(NamedTuple):
    """One well-formed `index/add`."""

    documents: Sequence[dict[str, Any]]
    chunk: bool
    contextual: bool
    rest: dict[str, Any]
    """The other params as they were sent."""


class Deletion(NamedTuple):
    """One well-formed `index/delete`."""

    ids: Sequence[DocumentId]
    rest: dict[str, Any]


def read_addition(params: Mapping[str, Any]) -> Addition:
    """Check the params of `index/add`. Raises InvalidParams (-32602)."""
    documents = params.get("documents")
    if type(documents) is not list:
        refuse_value("documents", "an array of documents", documents)
    for index, document in enumerate(documents):
        _check_document(document, f"documents[{index}]")
    plain = [
        {key: value for key, value in document.items() if key != "id" or value is not None} for document in documents
    ]
    return Addition(
        plain, read_flag(params, "chunk"), read_flag(params, "contextual"), forwardable(params, "documents")
    )


def read_deletion(params: Mapping[str, Any]) -> Deletion:
    """Check the params of `index/delete`. Raises InvalidParams (-32602)."""
    ids = params.get("ids")
    if type(ids) is not list:
        refuse_value("ids", "an array of document ids", ids)
    for index, document_id in enumerate(ids):
        _check_id(document_id, f"ids[{index}]")
    return Deletion(ids, forwardable(params, "ids"))


def read_idempotency_key(meta: Mapping[str, Any]) -> str | None:
    """`_meta.idempotencyKey`, with which a call may be sent twice and is done once. Raises InvalidParams (-32602)."""
    key = meta.get("idempotencyKey")
    if key is not None and (type(key) is not str or not key):
        refuse_value("_meta.idempotencyKey", "a non-empty string", key)
    return key


def namespace_in(document_id: DocumentId | None) -> tuple[str, str] | None:
    """(namespace, the rest) of an id that may have one."""
    if type(document_id) is not str or NAMESPACE_END not in document_id:
        return None
    namespace, _, rest = document_id.partition(NAMESPACE_END)
    return (namespace, rest) if namespace and rest else None


def added_ids(result: Mapping[str, Any], count: int) -> list[DocumentId]:
    """The ids of `count` documents that were added, in their order. Raises ProtocolViolation."""
    ids = result.get("ids")
    if type(ids) is not list or len(ids) != count or not all(map(is_id, ids)):
        raise ProtocolViolation(f"the result has no 'ids' with one for each of the {count} documents")
    return ids


def deleted_count(result: Mapping[str, Any]) -> int:
    """How many documents were deleted. Raises ProtocolViolation."""
    deleted = result.get("deleted")
    if type(deleted) is not int or deleted < 0:
        raise ProtocolViolation("the result does not say how many were 'deleted'")
    return deleted


def _check_document(document: Any, path: str) -> None:
    if type(document) is not dict:
        refuse(path, f"'{path}' must be an object with a 'text', not {json_type(document)}")
    if type(document.get("text")) is not str:
        refuse_value(f"{path}.text", "a string", document.get("text"))
    if document.get("id") is not None:
        _check_id(document["id"], f"{path}.id")
    if document.get("meta") is not None and type(document["meta"]) is not dict:
        refuse_value(f"{path}.meta", "an object", document["meta"])


def _check_id(document_id: Any, path: str) -> None:
    if type(document_id) is not str or not document_id:
        refuse_value(path, "a non-empty string", document_id)
