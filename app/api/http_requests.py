"""What the HTTP endpoints of RCP and MCP share: reading the body and the request id, and errors of the connection."""

import re
from collections.abc import Iterable

from app.api.disconnects import ClientDisconnected
from app.api.responses import Receive
from app.protocol.errors import BackendUnavailable, InvalidRequest, Unauthorized

MAX_SESSION = 256
"""Longest session header in bytes; a longer one is ignored."""

SHUTDOWN_ERROR_SECONDS = 1.0
"""Most seconds to send the error to a caller whose request is cut off by shutdown."""

SHUTTING_DOWN = BackendUnavailable("the gateway is shutting down", retryable=True)
REVOKED = Unauthorized("the credential is no longer valid")
CHALLENGE = (b"www-authenticate", b'Bearer realm="rcp", error="invalid_token"')

# A small compressed body can be huge in memory, and is not worth it for queries.
COMPRESSED = InvalidRequest("compressed request bodies are not accepted")

# Safe in a log line and in a response header.
VALID_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


async def read_whole_body(receive: Receive, most: int) -> bytes | None:
    """The whole body, or None as soon as it is longer than `most` bytes. Raises ClientDisconnected."""
    event = await receive()
    if event["type"] == "http.disconnect":
        raise ClientDisconnected
    body: bytes = event.get("body", b"")
    if not event.get("more_body", False):
        return body if len(body) <= most else None
    parts = [body]
    size = len(body)
    while event.get("more_body", False):
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ClientDisconnected
        parts.append(event.get("body", b""))
        size += len(parts[-1])
        if size > most:
            return None
    return b"".join(parts)


def valid_request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The caller's `X-Request-ID` if it is safe for logs and headers; else empty."""
    for name, value in headers:
        if name == b"x-request-id":
            sent = value.decode("latin-1")
            return sent if VALID_REQUEST_ID.fullmatch(sent) else ""
    return ""
