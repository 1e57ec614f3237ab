"""The HTTP/1.1 server protocol of the doors: uvicorn's own, with a response's head and body written in one system call.

uvicorn writes the head as soon as it has it; two small writes per answer wake the caller twice and cost a tenth of a
federated retrieve. It decides when a connection is cut that keeps the gateway waiting, and whether an answer is given
in one go. It refuses to know what bytes say; all else is as uvicorn has it.
"""

import asyncio
import re
import select
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.api.caller import ARRIVAL
from app.api.corked import CorkedTransport
from app.api.doorway import Doorway

FIRST_REQUEST_SECONDS = 0.5
"""A new connection is given so long for its first request before a gateway that ends closes it: who has just connected
is about to ask."""

MAX_DISCARDED = 67_108_864
"""Bytes of a refused body that are read and thrown away, so that a caller that reads late still finds its answer."""

SMALL_REST = 65_536
"""A refused body announced as no longer than this may still come; of a longer one the connection is not kept."""

MAX_HEAD_BYTES = 65_536
"""Longest head of a request, and longest stretch (trailers, extensions) without a body; the parser has no bound."""

PROBE_LENGTH = 9
"""Longer than the target of any probe."""

_PLAIN_PATH = re.compile(rb"/[A-Za-z0-9/_.-]*")
_UPGRADE = re.compile(rb"\r\nupgrade(?=[ \t]*:)", re.IGNORECASE)
_NO_UPGRADE = b"\r\nX-grade"
"""As long as what it replaces, so that nothing moves."""

TOO_SLOW = (
    b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"the request was not sent to its end in time"}}'
)


class Exchange(RequestResponseCycle):
    """uvicorn's one request and its answer; the usual answer may be given in one go rather than in two events."""

    def __init__(self, door: "DoorProtocol") -> None:
        """For the request whose head `door` has just read."""
        parser, self._doorway = door.parser, door.server_state
        kept = door.scope["http_version"] != "1.0" and parser.should_keep_alive()
        told = self._doorway.default_headers
        super().__init__(
            *(door.scope, door.transport, door.flow, door.logger, door.access_logger, door.access_log, told),
            *(asyncio.Event(), door.expect_100_continue, kept, door.on_response_complete),
        )

    def answer_at_once(self, lines: bytes, body: bytes) -> bool:
        """Write the whole answer 200 to a POST; False if it has to be sent as events.

        `lines`: header lines, each with its end, of which no part is as a caller sent it.
        """
        if self.disconnected or self.response_started or self.flow.write_paused:
            return False
        self.response_started = self.response_complete = True
        closing = b"" if self.keep_alive else b"connection: close\r\n"
        head = b"%b%b%bcontent-length: %d\r\n\r\n" % (self._doorway.first_lines(), lines, closing, len(body))
        self.transport.send(head + body)  # type: ignore[attr-defined]
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
        return True

    def __repr__(self) -> str:
        state = "answered" if self.response_complete else "being answered" if self.response_started else "asked"
        return f"<Exchange {self.scope.get('path')} {state}>"


class DoorProtocol(HttpToolsProtocol):
    """uvicorn's protocol behind a CorkedTransport; it bounds heads, and ignores trailers and upgrades.

    Trailers set no header (RFC 9110 §6.5.1), and an offer to upgrade may be passed over (§7.8):
    Java's HttpClient offers h2c with its first request, and httptools drops the body of whoever offers anything.
    Its owner lets it look after itself now and then (`look`); no request costs a timer for that.
    """

    server_state: Doorway
    _silence = 0
    _progress = False
    _receiving = False
    """A request has begun to come and has not ended."""
    _messages = 0
    _since = 0.0
    """When it was accepted, in event-loop seconds."""
    _refused = False
    """What came was no HTTP; the rest of it is not read any more."""
    _abort: Callable[[], None]
    _probed = False
    """What is being read was a probe, and is answered."""
    _discarded = 0
    _seen: tuple[str, int] = ("", 0)
    _seen_at = 0.0
    _shed = False

    # -- from the network

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """One connection was accepted."""
        corked: Any = CorkedTransport(transport, self.loop, self._is_sending)  # type: ignore[arg-type]
        super().connection_made(corked)
        self._abort = corked.abort
        self._since = self.loop.time()
        doorway = self.server_state
        above = doorway.above(self._since)
        doorway.idle[self] = self._since
        if above > 0:
            doorway.cut("too_many")
            if above > doorway.spare:
                corked.abort()
            self.app = doorway.overfull(self.app)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed."""
        self.server_state.idle.pop(self, None)
        if self._shed:
            self.server_state.leaving -= 1
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of the caller."""
        if self.transport.is_closing():
            self._discarded += len(data)
            if self._discarded > MAX_DISCARDED:
                self.transport.abort()
            return
        if b"pgrade" in data or b"PGRADE" in data:
            end = data.find(b"\r\n\r\n")
            if end >= 0:
                data = _UPGRADE.sub(_NO_UPGRADE, data[:end]) + data[end:]
        self._progress = False
        super().data_received(data)
        if self._progress:
            self._silence = 0
            return
        self._silence += len(data)
        if self._silence > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def pause_writing(self) -> None:
        """More is written than the caller reads; its time to make room begins."""
        self._seen = ("", 0)
        super().pause_writing()

    # -- from the parser

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._receiving = True
        self._messages += 1
        self.server_state.idle.pop(self, None)
        super().on_message_begin()
        self.scope["abort"] = self._abort  # type: ignore[typeddict-unknown-key]
        self.scope["extensions"] = {ARRIVAL: {"time": self.loop.time()}}

    def on_headers_complete(self) -> None:
        """A head was read to its end. What still comes in the manner of a header is a trailer, and sets nothing."""
        self._progress = True
        self._probed = len(self.url) < PROBE_LENGTH and self._answer_probe()
        if self._probed:
            return
        self._check_host()
        if _PLAIN_PATH.fullmatch(self.url):
            self._begin_exchange()
        else:
            super().on_headers_complete()
        self.headers = []  # uvicorn would add it to the headers of a request that the door has yet to look at
        if self.server_state.closing:
            self.cycle.keep_alive = False

    def _begin_exchange(self) -> None:
        """What uvicorn does with a head, for a target that is a path and nothing more."""
        scope, earlier = self.scope, self.cycle
        path = self.url.decode("ascii")
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["http_version"] = self.parser.get_http_version()
        scope["path"], scope["raw_path"], scope["query_string"] = path, self.url, b""
        exchange = self.cycle = Exchange(self)
        if earlier is None or earlier.response_complete:
            self._start_asgi_task(exchange, self.app)
        else:  # an answer before it is still to be given
            self.flow.pause_reading()
            self.pipeline.appendleft((exchange, self.app))

    def _check_host(self) -> None:
        """A request names its host, and one (RFC 9112 §3.2): what stands in front may have gone by the other.

        Raises ValueError, which the parser takes for a fault of the request.
        """
        hosts = [name for name, _ in self.headers].count(b"host")
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() != "1.0"):
            raise ValueError(f"{hosts} hosts")

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._progress = True
        if not self._probed:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The last byte of a request."""
        self._receiving = False
        if not self._probed:
            super().on_message_complete()
        self._rest()

    def _answer_probe(self) -> bool:
        """Answer a probe on the spot: it must not wait until the loop has seen to everybody else."""
        earlier = self.cycle is not None and not self.cycle.response_complete
        if earlier or self.parser.get_method() != b"GET":
            return False
        verdict = self.server_state.probe(self.url)
        if verdict is None:
            return False
        status, body = verdict
        kept = self.parser.should_keep_alive() and not self.server_state.closing
        head = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
        closing = b"" if kept else b"connection: close\r\n"
        self.transport.write(b"%b%b%b\r\n%b" % (STATUS_LINE[status], head, closing, body))
        if not kept:
            self.transport.close()
        return True

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP."""
        self._refused = True
        super().send_400_response(msg)

    def on_response_complete(self) -> None:
        """An answer was given. If its request is still coming, and long, the connection is not kept for another."""
        if self._is_sending() and self._rest_is_long():
            self.transport.close()
        super().on_response_complete()
        self._rest()

    def _rest(self) -> None:
        """Who has nothing under way is idle from now on."""
        if not self.busy:
            self.server_state.idle[self] = self.loop.time()

    def shed(self) -> bool:
        """Make room for another connection, unless there is something under way after all; whether it did."""
        if self.busy or self.transport.is_closing() or self._has_news():
            return False
        self._shed = True
        self.server_state.cut("too_many")
        self.transport.hang_up()  # type: ignore[attr-defined]
        return True

    def _is_sending(self) -> bool:
        """Whether the caller has its answer and goes on sending what it was about."""
        cycle = self.cycle
        return self._refused or (cycle is not None and cycle.response_complete and cycle.more_body)

    def _rest_is_long(self) -> bool:
        for name, value in self.cycle.scope["headers"]:
            if name == b"content-length":
                return not value.isdigit() or int(value) > SMALL_REST
        return True

    # -- from its owner

    @property
    def busy(self) -> bool:
        """Whether an answer is still to be given, or a request has begun to come."""
        return self._receiving or (self.cycle is not None and not self.cycle.response_complete)

    def leave(self) -> None:
        """Close as soon as there is nothing under way, nor has come and not been read yet: a busy loop lags behind."""
        if self.busy:
            if self.cycle is not None:
                self.cycle.keep_alive = False
        elif not self._is_about_to_ask() and not self._has_news():
            self.transport.hang_up()  # type: ignore[attr-defined]

    def _is_about_to_ask(self) -> bool:
        return not self._messages and self.loop.time() < self._since + FIRST_REQUEST_SECONDS

    def _has_news(self) -> bool:
        sock = self.transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return False
        news = select.poll()
        news.register(sock.fileno(), select.POLLIN)
        return bool(news.poll(0))

    def look(self, now: float) -> None:
        """Cut the connection if it has kept us waiting for too long; `now` is in event-loop seconds."""
        lingers_until = self.transport.lingers_until  # type: ignore[attr-defined]
        if lingers_until is not None:
            if now >= lingers_until:
                self.transport.abort()
            return
        (waits_for, number), (waited_for, before) = self._waits_for(), self._seen
        moves = number < before if waits_for == "reader" else number != before
        self._seen = (waits_for, number)
        if waits_for != waited_for or moves:
            self._seen_at = now
        else:
            self._lose_patience(waits_for, now - self._seen_at)

    def _lose_patience(self, waits_for: str, seconds: float) -> None:
        wishes = self.server_state.wishes()
        if waits_for == "request" and seconds >= wishes.message_timeout_seconds:
            self._cut_off()
        elif waits_for == "reader" and seconds >= wishes.send_timeout_seconds:
            self.server_state.cut("unread")
            self.transport.abort()
        elif waits_for == "nothing" and seconds >= max(wishes.keep_alive_seconds, wishes.message_timeout_seconds):
            self.transport.close()

    def _waits_for(self) -> tuple[str, int]:
        """What the connection waits for, and a number that changes as it comes."""
        cycle = self.cycle
        under_way = cycle is not None and not cycle.response_complete
        unread = self.transport.get_write_buffer_size()
        if unread and (self.flow.write_paused or not under_way):
            return "reader", unread
        if under_way and not cycle.more_body:
            return "answer", 0
        if self._receiving:
            return "request", self._messages
        return "nothing", self._messages

    def _cut_off(self) -> None:
        """A request did not come to its end in time."""
        self.server_state.cut("message_timeout")
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            head = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-type: application/json\r\n"
            self.transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(TOO_SLOW), TOO_SLOW))
        self.transport.close()

    def __repr__(self) -> str:
        waits, _ = self._waits_for()
        return f"<DoorProtocol waits for {waits}, {self._silence} bytes of an unfinished head>"
