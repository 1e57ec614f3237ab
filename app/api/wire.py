"""The HTTP/1.1 server protocol of the doors: uvicorn's own, with a response's head and body written in one system call.

uvicorn writes the head as soon as it has it; two small writes per answer wake the caller twice and cost a tenth of a
federated retrieve. It decides when written bytes leave, when a connection is cut that keeps the gateway waiting, and
how it ends for a caller that is still sending. It refuses to know what bytes say; all else is as uvicorn has it.
"""

import asyncio
import os
import re
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app.api.doorway import Doorway

LINGER = 5.0
"""Seconds a closed connection may take to send what is left to a caller that hardly reads, or to hear it out."""

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

_UPGRADE = re.compile(rb"\r\nupgrade(?=[ \t]*:)", re.IGNORECASE)
_NO_UPGRADE = b"\r\nX-grade"
"""As long as what it replaces, so that nothing moves."""

TOO_SLOW = (
    b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"the request was not sent to its end in time"}}'
)


class CorkedTransport:
    """Stands before a transport: the first write of an iteration waits for a second one, or for the iteration's end.

    `hearing` says, when the connection is closed, whether its caller is still sending: then only our side is shut.
    """

    __slots__ = ("_hearing", "_held", "_loop", "_transport", "lingers_until")

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        hearing: Callable[[], bool] = lambda: False,
    ) -> None:
        self.lingers_until: float | None = None
        """Our side is shut; what still comes is thrown away until then (event-loop seconds)."""
        self._transport = transport
        self._loop = loop
        self._hearing = hearing
        self._held = b""

    def write(self, data: bytes) -> None:
        """Hold `data`, or send it together with what is held."""
        if self._held:
            held, self._held = self._held, b""
            if not self.is_closing():  # uvloop raises, where the other loops say nothing
                self._transport.write(held + data)
        else:
            self._held = data
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        """Send what is held, then close as the transport does; a caller that is still sending is heard out first.

        With bytes of it unread the system would reset the connection, and the caller lose the answer it never read.
        """
        if self.is_closing():
            return
        self._flush()
        if self._hearing() and self._transport.can_write_eof():
            self.lingers_until = self._loop.time() + LINGER
            self._transport.write_eof()
            self._transport.resume_reading()
            return
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._loop.call_later(LINGER, self._transport.abort)

    def hang_up(self) -> None:
        """Close an idle connection, and let the caller's system know it in this very moment.

        The transport closes its socket an iteration later; a request that comes in between would be lost.
        """
        sock = self._transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0 and self._transport.get_extra_info("sslcontext") is None:
            with suppress(OSError), socket.socket(fileno=os.dup(sock.fileno())) as same:
                same.shutdown(socket.SHUT_WR)
        self.close()

    def is_closing(self) -> bool:
        """Whether nothing can be written any more."""
        return self.lingers_until is not None or self._transport.is_closing()

    def _flush(self) -> None:
        held, self._held = self._held, b""
        if held and not self.is_closing():  # the connection may have been lost since
            self._transport.write(held)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def __repr__(self) -> str:
        state = "" if self.lingers_until is None else ", only hearing its caller out"
        return f"<CorkedTransport holding {len(self._held)} bytes of {self._transport!r}{state}>"


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

    def on_headers_complete(self) -> None:
        """A head was read to its end. What still comes in the manner of a header is a trailer, and sets nothing."""
        self._progress = True
        self._probed = len(self.url) < PROBE_LENGTH and self._answer_probe()
        if self._probed:
            return
        self._check_host()
        super().on_headers_complete()
        self.headers = []  # uvicorn would add it to the headers of a request that the door has yet to look at
        if self.server_state.closing:
            self.cycle.keep_alive = False

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
