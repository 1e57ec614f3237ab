"""Sends complete responses: in one call if the server supports that, else as ASGI's two events."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from app.api.caller import ANSWER_AT_ONCE
from app.api.probes import PROBES
from app.api.streaming import Send
from app.protocol import envelope
from app.protocol.errors import NotFound, RateLimited

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

RETRY_AFTER = (b"retry-after", b"1")
CLOSE = (b"connection", b"close")


def send_at_once(scope: Scope, body: bytes, request_id: str) -> bool:
    """Send a response of status 200 in one call; False if the server does not take it, see ANSWER_AT_ONCE.

    `request_id` becomes a header without being checked: it must be generated, or come from `valid_request_id`.
    """
    # Two ASGI events with dicts and header tuples cost more CPU time per answer.
    answer_at_once = (scope.get("extensions") or {}).get(ANSWER_AT_ONCE)
    if answer_at_once is None:
        return False
    done: bool = answer_at_once(b"x-request-id: %b\r\ncontent-type: application/json\r\n" % request_id.encode(), body)
    return done


async def send_answer(
    send: Send, status: int, body: bytes | None, request_id: str, *headers: tuple[bytes, bytes]
) -> None:
    """Send a whole response; a `body` of None is a 204."""
    head = [(b"x-request-id", request_id.encode()), *headers] if request_id else [*headers]
    if body is None:
        status, body = 204, b""
    else:
        head += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """The response for an unknown path: 404 with a JSON-RPC body (RCP §5.2)."""
    fault = NotFound("no such path; send RCP requests to POST /rcp, /rcp/{method} or /engines/{id}/rcp")
    await send_answer(send, 404, envelope.failure(None, fault), "")


def only_probes(app: Asgi) -> Asgi:
    """An application for connections beyond the limit: the probes of `app`, and 503 for all other paths."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in PROBES:
            await app(scope, receive, send)
            return
        # The connection is closed, so that it does not keep others out.
        fault = RateLimited("the gateway has reached its limit of connections", retryable=True, retryAfterMs=1000)
        await send_answer(send, 503, envelope.failure(None, fault), "", RETRY_AFTER, CLOSE)

    return serve
