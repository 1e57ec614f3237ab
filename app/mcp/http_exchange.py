"""One HTTP exchange at the MCP door: its names, what has been sent, and when a caller that does not read is given up.

It hands out the session that clients before 2026-07-28 call requests off in: a name that nobody guesses, which is kept
nowhere and good at every replica. It refuses to know who is answered, and what.
"""

import asyncio
from collections.abc import Callable, Iterable, MutableMapping
from secrets import token_hex
from types import TracebackType
from typing import Any

from app.api.rpc import MAX_SESSION, sane_request_id
from app.api.streaming import Send
from app.telemetry.logs import logger

VERSION = b"mcp-protocol-version"
MODERN_VERSION = b"2026-07-28"
SESSION = b"mcp-session-id"


class McpHttpExchange:
    """Made in the task that serves the request; used as a context, it swallows the end that it has made itself."""

    __slots__ = (
        "_ended",
        "_events",
        "_handed_out",
        "_line",
        "_over",
        "_send",
        "_size",
        "_task",
        "_timeout",
        "begun",
        "given_up",
        "message_id",
        "request_id",
        "scope",
        "sent_id",
        "session",
    )

    def __init__(self, scope: MutableMapping[str, Any], send: Send, timeout: float, new_id: Callable[[], str]) -> None:
        """`timeout`: seconds that a caller may take to make room for the next piece of its answer."""
        self.scope = scope
        self.begun = False
        self._ended = False
        self._events = False
        self._size = 0
        self._line: dict[str, Any] | None = None
        self._over = False
        self.given_up = False
        self.message_id: str | int | None = None
        """Of the message that is being answered; noted by whoever reads it."""
        self.sent_id = sane_request_id(scope["headers"])
        self.request_id = self.sent_id or new_id()
        self._handed_out = False
        self.session = self._session_of(scope["headers"])
        self._send = send
        self._timeout = timeout
        self._task = asyncio.current_task()

    async def send(self, event: MutableMapping[str, Any]) -> None:
        """ASGI's send. A caller that makes no room in time is given up: its task is cancelled."""
        if event["type"] == "http.response.start":
            self.begun = True
            self._events = dict(event.get("headers", ())).get(b"content-type", b"").startswith(b"text/event-stream")
            told = [*event.get("headers", ()), (b"x-request-id", self.request_id.encode())]
            if self._handed_out and self.session is not None and event["status"] == 200:
                told.append((SESSION, self.session.encode("latin-1")))
            event = {**event, "headers": told}
        else:
            self._ended = not event.get("more_body", False)
            self._size += len(event.get("body", b""))
        try:
            async with asyncio.timeout(self._timeout):
                await self._send(event)
        except TimeoutError:
            self._give_up()
            raise

    @property
    def broken_off(self) -> bool:
        """Whether an answer began that was not sent to its end."""
        return self.begun and not self._ended

    async def answer(self, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
        """A whole answer of JSON; the last message of a stream of events that has begun; else nothing."""
        if self.begun:
            if self._events and not self._ended:
                last = b"event: message\r\ndata: %b\r\n\r\n" % body
                await self.send({"type": "http.response.body", "body": last, "more_body": False})
            return
        told = [*headers, (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await self.send({"type": "http.response.start", "status": status, "headers": told})
        sent = b"" if self.scope["method"] == "HEAD" else body
        await self.send({"type": "http.response.body", "body": sent})

    def _session_of(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """What the client names, if it does; a client that names no version yet, as with `initialize`, is given one."""
        named = dict(headers)
        version, session = named.get(VERSION), named.get(SESSION)
        if version == MODERN_VERSION or (session is not None and len(session) > MAX_SESSION):
            return None
        if session is None and version is None:
            session = token_hex(16).encode()
            self._handed_out = True
        return None if session is None else session.decode("latin-1")

    def note(self, line: dict[str, Any]) -> None:
        """What the log is to be told of the message: once its answer is sent, if that has not ended before."""
        self._line = line
        if self._over:
            self.tell()

    def tell(self) -> None:
        """The exchange is over; leave the line of its message, if one was read, with the bytes of the answer."""
        self._over = True
        if self._line is not None:
            logger().info("mcp", **self._line, bytes=self._size)
            self._line = None

    def _give_up(self) -> None:
        if not self.given_up:
            self.given_up = True
            logger().warning("slow_caller", request_id=self.request_id)
            if self._task is not None:
                self._task.cancel()

    def __enter__(self) -> "McpHttpExchange":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not self.given_up or kind is None:
            return False
        return kind is asyncio.CancelledError and self._task is not None and self._task.uncancel() == 0

    def __repr__(self) -> str:
        state = "given up" if self.given_up else "answering" if self.begun else "not begun"
        return f"<Exchange {self.request_id} {state}>"
