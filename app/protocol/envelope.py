"""JSON-RPC 2.0 as RCP §4 and §11 frame it: bytes to requests, results and errors to bytes.

The only module that knows orjson. It decides what is a request, a notification or neither, and refuses to know what any
method means.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from app.protocol.errors import InvalidRequest, ParseError, RcpError

MAX_EXACT_ID = 2**63


@dataclass(frozen=True, slots=True)
class Request:
    """One message to act on. `params` is always an object; `notification` messages are never answered."""

    method: str
    params: dict[str, Any]
    id: str | int | float | None = None
    notification: bool = False


def loads(body: bytes | bytearray | memoryview | str) -> Any:
    """Parse JSON, strictly: no NaN, no Infinity, no BOM, UTF-8 only.

    Raises ParseError (-32700) with the position of the fault.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as fault:
        raise ParseError(f"the body is not JSON: {fault}") from None


def dumps(value: Any) -> bytes:
    """Compact JSON bytes. Raises TypeError for what JSON cannot say."""
    return orjson.dumps(value)


def read_request(message: Any) -> Request:
    """One member of the wire made a Request (RCP §4.1, §4.5, §5.2).

    Without `jsonrpc` and `id` it is the compact envelope: answered, with `id: null`.
    Raises InvalidRequest (-32600).
    """
    if type(message) is not dict:
        raise InvalidRequest("a request is a JSON object")
    method = message.get("method")
    if type(method) is not str or not method:
        raise InvalidRequest("'method' must be a non-empty string", field="method")
    version = message.get("jsonrpc")
    if version is None:
        if "jsonrpc" in message or "id" in message:
            raise InvalidRequest("'jsonrpc' must be \"2.0\"", field="jsonrpc")
    elif version != "2.0":
        raise InvalidRequest("'jsonrpc' must be \"2.0\"", field="jsonrpc")
    params = message.get("params")
    if params is None:
        params = {}
    elif type(params) is not dict:
        raise InvalidRequest("'params' must be an object", field="params")
    if "id" in message:
        return Request(method, params, _checked_id(message["id"]))
    return Request(method, params, None, version is not None)


def recover_id(message: Any) -> str | int | float | None:
    """The id that an error about a malformed request may still echo; None if there is none to trust."""
    candidate = message.get("id") if type(message) is dict else None
    return candidate if type(candidate) in (str, int, float) else None


def _checked_id(candidate: Any) -> str | int | float:
    if type(candidate) is str or type(candidate) is int:
        return candidate
    if type(candidate) is float and abs(candidate) < MAX_EXACT_ID:
        return candidate
    raise InvalidRequest("'id' must be a string or a number that survives a round trip", field="id")


def success(request_id: str | int | float | None, result: Mapping[str, Any]) -> bytes:
    """The response bytes for a result (RCP §4.2)."""
    return orjson.dumps({"jsonrpc": "2.0", "id": request_id, "result": result})


def failure(request_id: str | int | float | None, error: RcpError) -> bytes:
    """The response bytes for an error (RCP §4.3)."""
    return orjson.dumps({"jsonrpc": "2.0", "id": request_id, "error": error.body()})


def encode_call(call_id: int, method: str, params: Mapping[str, Any]) -> bytes:
    """A request of ours to an engine."""
    return orjson.dumps({"jsonrpc": "2.0", "id": call_id, "method": method, "params": params})


def encode_notification(method: str, params: Mapping[str, Any]) -> bytes:
    """A notification of ours: no `id`, never answered."""
    return orjson.dumps({"jsonrpc": "2.0", "method": method, "params": params})
