"""The headers of an HTTP request of an MCP client: session, revision, and those that mirror the message."""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable
from typing import Any

from app.api.caller import Caller
from app.api.http_requests import MAX_SESSION, valid_request_id
from app.api.responses import Receive, Scope
from app.api.streaming import EventStream, Send
from app.mcp import messages
from app.mcp.messages import McpError, McpMessage
from app.protocol import envelope, sse
from app.telemetry.tracing import read_trace

VERSION_HEADER = b"mcp-protocol-version"
METHOD_HEADER = b"mcp-method"
NAME_HEADER = b"mcp-name"
SESSION_HEADER = b"mcp-session-id"


class McpRequest:
    """One HTTP request: its headers, and what is known of its message and response so far."""

    __slots__ = (
        "accept",
        "begun",
        "caller",
        "content_type",
        "message_id",
        "receive",
        "request_id",
        "scope",
        "send",
        "sent_id",
        "session",
        "stream",
        "trace",
        "version",
    )

    caller: Caller

    def __init__(self, scope: Scope, receive: Receive, send: Send, new_id: str) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.accept = b""
        self.begun = False  # whether a response without a stream is being sent
        self.content_type = b""
        # First the session that the client sent, later the one that the response assigns.
        self.session: str | None = None
        self.version: str | None = None
        self.message_id: envelope.RequestId = None
        self.stream: EventStream | None = None
        parent = state = b""
        for name, value in scope["headers"]:
            if name == b"accept":
                self.accept = self.accept + b"," + value if self.accept else value
            elif name == b"content-type":
                self.content_type = value
            elif name == VERSION_HEADER:
                self.version = value.decode("latin-1")
            elif name == SESSION_HEADER and len(value) <= MAX_SESSION:
                self.session = value.decode("latin-1")
            elif name == b"traceparent":
                parent = value
            elif name == b"tracestate":
                state = state + b"," + value if state else value
        self.trace = read_trace(parent, state) if parent else None
        if scope.get("http_version") == "1.0":
            # HTTP/1.0 has no chunks, so a client could not distinguish the end of a stream from a broken connection.
            self.accept = b""
        self.sent_id = valid_request_id(scope["headers"])
        self.request_id = self.sent_id or new_id

    @property
    def events_only(self) -> bool:
        """Whether the client accepts an event stream and no JSON."""
        return bool(self.accept) and not sse.accepted(self.accept, sse.JSON_TYPES)


def version_of(request: McpRequest, message: Any) -> str:
    """The revision of a message. Raises McpError for an unsupported one."""
    version = request.version
    if version == messages.MODERN or messages.is_modern(message):
        return messages.MODERN
    if version is None:
        return messages.ASSUMED
    if version not in messages.HANDSHAKE:
        raise messages.unsupported(version)
    return version


def check_mirrored(headers: Iterable[tuple[bytes, bytes]], message: McpMessage) -> None:
    """Since 2026-07-28 headers mirror the message, so that proxies can route it. Raises McpError for a difference."""
    found: dict[bytes, str] = {}
    for name, value in headers:
        if name in (VERSION_HEADER, METHOD_HEADER, NAME_HEADER):
            if name in found:
                raise McpError(messages.HEADER_MISMATCH, f"the header {name.decode()} is given twice")
            found[name] = value.decode("latin-1").strip()
    if message.id is None or messages.VERSION_KEY not in message.meta or messages.CAPABILITIES_KEY not in message.meta:
        # A notification mirrors nothing, and a request without these members is refused later, for that reason.
        return
    expected = {VERSION_HEADER: message.meta[messages.VERSION_KEY], METHOD_HEADER: message.method}
    key = {"tools/call": "name", "resources/read": "uri", "prompts/get": "name"}.get(message.method)
    if key is not None:
        expected[NAME_HEADER] = message.params.get(key)
    for name, value in expected.items():
        if type(value) is str and _decoded(found.get(name)) != value:
            problem = "does not equal the message" if name in found else "is missing"
            raise McpError(messages.HEADER_MISMATCH, f"the header {name.decode()} {problem}")


def _decoded(value: str | None) -> str | None:
    """The value of a header; None if it is malformed. `=?base64?…?=` contains a value outside of visible ASCII."""
    if value is None or not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    digits = value[len("=?base64?") : -len("?=")]
    try:
        decoded = b64decode(digits, validate=True)
        # Only the canonical spelling counts, as for proxies that compare the encoded form.
        return decoded.decode() if b64encode(decoded).decode() == digits else None
    except (Base64Error, UnicodeDecodeError):
        return None
