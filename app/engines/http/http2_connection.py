"""One HTTP/2 connection to an engine, shared by many calls (RFC 9113), on the `h2` library.

The event loop owns it: a call only writes to it and waits for its own stream. Cancelling a call resets its stream and
nothing else, and no write is ever interrupted.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, ResponseReceived, StreamEnded, StreamReset
from h2.exceptions import FrameTooLargeError, H2Error
from h2.settings import SettingCodes, Settings

from app.engines.http.body import ResponseBody
from app.engines.http.endpoint import reason_of
from app.engines.http.exchange import HttpExchange
from app.engines.transport import ConnectionLost
from app.protocol.errors import LegError, ProtocolViolation, TlsFailed

STREAM_WINDOW: Final = 1 << 20
"""Bytes of one response that may be on their way."""

CONNECTION_WINDOW: Final = 1 << 24

MAX_HEAD_BYTES: Final = 65_536
"""Longest header list of a response, as HPACK counts it."""

MAX_UNSENT_BYTES: Final = 1 << 22
"""A peer that makes us answer (PING, SETTINGS, resets) but does not read is left when so much waits to be sent."""

PING_SECONDS: Final = 1.0
"""How long a connection may stay silent after a call on it was cancelled without any sign of life from the engine."""

_LAST_STREAM: Final = 2**31 - 1
_FRAME_HEAD: Final = 9
_GOAWAY: Final = 7

Headers = Iterable[tuple[bytes, bytes]]


class Unprocessed(ConnectionLost):
    """The engine says that it has not processed the request, so that any request may be sent again (RFC 9113 §8.7)."""


class Stream:
    """One request and its response. `pending` ends with the decoded body, or a LegError."""

    __slots__ = ("body", "head", "id", "mark", "pending", "received", "retry_after", "status", "unsent")

    def __init__(self, head: Headers, content: bytes) -> None:
        self.head = head
        self.unsent = memoryview(content)
        self.pending = HttpExchange()
        self.id = 0  # until it is opened
        self.mark = 0
        self.received = False
        self.status = 0
        self.retry_after: bytes | None = None
        self.body: ResponseBody | None = None

    def __repr__(self) -> str:
        return f"<Stream {self.id} {self.pending!r}>"


class Http2Connection(asyncio.Protocol):
    """Callbacks of the event loop on one side, `ask` and `cancel` on the other.

    `limit`: maximum decoded bytes of one body. `on_lost` is called once, when the socket is gone. `born`: seconds on
    the clock of the caller. The connection closes itself after `idle_seconds` without a call.
    """

    def __init__(
        self, limit: int, idle_seconds: float, on_lost: Callable[["Http2Connection"], None], *, born: float = 0.0
    ) -> None:
        self._limit = limit
        self._idle_seconds = idle_seconds
        self._on_lost = on_lost
        self.born = born
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._transport: asyncio.Transport | None = None
        self._inbound = bytearray()
        self._received = 0  # bytes, ever
        self._waiting: deque[Stream] = deque()  # for the engine to allow another stream
        self._streams: dict[int, Stream] = {}
        self._greeted = False
        self._paused = False
        self._retired = False
        self._closed = True  # until it is connected
        self._fault: LegError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ping: asyncio.TimerHandle | None = None

    @property
    def usable(self) -> bool:
        """Whether it takes another call."""
        return not self._retired and not self._closed

    def ask(self, head: Headers, content: bytes) -> Stream:
        """Send one request, as soon as the engine allows another stream. A caller that stops waiting must `cancel`."""
        stream = Stream(head, content)
        if not self.usable:
            stream.pending.set_exception(
                self._fault or Unprocessed("the connection was closed before the request was sent")
            )
            return stream
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.append(stream)
        self._send()
        return stream

    def cancel(self, stream: Stream) -> None:
        """Reset the stream of a response that is no longer wanted; other streams go on."""
        stream.pending.cancel()
        if stream in self._waiting:
            self._waiting.remove(stream)
        elif self._streams.get(stream.id) is stream:
            if stream.mark == self._received and self._ping is None:
                self._h2.ping(b"\0" * 8)
                self._ping = asyncio.get_running_loop().call_later(PING_SECONDS, self._went_silent)
            self._reset(stream)
        self._send()

    def retire(self) -> None:
        """Take no other call, and close once nothing is under way."""
        self._retired = True
        if not self._closed and not self._streams and not self._waiting:
            self._h2.close_connection()
            self._write()
            self._abort()

    def fail(self, fault: LegError) -> None:
        """Close the socket at once; calls under way, or that come too late, end with `fault`."""
        self._fault = fault.with_traceback(None)  # its frames hold this connection
        self._abort()
        self._end_all(fault, fault)

    # ── the event loop calls ──────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._closed = False
        # Replaced, not updated: an update would take effect only after the engine has acknowledged it.
        self._h2.local_settings = Settings(
            client=True,
            initial_values={
                SettingCodes.ENABLE_PUSH: 0,
                SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEAD_BYTES,
            },
        )
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW)
        self._write()
        self._start_idle_timer()

    @property
    def mute(self) -> bool:
        """Whether the engine has not sent a byte over this connection."""
        return self._received == 0

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._ping is not None:
            self._ping.cancel()
            self._ping = None
        try:
            whole, last_streams = self._without_goaway(data)
            events = self._h2.receive_data(whole)
        except H2Error as fault:
            self._write()  # h2 has prepared a GOAWAY that names the error
            self._fail_connection(f"the answer is not HTTP/2: {fault}")
            return
        for event in events:
            if isinstance(event, DataReceived):
                self._on_data(event)
            elif isinstance(event, ResponseReceived):
                self._on_head(event)
            elif isinstance(event, StreamEnded):
                self._on_end(event.stream_id)
            elif isinstance(event, StreamReset):
                self._on_reset(event)
        self._greeted = self._greeted or bool(events)  # the first frame of a server is its SETTINGS
        for last in last_streams:
            self._on_goaway(last)
        self._send()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._send()

    def eof_received(self) -> None:
        self._abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        for timer in (self._timer, self._ping):
            if timer is not None:
                timer.cancel()
        if isinstance(exc, ssl.SSLError):
            refused = TlsFailed(reason_of(exc))  # in TLS 1.3 a refused client certificate shows only now
            self._end_all(refused, refused)
        else:
            self._fail_connection("the connection broke off in the middle of the answer")
        self._on_lost(self)

    # ── what arrives ──────────────────────────────────────────────────────────────────────────────────────────────

    def _without_goaway(self, data: bytes) -> tuple[bytes, list[int]]:
        """Whole frames for h2, and the last stream of each GOAWAY among them.

        h2 considers a connection closed once it has read a GOAWAY, but the streams up to its last one go on
        (RFC 9113 §6.8).
        """
        buffer = self._inbound
        buffer += data
        kept: list[bytes | bytearray] = []
        last_streams: list[int] = []
        start = at = 0
        while len(buffer) - at >= _FRAME_HEAD:
            size = int.from_bytes(buffer[at : at + 3], "big")
            if size > self._h2.max_inbound_frame_size:
                raise FrameTooLargeError("a frame is too large")  # h2 itself would first read all of it
            end = at + _FRAME_HEAD + size
            if end > len(buffer):
                break
            if buffer[at + 3] == _GOAWAY and size >= 8:
                kept.append(buffer[start:at])
                last_streams.append(int.from_bytes(buffer[at + 9 : at + 13], "big") & _LAST_STREAM)
                start = end
            at = end
        kept.append(buffer[start:at])
        del buffer[:at]
        return b"".join(kept), last_streams

    def _on_head(self, event: ResponseReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        stream.received = True
        fields = dict(cast(Iterable[tuple[bytes, bytes]], event.headers))
        status = fields.get(b":status", b"")
        stream.status = int(status) if status.isdigit() else 0
        stream.retry_after = fields.get(b"retry-after")
        try:
            stream.body = ResponseBody(self._limit, fields.get(b"content-encoding"))
            length = fields.get(b"content-length", b"")
            if length.isdigit():
                stream.body.expect(int(length))
        except LegError as fault:
            self._reset(stream, fault)

    def _on_data(self, event: DataReceived) -> None:
        # The window is given back at once, also for unwanted data: `ResponseBody` bounds how much is held.
        if event.flow_controlled_length:
            with suppress(H2Error):  # closed by now
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        stream = self._streams.get(event.stream_id)
        if stream is not None and stream.body is not None:
            try:
                stream.body.feed(event.data)
            except LegError as fault:
                self._reset(stream, fault)

    def _on_end(self, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None or stream.body is None:
            return
        try:
            content = stream.body.finish()
        except LegError as fault:
            self._reset(stream, fault)
            return
        if stream.unsent:
            self._reset(stream)  # the engine answered without reading the whole request
        self._streams.pop(stream_id, None)
        if not stream.pending.done():
            stream.pending.set_result(content)

    def _on_reset(self, event: StreamReset) -> None:
        stream = self._streams.pop(event.stream_id, None)
        if stream is None:
            return
        if event.error_code == ErrorCodes.REFUSED_STREAM:
            self._retired = True  # the request is sent again over a fresh connection
            _end(stream, Unprocessed("the engine refused the stream before it read the request"))
        else:
            _end(stream, ProtocolViolation(f"the engine reset the stream ({_name(event.error_code)})"))

    def _on_goaway(self, last: int) -> None:
        """The engine is going to close: streams up to `last` go on, the others are sent over another connection."""
        self._retired = True
        beyond = [stream for stream in self._streams.values() if stream.id > last]
        for stream in beyond:
            del self._streams[stream.id]
        beyond += self._waiting
        self._waiting.clear()
        for stream in beyond:
            _end(stream, Unprocessed("the engine closed the connection before it read the request"))

    # ── what is sent ──────────────────────────────────────────────────────────────────────────────────────────────

    def _send(self) -> None:
        """Open the streams that may be opened and send what the engine's windows allow; close if that was all."""
        if self._closed:
            return
        while self._waiting and len(self._streams) < self._most_streams():
            self._open(self._waiting.popleft())
        for stream in list(self._streams.values()):
            if stream.unsent:
                self._send_content(stream)
        self._write()
        if not self._streams and not self._waiting:
            if self._retired:
                self.retire()
            else:
                self._start_idle_timer()

    def _most_streams(self) -> int:
        """How many streams may be open; one until the engine has said so, since more might be refused."""
        return self._h2.remote_settings.max_concurrent_streams if self._greeted else 1

    def _open(self, stream: Stream) -> None:
        stream.id = self._h2.get_next_available_stream_id()
        stream.mark = self._received
        self._retired = self._retired or stream.id >= _LAST_STREAM - 2
        self._h2.send_headers(stream.id, stream.head)
        self._streams[stream.id] = stream

    def _send_content(self, stream: Stream) -> None:
        while stream.unsent and not self._paused:
            window = min(self._h2.local_flow_control_window(stream.id), self._h2.max_outbound_frame_size)
            if window <= 0:
                return
            piece, stream.unsent = stream.unsent[:window], stream.unsent[window:]
            self._h2.send_data(stream.id, piece.tobytes(), end_stream=not stream.unsent)
            if stream.unsent:
                self._write()  # `pause_writing` is received of only then

    def _reset(self, stream: Stream, fault: LegError | None = None) -> None:
        del self._streams[stream.id]
        if not self._closed:
            with suppress(H2Error):  # the engine has closed it in the same read
                self._h2.reset_stream(stream.id, ErrorCodes.CANCEL)
        if fault is not None:
            _end(stream, fault)

    def _write(self) -> None:
        data = self._h2.data_to_send()
        transport = self._transport
        if data and transport is not None and not self._closed:
            transport.write(data)
            if transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
                self._fail_connection("the engine does not read what it is sent")

    def _start_idle_timer(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._idle_seconds, self.retire)

    # ── how it ends ───────────────────────────────────────────────────────────────────────────────────────────────

    def _went_silent(self) -> None:
        self._ping = None
        self._fail_connection("the connection went silent")

    def _fail_connection(self, text: str) -> None:
        """Close a broken connection: partial responses fail, all other requests may be sent again."""
        self._abort()
        self._end_all(ConnectionLost("the engine closed the connection without an answer"), ProtocolViolation(text))

    def _end_all(self, unreceived: LegError, received: LegError) -> None:
        streams = [*self._streams.values(), *self._waiting]
        self._streams.clear()
        self._waiting.clear()
        for stream in streams:
            _end(stream, received if stream.received else unreceived)

    def _abort(self) -> None:
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "retired" if self._retired else "open"
        return f"<Http2Connection {state}, {len(self._streams)} streams, {len(self._waiting)} waiting>"


def _end(stream: Stream, fault: LegError) -> None:
    if not stream.pending.done():
        stream.pending.set_exception(fault)


def _name(code: ErrorCodes | int | None) -> str:
    return code.name if isinstance(code, ErrorCodes) else f"error {code}"
