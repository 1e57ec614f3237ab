"""HTTP/1.1 of the server side: an asyncio protocol on httptools, given to uvicorn by its `http` option.

Responses are sent in the order of their requests. Input that cannot be read is answered 400, after the requests before
it, and ends the connection.
"""

import asyncio
from collections import deque
from typing import Any, cast

import uvicorn

from app.api.caller import ANSWER_AT_ONCE, ARRIVAL
from app.server.buffered_transport import BufferedTransport
from app.server.connection_limits import ConnectionLimits, ConnectionPlace
from app.server.request_parser import RequestHead, RequestParser, Unreadable, read_target
from app.server.request_response import STATUS_LINES, Application, RequestResponse, Scope
from app.telemetry.logs import logger

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


_ASGI = {"version": "3.0", "spec_version": "2.3"}

_ERROR = '{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"%s"}}'
TOO_SLOW = "the request was not sent to its end in time"


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
        self.place = ConnectionPlace.NONE
        self.write_paused = False
        self._app_state = app_state
        self._accepted = 0.0
        self._endpoints: dict[str, Any] = {}

        self._input = RequestParser(self, self.loop.time)
        self._keep_alive = True
        """Whether another request may follow the one that is being read."""
        self._reading: RequestResponse | None = None
        """The request that is being read, once its head was; None also for a probe, which is answered by then."""

        # Requests whose heads were read, in order.
        self._answering: RequestResponse | None = None
        self._waiting: deque[RequestResponse] = deque()
        self._last_words = b""
        """What is answered to input that could not be read, after all requests before it."""

        self._refused = False
        """Input could not be read; the caller may go on sending it."""
        self._half_closed = False
        self._discarded = 0
        self._unread = 0
        self._reading_paused = False
        self._can_write = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._backing_off = False
        """Not read, because the last request was refused and may not be repeated yet."""
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
        if self.place is ConnectionPlace.NONE:
            self.transport.abort()
        elif self.place is ConnectionPlace.SPARE:
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
        self._can_write.set()
        # Both refer to this protocol, and the collector of cycles seldom runs here.
        self._input.close()
        self.transport.detach()

    def data_received(self, data: bytes) -> None:
        """The caller sent something."""
        if self._input.ended or self.transport.is_closing():
            self._discarded += len(data)
            if self._discarded > MAX_DISCARDED_BYTES:
                self.transport.abort()
            return
        try:
            self._input.feed(data)
        except Unreadable as fault:
            self._refuse(400, str(fault))
        if self._input.receiving:
            self._note_unfinished()

    def eof_received(self) -> bool:
        """The caller closed its side. It may be gone, or wait for the answers to what it sent."""
        if self._half_closed or self.transport.is_closing():
            return False
        self._half_closed = self._input.ended = True
        if self._input.receiving:  # this request will never be complete
            self._input.receiving = False
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

    def head_received(self, head: RequestHead) -> None:
        """The head of a request was read: let the application begin, unless earlier requests are to be answered."""
        self._keep_alive = head.keep_alive and not self.limits.closing and self.place is ConnectionPlace.REGULAR
        self._reading = None
        self.limits.idle.pop(self, None)
        if self._answer_probe(head):
            return
        request = self._reading = RequestResponse(
            self,
            self._scope(head),
            keep_alive=self._keep_alive,
            content_length=head.content_length,
            expects_continue=head.expects_continue,
        )
        request.scope["abort"] = request.abort
        request.scope["extensions"][ANSWER_AT_ONCE] = request.answer_at_once
        if self._answering is None:
            self._start(request)
        else:
            self._waiting.append(request)
            self._regulate_reading()

    def body_received(self, piece: bytes) -> None:
        """A piece of the body of that request."""
        request = self._reading
        if request is not None and not request.response_complete:
            self._unread += len(piece)
            request.feed(piece)
            if self._unread > MAX_UNREAD_BYTES:
                self._regulate_reading()

    def request_received(self) -> None:
        """The last byte of that request."""
        request, self._reading = self._reading, None
        if request is not None:
            request.end_body()
        if not self._keep_alive:
            self._input.ended = True
        self.limits.uploading.pop(self, None)
        if self._answering is None:
            self._note_idle()

    def _scope(self, head: RequestHead) -> Scope:
        target = read_target(head.target)
        headers = head.headers
        if target.host is not None:
            headers = [(name, target.host if name == b"host" else value) for name, value in headers]
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": head.version,
            "method": head.method.decode("ascii"),
            **self._endpoints,
            "root_path": "",
            "path": target.path,
            "raw_path": target.raw_path,
            "query_string": target.query,
            "headers": headers,
            "state": self._app_state.copy(),
            "extensions": {ARRIVAL: {"time": head.arrived}},
        }

    def _answer_probe(self, head: RequestHead) -> bool:
        """Answer a probe here and now: it must not wait until the loop has served everybody else."""
        if len(head.target) > LONGEST_PROBE or head.method != b"GET" or head.content_length != 0:
            return False
        if self._answering is not None:
            return False
        verdict = self.limits.probe(head.target)
        if verdict is None:
            return False
        status, body = verdict
        self.transport.write(self._plain_answer(status, body, close=not self._keep_alive))
        if not self._keep_alive:
            self._input.ended = True
            self.transport.close()
        return True

    def _refuse(self, status: int, message: str) -> None:
        """Answer input that cannot be read, after the requests before it, and close the connection."""
        logger().info("request_refused", status=status, reason=message)
        self._input.ended = self._refused = True
        self._input.receiving = False
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
        pause = self._backing_off or self._unread > MAX_UNREAD_BYTES or len(self._waiting) >= MAX_PIPELINED
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

    def response_complete(self, request: RequestResponse) -> None:
        """The answer to this request was written; go on with the next one."""
        self.limits.total_requests += 1
        self._answering = None
        if request.refused:
            self._back_off()
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
        """Let the application answer a request, or refuse it here if the gateway is full: ASGI costs as much again."""
        self._answering = request
        overload = self.limits.overload
        if not overload.refuses(request.scope):
            self._run(request)
            return
        lines, body = overload.refusal(request.scope)
        if not request.answer_at_once(lines, body, 503):
            self._run(request)  # the caller does not read, so the application waits for it

    def _back_off(self) -> None:
        """Do not read on until the refused caller may ask again.

        Thousands of callers that ask again at once would have the loop do nothing but refuse them.
        """
        if not self._backing_off and not self.limits.closing and self.place is ConnectionPlace.REGULAR:
            self._backing_off = True
            self.limits.backing_off.add(self, self.limits.overload.retry_after)
            self._regulate_reading()

    def end_back_off(self) -> None:
        """Read on."""
        self._backing_off = False
        self._regulate_reading()

    def _run(self, request: RequestResponse) -> None:
        task = request.start(self.app, self.loop)
        self.limits.tasks.add(task)
        task.add_done_callback(self.limits.tasks.discard)

    def _end_connection(self, words: bytes = b"") -> None:
        self._waiting.clear()
        if words:
            self.transport.write(words)
        self.transport.close()
        self._input.ended = True

    def _still_sending(self) -> bool:
        """Whether there may be input that nobody will read as a request."""
        if self._half_closed:
            return False
        return self._input.receiving or self._refused or self._reading_paused or self.transport.has_unread_input()

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
        return self._input.receiving or self._answering is not None

    @property
    def owes_answer(self) -> bool:
        """Whether a request that was read to its end is not answered yet."""
        return self._answering is not None and not self._answering.more_body

    def shutdown(self) -> None:
        """Close as soon as nothing is under way, nor has arrived without being read yet. Called by the server."""
        if self.busy:
            if self._input.receiving and self._reading is None:
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
        if self.transport.lingers_until is not None:
            self.transport.abort()  # its answer was sent
            return True
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
        if self._input.receiving:
            return "request", self._input.messages
        return "nothing", self._input.messages

    def _is_about_to_ask(self) -> bool:
        return not self._input.messages and self.loop.time() < self._accepted + FIRST_REQUEST_SECONDS

    def _note_idle(self) -> None:
        if self.place is ConnectionPlace.REGULAR and not self.busy:
            self.limits.idle.pop(self, None)  # the oldest must stand first
            self.limits.idle[self] = self.loop.time()

    def _note_unfinished(self) -> None:
        """A request has begun to arrive: since when it can be closed for another connection's sake."""
        if self.place is not ConnectionPlace.REGULAR or self._answering not in (None, self._reading):
            return
        if self._reading is not None:
            self.limits.uploading.setdefault(self, self._input.arrived)
        elif self.limits.idle.get(self, 0.0) < self._input.arrived:
            self.limits.idle.pop(self, None)
            self.limits.idle[self] = self._input.arrived

    def __repr__(self) -> str:
        waits_for, _ = self._waits_for()
        return f"<HttpProtocol waits for {waits_for}, {self._input!r}>"


def _endpoint(transport: asyncio.BaseTransport, name: str) -> tuple[str, int] | None:
    """Host and port of one end of a TCP connection; None for a Unix socket."""
    found = transport.get_extra_info(name)
    return (str(found[0]), int(found[1])) if isinstance(found, tuple | list) and len(found) >= 2 else None
