"""One HTTP request and its response, as the ASGI application sees them: `receive` and `send`."""

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any, Protocol

from app.telemetry.logs import logger

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Application = Callable[..., Awaitable[None]]

SMALL_REST = 65_536
"""If a request is answered before its body has arrived, a rest announced as no longer than this is read and dropped.
For a longer one the connection is closed."""

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}

_BAD_NAME = re.compile(rb'[\x00-\x20\x7f-\xff()<>@,;:\\"/\[\]?={}]')
_BAD_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class Channel(Protocol):
    """What a request needs of the connection it came on."""

    transport: Any
    write_paused: bool

    def default_lines(self) -> bytes:
        """Header lines of every answer."""
        ...

    async def writable(self) -> None:
        """Wait until the caller has read enough for more to be written."""
        ...

    def body_taken(self, size: int) -> None:
        """The application took `size` bytes of a body, or they were dropped."""
        ...

    def response_complete(self, request: "RequestResponse") -> None:
        """The answer to this request was written."""
        ...


class RequestResponse:
    """Created when the head of a request was read; the body is fed by the connection as it arrives."""

    __slots__ = (
        "_begun",
        "_channel",
        "_chunked",
        "_event_stream",
        "_expects_continue",
        "_news",
        "_pieces",
        "_remaining",
        "_task",
        "_unread",
        "_waiting",
        "content_length",
        "disconnected",
        "keep_alive",
        "more_body",
        "refused",
        "response_complete",
        "response_started",
        "scope",
    )

    def __init__(
        self, channel: Channel, scope: Scope, *, keep_alive: bool, content_length: int | None, expects_continue: bool
    ) -> None:
        """`content_length` is None for a body in chunks. `expects_continue`: the caller waits for a 100."""
        self.scope = scope
        self.keep_alive = keep_alive
        self.content_length = content_length
        self.more_body = True
        self.disconnected = False
        """The connection is lost, or what came on it could not be read; nothing is written any more."""
        self.refused = False
        """It was answered 503."""
        self.response_started = False
        self.response_complete = False
        self._channel = channel
        self._expects_continue = expects_continue
        self._pieces: list[bytes] = []
        self._unread = 0
        self._news = False
        self._waiting: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._begun = False
        self._chunked = False
        self._event_stream = False
        self._remaining: int | None = None

    # Called by the connection.

    def start(self, app: Application, loop: asyncio.AbstractEventLoop) -> "asyncio.Task[None]":
        """Let the application answer."""
        self._task = loop.create_task(self.run_asgi(app))
        return self._task

    def feed(self, piece: bytes) -> None:
        """A piece of the body arrived."""
        self._pieces.append(piece)
        self._unread += len(piece)
        self._wake()

    def end_body(self) -> None:
        """The last byte of the request arrived."""
        self.more_body = False
        self._wake()

    def disconnect(self) -> None:
        """Nothing can be answered any more; the application is told by `http.disconnect`."""
        self.disconnected = True
        if self._task is not None and not self._begun:
            self._task.cancel()  # what could not be read is not served at all
        self._wake()

    @property
    def rest_is_long(self) -> bool:
        """Whether what is still to come of the body may be longer than `SMALL_REST`."""
        return self.content_length is None or self.content_length > SMALL_REST

    def probe_caller(self) -> None:
        """Send something that an HTTP client ignores. If the caller is gone, its kernel answers with a reset."""
        if self.disconnected or self.response_complete:
            return
        if not self.response_started:
            if self.scope["http_version"] == "1.1":
                self._channel.transport.write(CONTINUE)  # a client must be able to parse any 1xx (RFC 9110 §15.2)
        elif self._event_stream and self._chunked:
            self._channel.transport.write(b"3\r\n:\n\n\r\n")  # a comment between two events

    # Called by the application.

    async def receive(self) -> Message:
        """The next piece of the body, or `http.disconnect`."""
        if self._expects_continue:
            self._expects_continue = False
            if not self._pieces and self.more_body and not self.response_started and not self.disconnected:
                self._channel.transport.write(CONTINUE)
        while not (self._news or self.disconnected or self.response_complete):
            if self._waiting is None:
                self._waiting = asyncio.Event()
            self._waiting.clear()
            await self._waiting.wait()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        self._news = False
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._drop_body()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: Message) -> None:
        """Write a part of the response: `http.response.start` or `http.response.body`."""
        while self._channel.write_paused and not self.disconnected:
            await self._channel.writable()
        if self.disconnected:
            return
        if not self.response_started:
            if message["type"] != "http.response.start":
                raise RuntimeError(f"expected http.response.start, not {message['type']}")
            self._send_head(message["status"], message.get("headers", ()))
        elif not self.response_complete:
            if message["type"] != "http.response.body":
                raise RuntimeError(f"expected http.response.body, not {message['type']}")
            self._send_body(message.get("body", b""), message.get("more_body", False))
        else:
            raise RuntimeError(f"unexpected {message['type']} after the response was complete")

    def answer_at_once(self, lines: bytes, body: bytes, status: int = 200) -> bool:
        """Write a whole response in one system call; False if it has to be sent as events. Not for HEAD.

        `lines`: header lines, each with its end, free of anything a caller sent.
        """
        if self.disconnected or self.response_started or self._channel.write_paused:
            return False
        self.response_started = True
        self.refused = status == 503
        closing = b"" if self.keep_alive else b"connection: close\r\n"
        head = b"%b%b%b%bcontent-length: %d\r\n\r\n" % (
            *(STATUS_LINES[status], self._channel.default_lines(), lines, closing),
            len(body),
        )
        self._channel.transport.write_now(head + body)
        self._complete()
        return True

    def abort(self) -> None:
        """Drop the connection without sending the rest of the response."""
        if not self.disconnected:  # else it may be lingering with an answer that has to reach the caller
            self._channel.transport.abort()

    # Inside.

    async def run_asgi(self, app: Application) -> None:
        self._begun = True
        try:
            await app(self.scope, self.receive, self.send)
        except asyncio.CancelledError:
            self._end_badly()
            raise
        except Exception:  # noqa: BLE001 - the edge of a request: whatever went wrong ends this one only
            logger().exception("request_failed", path=self.scope["path"])
            self._end_badly()
        else:
            if not self.response_complete and not self.disconnected:
                logger().error("response_incomplete", path=self.scope["path"])
                self._end_badly()
        finally:
            self._task = None

    def _end_badly(self) -> None:
        """The application has ended without a whole response: answer 500 if nothing was sent, else break off."""
        if self.disconnected or self.response_complete:
            return
        if self.response_started:
            self._channel.transport.close()
            return
        self.keep_alive = False
        self._send_head(500, ((b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"21")))
        self._send_body(b"Internal Server Error", more=False)

    def _send_head(self, status: int, headers: Any) -> None:
        lines = [STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status, self._channel.default_lines()]
        closing = chunked = False
        for name, value in headers:
            if _BAD_NAME.search(name) or _BAD_VALUE.search(value):
                raise RuntimeError(f"the header {name!r} cannot be sent")
            name = name.lower()
            if name == b"content-length":
                self._remaining = int(value)
            elif name == b"transfer-encoding":
                chunked = value.lower() == b"chunked"
            elif name == b"connection":
                closing = closing or b"close" in [token.strip() for token in value.lower().split(b",")]
            elif name == b"content-type":
                self._event_stream = value.startswith(b"text/event-stream")
            lines += (name, b": ", value, b"\r\n")
        if closing:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close\r\n")
        bodiless = self.scope["method"] == "HEAD" or status in (204, 304)
        if self._remaining is None and not chunked and not bodiless:
            chunked = self.scope["http_version"] == "1.1"  # for HTTP/1.0 the end of the connection ends the body
            if chunked:
                lines.append(b"transfer-encoding: chunked\r\n")
        if bodiless:
            self._remaining, chunked = 0, False
        self._chunked = chunked
        lines.append(b"\r\n")
        self.response_started = True
        self.refused = status == 503
        self._channel.transport.write(b"".join(lines))

    def _send_body(self, body: bytes, more: bool) -> None:
        if self._chunked:
            if body:
                body = b"%x\r\n%b\r\n" % (len(body), body)
            if not more:
                body += b"0\r\n\r\n"
        elif self.scope["method"] == "HEAD":
            body = b""
        elif self._remaining is not None:
            self._remaining -= len(body)
            if self._remaining < 0 or (self._remaining and not more):
                raise RuntimeError("the body of the response has another length than its Content-Length")
        if body:
            self._channel.transport.write(body)
        if not more:
            self._complete()

    def _complete(self) -> None:
        self.response_complete = True
        self._drop_body()
        self._wake()
        self._channel.response_complete(self)

    def _drop_body(self) -> None:
        if self._pieces:
            size, self._unread = self._unread, 0
            self._pieces = []
            self._channel.body_taken(size)

    def _wake(self) -> None:
        self._news = True
        if self._waiting is not None:
            self._waiting.set()

    def __repr__(self) -> str:
        state = "answered" if self.response_complete else "being answered" if self.response_started else "received"
        return f"<RequestResponse {self.scope.get('path')} {state}>"
