"""One keep-alive HTTP/1.1 connection to an engine, with one request at a time, on the `httptools` parser.

Finds where a response begins and ends, and whether the connection can carry another request.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from app.engines.http.body import ResponseBody
from app.engines.http.endpoint import reason_of
from app.engines.http.exchange import HttpExchange
from app.engines.transport import ConnectionLost, Content
from app.protocol.errors import LegError, ProtocolViolation, TlsFailed
from app.resilience.byte_budget import HELD, HeldBytes
from app.resilience.yield_limiter import heavy_work

MAX_HEAD_BYTES: Final = 65_536
"""Longest head of an answer (all its interim responses and trailers included), and longest stretch without any body."""

_READ_FIELDS: Final = frozenset({b"content-encoding", b"content-length", b"retry-after", b"transfer-encoding"})

_HEAD_READ: Final = b""
"""A field name that no peer can send: noted once a head was read, gone when another message begins."""

Fields = dict[bytes, bytes]


class _Surplus(Exception):
    """Bytes follow a complete response, without a request."""


class Connection(asyncio.Protocol):
    """Callbacks of the event loop and of the HTTP parser on one side, `ask` on the other.

    `status` and `retry_after` belong to the last answer. `born`, `epoch` and `good_until` are the pool's notes on it.
    """

    __slots__ = (
        "_body",
        "_complete",
        "_fault",
        "_fields",
        "_held",
        "_limit",
        "_on_lost",
        "_parser",
        "_pending",
        "_pieces",
        "_received",
        "_reusable",
        "_silence",
        "_transport",
        "_until_close",
        "born",
        "closed",
        "epoch",
        "good_until",
        "on_body",
        "on_header",
        "on_message_begin",
        "retry_after",
        "status",
    )

    def __init__(
        self,
        limit: int,
        on_lost: Callable[["Connection"], None],
        *,
        born: float = 0.0,
        epoch: int = 0,
    ) -> None:
        """`limit`: most decoded bytes of one body. `on_lost` is called once, when the socket is gone."""
        self._limit = limit
        self._on_lost = on_lost
        self.born = born
        self.epoch = epoch
        self.good_until = born
        self.closed = True  # until it is connected
        self.status = 0
        self.retry_after: bytes | None = None
        self._transport: asyncio.Transport | None = None
        self._parser: HttpResponseParser | None = None
        self._pending: HttpExchange | None = None
        self._held: HeldBytes | None = None
        self._fault: LegError | None = None
        self._fields: Fields = {}
        self._pieces: list[bytes] = []
        # The parser calls these often: no code of ours in between.
        self.on_message_begin = self._fields.clear
        self.on_header = self._fields.__setitem__
        self.on_body = self._pieces.append
        self._body: ResponseBody | None = None
        self._silence = 0
        self._received = self._complete = self._until_close = self._reusable = False

    def ask(self, request: bytes) -> HttpExchange:
        """Write one whole request; the exchange ends with the decoded body of its response, or a LegError.

        A caller that stops waiting must `abort` the connection.
        """
        pending = self._pending = HttpExchange()
        if self.closed or self._transport is None:
            self._fail_exchange(self._fault or ConnectionLost("the connection was closed before the request was sent"))
            return pending
        self._received = self._complete = False
        self._silence = 0
        self._body = None
        self._held = HELD.get()
        self._transport.write(request)
        return pending

    def abort(self) -> None:
        """Close the socket at once, whatever is under way on it."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def fail(self, fault: LegError) -> None:
        """Close the socket at once; a request in flight, or a later one, ends with `fault`."""
        self._fault = fault.with_traceback(None)  # its frames hold this connection and the bytes it was reading
        self.abort()
        self._fail_exchange(fault)

    # ── the event loop calls ──────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = HttpResponseParser(self)
        self.closed = False

    def data_received(self, data: bytes | memoryview) -> None:
        if self._pending is None:
            self.abort()  # bytes without a request: this peer cannot be trusted with another one
            return
        if not self._received and len(data) > MAX_HEAD_BYTES:
            # The head may end anywhere in a large piece: its start is looked at first, so that its bound holds.
            view = memoryview(data)
            self._parse(view[:MAX_HEAD_BYTES])
            data = view[MAX_HEAD_BYTES:]
        if not self.closed:
            self._parse(data)
            self._read_on()

    def eof_received(self) -> None:
        self._on_end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_end(exc)
        self._parser = None  # the parser holds our bound methods: a cycle otherwise
        self._body = None  # a fault that is remembered may hold the frames that hold this
        self._pieces.clear()
        self._on_lost(self)

    # ── the parser calls (and fields.clear, fields.__setitem__, pieces.append) ────────────────────────────────────

    def on_headers_complete(self) -> None:
        if self._complete:
            raise _Surplus
        status: int = self._parser.get_status_code()  # type: ignore[union-attr]
        if status < 200:
            if status == 101:
                self._refuse(ProtocolViolation("the engine switched protocols (HTTP 101)"))
            return  # an interim response; the answer is still to come
        self.status = status
        fields: Fields = {}
        for name, value in self._fields.items():
            name = name.lower()
            if name in _READ_FIELDS:
                fields[name] = value
        self._fields[_HEAD_READ] = b""
        self._expect(fields)

    def on_message_complete(self) -> None:
        if _HEAD_READ in self._fields:
            self._complete = True
            self._reusable = self._parser.should_keep_alive()  # type: ignore[union-attr]

    # ── internals ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _expect(self, fields: Fields) -> None:
        """Prepare for the body that the header fields announce."""
        length = fields.get(b"content-length")
        self.retry_after = None
        self._until_close = False
        if length is not None and len(fields) == 1 and int(length) <= self._limit:
            return  # nearly always: a body of known length, in one piece
        coding = fields.get(b"content-encoding")
        framing = fields.get(b"transfer-encoding")
        self.retry_after = fields.get(b"retry-after")
        self._until_close = length is None and framing is None
        try:
            if framing is not None and framing.strip().lower() != b"chunked":
                raise ProtocolViolation("the answer has a transfer encoding other than chunked")
            body = self._body = ResponseBody(self._limit, coding)
            if length is not None:
                body.expect(int(length))
        except LegError as fault:
            self._refuse(fault)

    def _read_on(self) -> None:
        """If more is to come: read it later if too many bytes are held, or if this turn of the loop has lasted enough.

        A loop would otherwise read megabytes from each of a hundred connections in one turn.
        """
        transport = self._transport
        if self._pending is None or self.closed or transport is None:
            return
        if self._held is not None and not self._held.may_read():
            transport.pause_reading()
            self._held.pause(self._resume)
        elif not heavy_work().has_time():
            transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        if self._transport is not None and not self.closed:
            self._transport.resume_reading()

    def _parse(self, data: bytes | memoryview) -> None:
        self._received = True
        try:
            self._parser.feed_data(data)  # type: ignore[union-attr]
        except (HttpParserError, HttpParserUpgrade) as fault:
            if not self._complete:
                self.fail(self._fault or ProtocolViolation(f"the answer is not HTTP: {fault}"))
                return
            self._reusable = False
        if not self._pieces:
            self._silence += len(data)
        elif not self._complete or self._body is not None or len(self._pieces) > 1:
            self._absorb()
        if self._complete:
            keep = (
                self._reusable and _HEAD_READ in self._fields
            )  # what follows a complete answer has cleared its fields
            self._deliver(keep)
        elif self._silence >= MAX_HEAD_BYTES:
            self.fail(ProtocolViolation(f"the head of the answer is longer than {MAX_HEAD_BYTES} bytes"))

    def _absorb(self) -> None:
        """Take the pieces of a body that does not come in one."""
        self._silence = 0
        body = self._body = self._body or ResponseBody(self._limit)
        before = body.size
        try:
            for piece in self._pieces:
                body.feed(piece)
        except LegError as fault:
            self.fail(fault)
        self._pieces.clear()
        if self._held is not None:
            self._held.take(body.size - before)

    def _deliver(self, keep: bool) -> None:
        """End the exchange with a complete body."""
        if not keep:
            self.abort()
        body: Content
        if self._body is None:
            body = self._pieces.pop() if self._pieces else b""
            if self._held is not None:
                self._held.take(len(body))
        else:
            try:
                body = self._body.finish()
            except LegError as fault:
                self.fail(fault)
                return
            self._body = None  # an idle connection must not keep megabytes
        self._held = None
        pending, self._pending = self._pending, None
        if pending is not None and not pending.done():
            pending.set_result(body)

    def _refuse(self, fault: LegError) -> None:
        """Stop the parser; it only lets an exception through wrapped, so what it means is noted aside."""
        self._fault = fault
        raise fault

    def _on_end(self, exc: Exception | None) -> None:
        """The peer sends no more (`exc` None), or the connection broke."""
        self.closed = True
        if self._pending is None:
            return
        if isinstance(exc, ssl.SSLError):
            self._fail_exchange(TlsFailed(reason_of(exc)))  # in TLS 1.3 a refused client certificate shows only now
        elif not self._received:
            self._fail_exchange(ConnectionLost("the engine closed the connection without an answer"))
        elif exc is None and self._until_close and self._body is not None:
            self._deliver(keep=False)
        else:
            self._fail_exchange(ProtocolViolation("the connection broke off in the middle of the answer"))

    def _fail_exchange(self, fault: LegError) -> None:
        self._held = None
        pending, self._pending = self._pending, None
        if pending is not None and not pending.done():
            pending.set_exception(fault)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "busy" if self._pending is not None else "idle"
        return f"<Connection {state}, last HTTP {self.status or '-'}, epoch {self.epoch}>"
