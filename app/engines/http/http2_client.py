"""RCP over HTTP/2, for engines that offer it over TLS (`client: httpx`); all others get HTTP/1.1.

Calls share one connection. It is replaced when it is too old, when the engine closes it, or when it failed.
"""

import asyncio
import itertools
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any

from app.engines.http.body import read_answer
from app.engines.http.client import HttpTransport
from app.engines.http.connection import Connection
from app.engines.http.dialer import Dialer
from app.engines.http.endpoint import Endpoint, request_headers, tls_context
from app.engines.http.exchange import HttpExchange
from app.engines.http.http2_connection import Http2Connection, Unprocessed
from app.engines.http.resolver import Resolver
from app.engines.transport import ConnectionLost, Reply
from app.protocol import envelope
from app.protocol.errors import ConnectFailed, LegError, ProtocolViolation
from app.resilience.byte_budget import hold
from app.settings.schema import EngineEntry, EnginesSettings
from app.telemetry.tracing import OUTGOING, REQUEST_ID

_OF_THE_CONNECTION = frozenset({b"connection", b"host", b"keep-alive", b"proxy-connection", b"te", b"upgrade"})
"""Header fields that HTTP/2 does not have (RFC 9113 §8.2.2), or has under another name."""


class _Negotiated(asyncio.Protocol):
    """Steps aside for the connection that fits the protocol chosen in the TLS handshake (ALPN)."""

    def __init__(self, http1: Callable[[], Connection], http2: Callable[[], Http2Connection]) -> None:
        self._http1 = http1
        self._http2 = http2
        self.connection: Connection | Http2Connection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tls = transport.get_extra_info("ssl_object")
        chosen = self._http2 if tls is not None and tls.selected_alpn_protocol() == "h2" else self._http1
        self.connection = chosen()
        transport.set_protocol(self.connection)
        self.connection.connection_made(transport)


class Http2Transport:
    """One engine over one shared HTTP/2 connection, or over HTTP/1.1 if it does not offer HTTP/2.

    Satisfies `Transport`. A connection older than `max_connection_age_seconds`, or one that could not be trusted, takes
    no new calls and is closed when its last call has ended.
    """

    __slots__ = (
        "_clock",
        "_closed",
        "_current",
        "_dialer",
        "_dialling",
        "_dials",
        "_emptied",
        "_entry",
        "_head",
        "_http1",
        "_ids",
        "_live",
        "_only_http1",
        "_settings",
        "_tls",
        "_unproven",
        "endpoint",
    )

    def __init__(
        self,
        entry: EngineEntry,
        settings: EnginesSettings,
        *,
        resolver: Resolver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is connected or read yet. `clock` (seconds) measures the age of connections."""
        resolver = resolver or Resolver()
        self.endpoint = Endpoint.of(entry.url or "")
        self._entry = entry
        self._settings = settings
        self._clock = clock
        self._ids = itertools.count(1)
        fields = [(name.lower(), value) for name, value in request_headers(self.endpoint, entry)]
        self._head = [(name, value) for name, value in fields if name not in _OF_THE_CONNECTION]
        self._http1 = HttpTransport(entry, settings, resolver=resolver, clock=clock)
        self._only_http1 = not self.endpoint.secure
        self._unproven = self.endpoint.secure and (entry.tls is None or entry.tls.cert_file is None)
        """Whether the engine has not answered yet, so that it may turn out to require a client certificate."""
        self._dialer = Dialer(self.endpoint, resolver, entry.timeout_ms)
        self._tls: ssl.SSLContext | None = None
        self._current: Http2Connection | None = None
        self._dialling: asyncio.Task[Http2Connection | None] | None = None  # what will be `_current`
        self._dials: set[asyncio.Task[Http2Connection | None]] = set()
        self._live: set[Http2Connection] = set()
        self._emptied = asyncio.Event()
        self._closed = False

    async def call(self, method: str, params: Mapping[str, Any], *, idempotent: bool = True) -> Reply:
        """POST one request (RCP §5.2) and wait for its answer. Raises LegError.

        It is sent once more over another connection if the engine says that it has not read it; and, if `idempotent`,
        if a reused connection dies before the answer begins. What is not idempotent goes over a connection of its own.
        """
        call_id = next(self._ids)
        content = envelope.encode_call(call_id, method, params)
        head = self._head_of(method, len(content))
        attempts = 1
        while not self._only_http1:
            connection, fresh = await self._connection(alone=not idempotent)
            if connection is None:
                break  # the engine chose HTTP/1.1
            try:
                return await self._ask(connection, head, content, call_id, attempts)
            except ConnectionLost as fault:
                fault.attempts = attempts
                again = isinstance(fault, Unprocessed) or (idempotent and not fresh)
                if attempts == 2 or not again or self._closed:
                    if self._unproven and connection.mute and not self._closed:
                        rejected = self.endpoint.rejected()
                        rejected.attempts = attempts
                        raise rejected from None
                    raise
                attempts = 2
            except LegError as fault:
                fault.attempts = attempts
                raise
        return await self._http1.call(method, params, idempotent=idempotent)

    def send(self, method: str, params: Mapping[str, Any]) -> HttpExchange | None:
        """Over HTTP/1.1 as HttpTransport does; over HTTP/2 use `call`."""
        return self._http1.send(method, params) if self._only_http1 else None

    @property
    def stderr_tail(self) -> None:
        """The engine is not a process of this gateway."""

    def renew(self) -> None:
        """Look the engine's name up anew, negotiate anew, and use no open connection for another call."""
        self._http1.renew()  # it shares our resolver
        self._only_http1 = not self.endpoint.secure
        self._dialling = None
        self._retire_current()

    def overdue(self) -> None:
        """Nothing to do: the gateway cannot restart a remote engine."""

    async def close(self) -> None:
        """Close all connections; calls under way end with ConnectFailed("closed")."""
        self._closed = True
        dials = tuple(self._dials)
        for dial in dials:
            dial.cancel()
        await asyncio.gather(*dials, return_exceptions=True)
        for connection in tuple(self._live):
            connection.fail(ConnectFailed("closed"))
        if self._live:
            await self._emptied.wait()
        await self._http1.close()

    async def _ask(
        self, connection: Http2Connection, head: list[tuple[bytes, bytes]], content: bytes, call_id: int, attempts: int
    ) -> Reply:
        stream = connection.ask(head, content)
        try:
            answer = await stream.pending
            self._unproven = False
        except asyncio.CancelledError:
            connection.cancel(stream)
            raise
        finally:
            if connection is not self._current:
                connection.retire()  # it was for this call alone, or has been replaced
        try:
            result = read_answer(stream.status, answer, stream.retry_after, call_id)
        except ProtocolViolation as fault:
            if fault.code is None:
                connection.retire()  # an invalid response: do not use this connection again
            raise
        hold(len(answer))
        return Reply(result, attempts=attempts, size=len(answer))

    def _head_of(self, method: str, length: int) -> list[tuple[bytes, bytes]]:
        trace, request_id = OUTGOING.get(), REQUEST_ID.get()
        return [
            (b":method", b"POST"),
            (b":scheme", b"https"),
            (b":authority", self.endpoint.authority.encode("ascii")),
            (b":path", self.endpoint.target(method).encode("ascii")),
            *self._head,
            (b"content-length", b"%d" % length),
            *(() if trace is None else trace.headers),
            *([(b"x-request-id", request_id.encode("ascii"))] if request_id else ()),
        ]

    async def _connection(self, *, alone: bool) -> tuple[Http2Connection | None, bool]:
        """A connection to use and whether it is fresh; None if the engine chose HTTP/1.1. Raises LegError."""
        if self._closed:
            raise ConnectFailed("closed")
        if alone:
            dial = self._start_dial()
        else:
            current = self._current
            if current is not None and current.usable:
                if self._clock() - current.born < self._settings.max_connection_age_seconds:
                    return current, False
                self._retire_current()
            # Calls that need a connection at the same time wait for one dial, which the end of none of them ends.
            dial = self._dialling = self._dialling or self._start_dial()
        try:
            connection = await asyncio.shield(dial)
        except asyncio.CancelledError:
            current_task = asyncio.current_task()
            if self._closed and not (current_task and current_task.cancelling()):
                raise ConnectFailed("closed") from None
            if alone:
                dial.cancel()
            raise
        return connection, True

    def _start_dial(self) -> "asyncio.Task[Http2Connection | None]":
        task = asyncio.get_running_loop().create_task(self._dial(), name=f"dial {self.endpoint.label}")
        self._dials.add(task)
        task.add_done_callback(self._dialled)
        return task

    def _dialled(self, task: "asyncio.Task[Http2Connection | None]") -> None:
        self._dials.discard(task)
        wanted = self._dialling is task
        if wanted:
            self._dialling = None
        # The exception is looked at here, since nobody may be waiting any more.
        if not task.cancelled() and task.exception() is None and wanted:
            self._current = task.result()

    async def _dial(self) -> Http2Connection | None:
        addresses = await self._dialer.addresses()  # a name server that fails says nothing about open connections
        try:
            negotiated = await self._dialer.connect(addresses, self._negotiate, self._tls_context())
        except ConnectFailed:
            self.renew()  # the engine may no longer be where the open connections lead
            raise
        connection = negotiated.connection
        if isinstance(connection, Http2Connection):
            self._live.add(connection)
            return connection
        self._only_http1 = True
        if connection is not None:
            self._http1.adopt(connection)
        return None

    def _negotiate(self) -> _Negotiated:
        limit, idle = self._settings.max_response_bytes, self._settings.idle_seconds
        return _Negotiated(
            self._http1.new_connection, lambda: Http2Connection(limit, idle, self._lost, born=self._clock())
        )

    def _retire_current(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            current.retire()

    def _lost(self, connection: Http2Connection) -> None:
        self._live.discard(connection)
        if self._current is connection:
            self._current = None
        if not self._live:
            self._emptied.set()

    def _tls_context(self) -> ssl.SSLContext:
        """The TLS context, built at the first dial that succeeds in building it."""
        if self._tls is None:
            context = tls_context(self._entry.tls)
            context.set_alpn_protocols(["h2", "http/1.1"])
            self._tls = context
        return self._tls

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._current!r}"
        spoken = "HTTP/1.1" if self._only_http1 else "HTTP/2"
        return f"<Http2Transport {self._entry.id} {self.endpoint.label} {spoken} {state}>"
