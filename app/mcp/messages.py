"""MCP messages: what is a message, in which revision of MCP it is, and the errors of the protocol.

Two kinds of revision are supported: 2026-07-28, in which each request describes itself, and the earlier ones, which
begin with `initialize`.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from app.mcp.tool_definitions import EXTENSION
from app.protocol import envelope
from app.protocol.errors import InvalidParams

Json = dict[str, Any]

MODERN: Final = "2026-07-28"
"""The revision in which each request is self-contained."""

HANDSHAKE: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""The revisions that begin with `initialize`, oldest first; 2024-11-05 without its HTTP+SSE transport."""

ASSUMED: Final = "2025-03-26"
"""The revision of an HTTP request that names none; later ones require the header."""

BATCHES: Final = "2025-03-26"
"""The only revision with JSON-RPC batches."""

LINKS_SINCE: Final = "2025-06-18"
"""The first revision with content of the type `resource_link`; clients of earlier ones reject it."""

_META: Final = "io.modelcontextprotocol/"
VERSION_KEY: Final = _META + "protocolVersion"
CAPABILITIES_KEY: Final = _META + "clientCapabilities"
SERVER_KEY: Final = _META + "serverInfo"

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL = -32700, -32600, -32601, -32602, -32603
HEADER_MISMATCH, EXTENSION_NEEDED, VERSION_UNSUPPORTED, RESOURCE_NOT_FOUND = -32020, -32021, -32022, -32002
CANCELLED_CODE: Final = -32800

CANCELLED: Final = "notifications/cancelled"
"""How a request is cancelled, except over HTTP since 2026-07-28: there the client closes the connection."""


class McpError(Exception):
    """An error of the protocol, as opposed to a tool result with `isError`."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    def body(self, message_id: envelope.RequestId) -> bytes:
        """The JSON-RPC response."""
        error: Json = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return envelope.dumps({"jsonrpc": "2.0", "id": envelope.written_id(message_id), "error": error})


class McpMessage(NamedTuple):
    """One message of a client: a request, or a notification, which has no id."""

    method: str
    params: Json
    id: envelope.RequestId
    version: str
    """The revision it is in."""

    @property
    def modern(self) -> bool:
        return self.version == MODERN

    @property
    def meta(self) -> Mapping[str, Any]:
        meta = self.params.get("_meta")
        return meta if type(meta) is dict else {}


def is_modern(message: Any) -> bool:
    """Whether a parsed message describes itself, as since 2026-07-28. Earlier clients never send this key."""
    params = message.get("params") if type(message) is dict else None
    meta = params.get("_meta") if type(params) is dict else None
    # The key alone decides: an invalid version has to be refused as such, not read as an earlier revision.
    return type(meta) is dict and VERSION_KEY in meta


def id_of(message: Any) -> envelope.RequestId:
    """The id of a parsed message, for an error about it; None if it has none, or one that MCP does not allow."""
    sent = message.get("id") if type(message) is dict else None
    return sent if type(sent) is str or envelope.is_integer_id(sent) else None


def read_message(message: Any, version: str) -> McpMessage:
    """A parsed message. Raises McpError."""
    if type(message) is not dict or message.get("jsonrpc") != "2.0":
        raise McpError(INVALID_REQUEST, "a message is a JSON object with 'jsonrpc': \"2.0\"")
    method, params = message.get("method"), message.get("params")
    if type(method) is not str or not method:
        raise McpError(INVALID_REQUEST, "'method' must be a string")
    message_id = id_of(message)
    # MCP is stricter than JSON-RPC: null and fractions cannot be matched to an answer by every client.
    if "id" in message and message_id is None:
        raise McpError(INVALID_REQUEST, "'id' must be a string or an integer")
    # The parser has marked params that contain half a surrogate pair, or that are nested too deeply.
    try:
        envelope.check_params(params)
    except InvalidParams as fault:
        raise McpError(INVALID_PARAMS, fault.message) from None
    if params is not None and type(params) is not dict:
        raise McpError(INVALID_PARAMS, "'params' must be an object")
    return McpMessage(method, params or {}, message_id, version)


def unsupported(version: str) -> McpError:
    """The error for an unsupported revision."""
    return McpError(
        VERSION_UNSUPPORTED,
        f"this revision is not supported: requests that describe themselves must use {MODERN}, and "
        f"{', '.join(HANDSHAKE)} begin with 'initialize'",
        {"supported": [MODERN], "requested": version[:100]},
    )


def check_described(message: McpMessage) -> None:
    """Raises McpError for a request without the members that are required since 2026-07-28."""
    meta = message.meta
    missing = [key for key in (VERSION_KEY, CAPABILITIES_KEY) if key not in meta]
    if missing:
        raise McpError(INVALID_PARAMS, f"'params._meta' lacks {' and '.join(missing)}")
    version = meta[VERSION_KEY]
    if type(version) is not str:
        raise McpError(INVALID_PARAMS, f"'params._meta.{VERSION_KEY}' must be a string")
    if version != MODERN:
        raise unsupported(version)
    if type(meta[CAPABILITIES_KEY]) is not dict:
        raise McpError(INVALID_PARAMS, f"'params._meta.{CAPABILITIES_KEY}' must be an object")


def declares_extension(message: McpMessage) -> bool:
    """Whether this request declares our extension; before 2026-07-28 requests do not describe their client."""
    capabilities = message.meta.get(CAPABILITIES_KEY) if message.modern else None
    extensions = capabilities.get("extensions") if type(capabilities) is dict else None
    return type(extensions) is dict and EXTENSION in extensions
