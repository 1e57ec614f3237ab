"""HTTP/1.1 of the server side: an asyncio protocol on httptools, given to uvicorn by its `http` option.

The parser alone decides where a message begins and ends; nothing here looks at bytes before it does. Responses are
sent in the order of their requests, and what cannot be read is answered 400 after them.
"""

import asyncio
import re
from collections import deque
from typing import Any, cast
from urllib.parse import unquote

import httptools
import uvicorn

from app.server.buffered_transport import BufferedTransport
from app.server.connection_limits import ConnectionLimits, Place
from app.server.request_response import STATUS_LINES, Application, RequestResponse, Scope
from app.telemetry.logs import logger

MAX_HEAD_BYTES = 65_536
"""Longest head of a request, and longest stretch of trailers or chunk extensions; the parser has no bound."""

MAX_UNREAD_BYTES = 65_536
"""Nothing more is read of a connection while the application has yet to take this many bytes of bodies."""

MAX_PIPELINED = 16
"""Nothing more is read of a connection while this many requests wait for the answers of earlier ones."""

MAX_DISCARDED_BYTES = 67_108_864
"""Input read and discarded after the last answer of a connection, so that a caller that sends on can still read it."""

FIRST_REQUEST_SECONDS = 0.5
"""At shutdown a new connection is kept this long without a request: its caller is about to send one."""

HALF_CLOSED_SECONDS = 0.5
"""If a caller has shut its side down, it is answered for this long before it is probed whether it is still there …"""

RESET_SECONDS = 0.05
"""… and the reset that a probe provokes is looked for after this time, then every `HALF_CLOSED_SECONDS`."""

LONGEST_PROBE = 8
"""Bytes of the longest request target that may be a probe's."""

ARRIVAL = "rcp_gateway.arrival"
"""ASGI extension: `{"time": ...}`, the event-loop time at which the first byte of the request was read."""

_ASGI = {"version": "3.0", "spec_version": "2.3"}
_FRAMING = frozenset({b"content-length", b"transfer-encoding", b"host", b"expect"})
_PLAIN_PATH = re.compile(rb"/[A-Za-z0-9/_.-]*")

_ERROR = '{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"%s"}}'
TOO_SLOW = "the request was not sent to its end in time"
TOO_LONG = f"the head of the request is longer than {MAX_HEAD_BYTES} bytes"
UNREADABLE = "the request is not valid HTTP/1.1"


class Unreadable(ValueError):
    """The parser reads the head of a request, but its meaning is not safe. Ends the parser's run."""


class InputEnded(Exception):
    """A request comes after the last one that this connection serves. Ends the parser's run."""


class HttpProtocol(asyncio.Protocol):
    """One connection."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: Any,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Called by uvicorn with these names. `server_state` is a ConnectionLimits."""
        if not config.loaded:
            config.load()
        self.loop = _loop or asyncio.get_running_loop()
        self.limits: ConnectionLimits = server_state
        self.app: Application = cast(Application, config.loaded_app)
        self.transport: BufferedTransport
        self.address: str | None = None
        self.place = Place.NONE
        self.write_paused = False
        self._app_state = app_state
        self._accepted = 0.0
        self._endpoints: dict[str, Any] = {}

        self._parser = httptools.HttpRequestParser(self)
        self._silence = 0
        """Bytes read since the last progress: the end of a head, a piece of a body, or the end of a message."""
        self._progress = False
        self._replaying = False
        """The parser reads a head that was read before, see `_ignore_upgrade`."""

        # The message that is being read.
        self._receiving = False
        self._in_head = False
        self._upgrade_offered = False
        self._messages = 0
        self._arrived = 0.0
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._framing: list[tuple[bytes, bytes]] = []
        self._head_size = 0
        self._keep_alive = True
        self._reading: RequestResponse | None = None
        """Its request, once its head was read; None also for a probe, which is answered by then."""

        # Requests whose heads were read, in order.
        self._answering: RequestResponse | None = None
        self._waiting: deque[RequestResponse] = deque()
        self._last_words = b""
        """What is answered to input that could not be read, after all requests before it."""

        self._input_ended = False
        """No further request is read."""
        self._refused = False
        """Input could not be read; the caller may go on sending it."""
        self._half_closed = False
        self._discarded = 0
        self._unread = 0
        self._reading_paused = False
        self._can_write = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._seen: tuple[str, int] = ("", 0)
        self._seen_at = 0.0

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection was accepted."""
        self.transport = BufferedTransport(cast(asyncio.Transport, transport), self.loop, self._still_sending)
        peer, local = _endpoint(transport, "peername"), _endpoint(transport, "sockname")
        secure = transport.get_extra_info("sslcontext") is not None
        self._endpoints = {"client": peer, "server": local, "scheme": "https" if secure else "http"}
        self.address = None if peer is None else self.limits.counted_address(peer[0])
        self._accepted = self.loop.time()
        self.place = self.limits.admit(self, self._accepted)
        self.limits.connections.add(self)
        if self.place is Place.NONE:
            self.transport.abort()
        elif self.place is Place.SPARE:
            self.app = self.limits.only_probes(self.app)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed, by whomever."""
        self.limits.connections.discard(self)
        self.limits.release(self)
        if self._timer is not None:
            self._timer.cancel()
        for request in (self._answering, self._reading):
            if request is not None:
                request.disconnect()
        self._waiting.clear()
        self._input_ended = True
        self._can_write.set()
        del self._parser  # it refers to this protocol

    def data_received(self, data: bytes) -> None:
        """The caller sent something."""
        if self._input_ended or self.transport.is_closing():
            self._discarded += len(data)
            if self._discarded > MAX_DISCARDED_BYTES:
                self.transport.abort()
            return
        try:
            if len(data) <= MAX_HEAD_BYTES:
                self._parse(data)
            else:
                view = memoryview(data)
                for start in range(0, len(data), MAX_HEAD_BYTES):
                    if not self._input_ended:
                        self._parse(view[start : start + MAX_HEAD_BYTES])
        except httptools.HttpParserError as error:
            if not self._input_ended:
                self._refuse(400, _reason(error))
        if self._receiving:
            self._note_unfinished()

    def eof_received(self) -> bool:
        """The caller closed its side. It may be gone, or wait for the answers to what it sent."""
        if self._half_closed or self.transport.is_closing():
            return False
        self._half_closed = self._input_ended = True
        if self._receiving:  # this request will never be complete
            self._receiving = False
            if self._reading is not None:
                self._reading.disconnect()
                if self._reading in self._waiting:
                    self._waiting.remove(self._reading)
                if self._answering is self._reading:
                    self._answering = None
                self._reading = None
        # TLS has no half-closed connections in asyncio.
        if self._answering is None or self._endpoints["scheme"] == "https":
            self.transport.close()
            return False
        self._timer = self.loop.call_later(HALF_CLOSED_SECONDS, self._probe_half_closed)
        return True

    def pause_writing(self) -> None:
        """More is written than the caller reads; its time to read on begins."""
        self._seen = ("", 0)
        self.write_paused = True
        self._can_write.clear()

    def resume_writing(self) -> None:
        """The caller has read most of what was written."""
        self.write_paused = False
        self._can_write.set()

    # Called by the parser.

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        if self._replaying:
            return
        if self._input_ended:
            raise InputEnded
        self._receiving = self._in_head = True
        self._messages += 1
        self._arrived = self.loop.time()
        self._target = b""
        self._headers = []
        self._framing = []
        self._head_size = 0
        self._reading = None

    def on_url(self, url: bytes) -> None:
        """A piece of the request target."""
        if not self._replaying:
            self._target += url
            self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header field. Fields after the head are trailers, which set nothing (RFC 9110 §6.5.1)."""
        if not self._in_head:
            return
        self._count_head(len(name) + len(value) + 4)
        field = (name.lower(), value.strip(b" \t"))  # the parser keeps white space after a value (RFC 9110 §5.5)
        self._headers.append(field)
        if field[0] in _FRAMING:
            self._framing.append(field)

    def on_headers_complete(self) -> None:
        """The head of a request was read. Raises Unreadable."""
        if self._replaying:
            return
        self._in_head = False
        self._progress = True
        self._upgrade_offered = self._parser.should_upgrade()
        method = self._parser.get_method()
        version = self._parser.get_http_version()
        length, expectation = self._read_framing(version)
        if method == b"CONNECT":
            raise Unreadable("CONNECT is not served")
        self._keep_alive = (
            version == "1.1"
            and self._parser.should_keep_alive()
            and not self.limits.closing
            and self.place is Place.REGULAR
        )
        self.limits.idle.pop(self, None)
        if length == 0 and len(self._target) <= LONGEST_PROBE and method == b"GET" and self._answer_probe():
            return
        request = self._reading = RequestResponse(
            self,
            self._scope(method, version),
            keep_alive=self._keep_alive,
            content_length=length,
            expects_continue=version == "1.1" and length != 0 and expectation.lower() == b"100-continue",
        )
        request.scope["abort"] = request.abort
        if self._answering is None:
            self._start(request)
        else:
            self._waiting.append(request)
            self._regulate_reading()

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._progress = True
        request = self._reading
        if request is not None and not request.response_complete:
            self._unread += len(body)
            request.feed(body)
            if self._unread > MAX_UNREAD_BYTES:
                self._regulate_reading()

    def on_message_complete(self) -> None:
        """The last byte of a request."""
        if self._upgrade_offered:
            return  # so the parser says at the end of the head; the body is still to come
        self._progress = True
        self._receiving = False
        request, self._reading = self._reading, None
        if request is not None:
            request.end_body()
        if not self._keep_alive:
            self._input_ended = True
        self.limits.uploading.pop(self, None)
        self._note_idle()

    # Reading.

    def _parse(self, data: bytes | memoryview) -> None:
        self._progress = False
        size = len(data)
        while data:
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as offer:
                self._ignore_upgrade()
                data = memoryview(data)[offer.args[0] :]
        self._silence = 0 if self._progress else self._silence + size
        if self._silence > MAX_HEAD_BYTES and not self._input_ended:
            self._refuse(400, TOO_LONG)

    def _ignore_upgrade(self) -> None:
        """Read on after the head of a request that offers to upgrade, as if it did not (RFC 9110 §7.8).

        At such an offer the parser ends the message at its head and skips its body, which would then be taken for the
        next request. So a new parser reads a head with the same framing and no offer, and goes on with the body.
        """
        self._upgrade_offered = False
        lines = [
            b"%b: %b\r\n" % field for field in self._framing if field[0] in (b"content-length", b"transfer-encoding")
        ]
        self._parser = httptools.HttpRequestParser(self)
        self._replaying = True
        try:
            self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(lines))
        finally:
            self._replaying = False

    def _count_head(self, size: int) -> None:
        self._head_size += size
        if self._head_size > MAX_HEAD_BYTES:
            raise Unreadable(TOO_LONG)

    def _read_framing(self, version: str) -> tuple[int | None, bytes]:
        """(length of the body, None if it comes in chunks; expectation). Raises Unreadable.

        What the parser lets pass and another server may read in another way is refused.
        """
        if version not in ("1.1", "1.0"):
            raise Unreadable(f"HTTP/{version} is not served")
        length: int | None = 0
        hosts, expectation = 0, b""
        for name, value in self._framing:
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                length = int(value)
            elif name == b"transfer-encoding":
                length = None
                if version == "1.0":
                    raise Unreadable("HTTP/1.0 has no Transfer-Encoding")
            else:
                expectation = value
        if hosts > 1 or (hosts == 0 and version == "1.1"):  # RFC 9112 §3.2
            raise Unreadable("a request needs exactly one Host")
        return length, expectation

    def _scope(self, method: bytes, version: str) -> Scope:
        raw_path, query = self._read_target()
        path = raw_path.decode("ascii")
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "method": method.decode("ascii"),
            **self._endpoints,
            "root_path": "",
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": self._headers,
            "state": self._app_state.copy(),
            "extensions": {ARRIVAL: {"time": self._arrived}},
        }

    def _read_target(self) -> tuple[bytes, bytes]:
        """(path, query) of the request target. Raises Unreadable."""
        target = self._target
        if _PLAIN_PATH.fullmatch(target):
            return target, b""
        if target.startswith(b"/"):
            path, _, query = target.partition(b"#")[0].partition(b"?")
            return path, query
        if target == b"*":
            return target, b""
        url = httptools.parse_url(target)
        if url.schema is None or url.schema.lower() not in (b"http", b"https") or not url.host or url.userinfo:
            raise Unreadable("the request target is neither a path nor a URL")
        # The host of an absolute target counts instead of the header (RFC 9112 §3.2.2).
        host = b"[%b]" % url.host if b":" in url.host else url.host
        host = host if url.port is None else b"%b:%d" % (host, url.port)
        self._headers = [(name, host if name == b"host" else value) for name, value in self._headers]
        return url.path or b"/", url.query or b""

    def _answer_probe(self) -> bool:
        """Answer a probe here and now: it must not wait until the loop has served everybody else."""
        if self._answering is not None:
            return False
        verdict = self.limits.probe(self._target)
        if verdict is None:
            return False
        status, body = verdict
        self.transport.write(self._plain_answer(status, body, close=not self._keep_alive))
        if not self._keep_alive:
            self._input_ended = True
            self.transport.close()
        return True

    def _refuse(self, status: int, message: str) -> None:
        """Answer input that cannot be read, after the requests before it, and close the connection."""
        logger().info("request_refused", status=status, reason=message)
        self._input_ended = self._refused = True
        self._receiving = False
        words = self._plain_answer(status, (_ERROR % message).encode(), close=True)
        request, self._reading = self._reading, None
        if request is not None:
            answered = request.response_started
            request.disconnect()
            if request is not self._answering and not answered:
                self._waiting.remove(request)
            else:
                self._answering = None
                self._end_connection(b"" if answered else words)
                return
        if self._answering is None:
            self._end_connection(words)
        else:
            self._last_words = words

    def _plain_answer(self, status: int, body: bytes, *, close: bool) -> bytes:
        closing = b"connection: close\r\n" if close else b""
        head = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
        return b"%b%b%b%b\r\n%b" % (STATUS_LINES[status], self.limits.default_lines(), head, closing, body)

    def _regulate_reading(self) -> None:
        """Pause or resume reading, as bodies are taken and requests answered."""
        pause = self._unread > MAX_UNREAD_BYTES or len(self._waiting) >= MAX_PIPELINED
        if pause is self._reading_paused or self._half_closed or self.transport.is_closing():
            return
        self._reading_paused = pause
        if pause:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    # Answering; called by requests.

    def default_lines(self) -> bytes:
        """Header lines of every answer."""
        return self.limits.default_lines()

    async def writable(self) -> None:
        """Wait until the caller has read enough for more to be written."""
        await self._can_write.wait()

    def body_taken(self, size: int) -> None:
        """The application took `size` bytes of a body, or they were dropped."""
        self._unread -= size
        if self._reading_paused:
            self._regulate_reading()

    def more_body_wanted(self, request: RequestResponse) -> None:
        """The application waits for the body of this request."""
        if self._reading_paused:
            self._regulate_reading()

    def response_complete(self, request: RequestResponse) -> None:
        """The answer to this request was written; go on with the next one."""
        self.limits.total_requests += 1
        self._answering = None
        if not request.keep_alive or (request is self._reading and request.rest_is_long):
            self._end_connection()
        elif self._waiting:
            self._start(self._waiting.popleft())
            self._regulate_reading()
        elif self._last_words or self._half_closed:
            self._end_connection(self._last_words)
        else:
            self._note_idle()

    def _start(self, request: RequestResponse) -> None:
        self._answering = request
        task = request.start(self.app, self.loop)
        self.limits.tasks.add(task)
        task.add_done_callback(self.limits.tasks.discard)

    def _end_connection(self, words: bytes = b"") -> None:
        self._waiting.clear()
        if words:
            self.transport.write(words)
        self.transport.close()
        self._input_ended = True

    def _still_sending(self) -> bool:
        """Whether there may be input that nobody will read as a request."""
        if self._half_closed:
            return False
        return self._receiving or self._refused or self._reading_paused or self.transport.has_unread_input()

    def _probe_half_closed(self) -> None:
        if self._answering is not None and not self.transport.is_closing():
            self._answering.probe_caller()
            self._timer = self.loop.call_later(RESET_SECONDS, self._notice_reset)

    def _notice_reset(self) -> None:
        if self.transport.was_reset():
            self.transport.abort()
        elif not self.transport.is_closing():
            self._timer = self.loop.call_later(HALF_CLOSED_SECONDS, self._notice_reset)

    # Waiting callers.

    @property
    def busy(self) -> bool:
        """Whether an answer is still to be given, or a request has begun to arrive."""
        return self._receiving or self._answering is not None

    @property
    def owes_answer(self) -> bool:
        """Whether a request that was read to its end is not answered yet."""
        return self._answering is not None and not self._answering.more_body

    def shutdown(self) -> None:
        """Close as soon as nothing is under way, nor has arrived without being read yet. Called by the server."""
        if self.busy:
            if self._receiving and self._reading is None:
                return  # the answer to what is arriving will be the last one, since `limits.closing` is set by then
            last = self._waiting[-1] if self._waiting else self._answering
            if last is not None:
                last.keep_alive = False
        elif not self._is_about_to_ask() and not self.transport.has_unread_input():
            self.transport.hang_up()

    def shed(self) -> bool:
        """Close the connection for the sake of another one, unless a complete request is under way."""
        if self.owes_answer:
            return False
        if self.transport.is_closing() or self.transport.has_unread_input():
            return False
        self.transport.hang_up()
        return True

    def look(self, now: float) -> None:
        """Close the connection if it has kept the server waiting for too long; `now` is in event-loop seconds."""
        lingers_until = self.transport.lingers_until
        if lingers_until is not None:
            if now >= lingers_until:
                self.transport.abort()
            return
        (waits_for, number), (waited_for, before) = self._waits_for(), self._seen
        moved = number < before if waits_for == "reader" else number != before
        self._seen = (waits_for, number)
        if waits_for != waited_for or moved:
            self._seen_at = now
        else:
            self._close_if_late(waits_for, now - self._seen_at)

    def _close_if_late(self, waits_for: str, seconds: float) -> None:
        settings = self.limits.settings()
        if waits_for == "request" and seconds >= settings.message_timeout_seconds:
            self.limits.count_cut("message_timeout")
            self._refuse(408, TOO_SLOW)
        elif waits_for == "reader" and seconds >= settings.send_timeout_seconds:
            self.limits.count_cut("unread")
            self.transport.abort()
        elif waits_for == "nothing" and seconds >= max(settings.keep_alive_seconds, settings.message_timeout_seconds):
            self.transport.close()

    def _waits_for(self) -> tuple[str, int]:
        """What the connection waits for, and a number that changes as it arrives."""
        answering = self._answering
        unsent = self.transport.get_write_buffer_size()
        if unsent and (self.write_paused or answering is None):
            return "reader", unsent
        if self.owes_answer:
            return "answer", 0
        if self._receiving:
            return "request", self._messages
        return "nothing", self._messages

    def _is_about_to_ask(self) -> bool:
        return not self._messages and self.loop.time() < self._accepted + FIRST_REQUEST_SECONDS

    def _note_idle(self) -> None:
        if self.place is Place.REGULAR and not self.busy:
            self.limits.idle.pop(self, None)  # the oldest must stand first
            self.limits.idle[self] = self.loop.time()

    def _note_unfinished(self) -> None:
        """A request has begun to arrive: since when it can be closed for another connection's sake."""
        if self.place is not Place.REGULAR or self._answering not in (None, self._reading):
            return
        if self._reading is not None:
            self.limits.uploading.setdefault(self, self._arrived)
        elif self.limits.idle.get(self, 0.0) < self._arrived:
            self.limits.idle.pop(self, None)
            self.limits.idle[self] = self._arrived

    def __repr__(self) -> str:
        waits_for, _ = self._waits_for()
        return f"<HttpProtocol waits for {waits_for}, {self._silence} bytes of an unfinished head>"


def _reason(error: httptools.HttpParserError) -> str:
    """What is wrong with input that the parser, or a method that it called, has refused."""
    cause = error.__context__
    if isinstance(cause, Unreadable):
        return str(cause)
    if cause is not None and not isinstance(cause, httptools.HttpParserError):
        logger().error("parser_callback_failed", exc_info=cause)
    return UNREADABLE


def _endpoint(transport: asyncio.BaseTransport, name: str) -> tuple[str, int] | None:
    """Host and port of one end of a TCP connection; None for a Unix socket."""
    found = transport.get_extra_info(name)
    return (str(found[0]), int(found[1])) if isinstance(found, tuple | list) and len(found) >= 2 else None
