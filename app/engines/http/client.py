"""RCP over pooled HTTP/1.1 connections: the fast path to an engine.

Builds requests, reads responses, and repeats a request only if a reused connection turned out to be dead.
"""

import itertools
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from app.engines.http.body import read_answer
from app.engines.http.connection import Connection
from app.engines.http.dialer import Dialer
from app.engines.http.endpoint import Endpoint, request_headers, tls_context
from app.engines.http.exchange import HttpExchange
from app.engines.http.pool import ConnectionPool
from app.engines.http.resolver import Resolver
from app.engines.transport import ConnectionLost, Content, Reply, is_of_before, plain_reply, read_reply
from app.protocol import envelope
from app.protocol.errors import BadStatus, LegError, LegRateLimited
from app.resilience.yield_limiter import heavy_work
from app.settings.schema import EngineEntry, EnginesSettings
from app.telemetry.tracing import OUTGOING, REQUEST_ID

LARGE_BYTES: Final = 65_536
"""A larger response is parsed in an iteration of the event loop of its own: parsing 2 MB takes 5 ms."""

MAX_HEADS: Final = 64
"""Cached request heads. Method names come from callers, so the cache has a bound."""


class HttpTransport:
    """One engine over HTTP/1.1. Satisfies `Transport`.

    No cookies, no proxies, no redirects: what is not in the registry entry is never sent.
    """

    __slots__ = ("_entry", "_header_lines", "_heads", "_ids", "_pool", "_tls", "_unproven", "endpoint")

    def __init__(
        self,
        entry: EngineEntry,
        settings: EnginesSettings,
        *,
        ssl_context: ssl.SSLContext | None = None,
        resolver: Resolver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is connected or read yet. `clock` (seconds) measures the age of connections."""
        self.endpoint = Endpoint.of(entry.url or "")
        self._entry = entry
        self._unproven = self.endpoint.secure and (entry.tls is None or entry.tls.cert_file is None)
        """Whether the engine has not answered yet, so that it may turn out to require a client certificate."""
        self._ids = itertools.count(1)
        self._heads: dict[str, bytes] = {}
        self._header_lines = b"".join(b"%b: %b\r\n" % line for line in request_headers(self.endpoint, entry))
        self._tls = ssl_context
        dialer = Dialer(self.endpoint, resolver or Resolver(), entry.timeout_ms)
        self._pool = ConnectionPool(self.endpoint, settings, self._tls_context, dialer, clock)

    async def call(self, method: str, params: Mapping[str, Any], *, idempotent: bool = True) -> Reply:
        """POST one request (RCP §5.2) and wait for its answer. Raises LegError.

        A reused connection that dies before the first byte of the response, or brings a late response to the previous
        request, is replaced once, if the request is `idempotent`. Other requests always use a fresh connection: if an
        idle one turned out to be dead, it would be unknown whether the engine has read the request.
        """
        call_id = next(self._ids)
        request = self._request(call_id, method, params)
        # Only a request that may be sent twice can use a connection whose other end may be gone.
        connection, attempts = self._pool.take() if idempotent else None, 1
        once_more = connection is not None
        while True:
            if connection is None:
                connection = await self._pool.dial()
            try:
                answer = await connection.ask(request)
                self._unproven = False
                # Parsing blocks the event loop: let others run first if this iteration has been long.
                if len(answer) > LARGE_BYTES and not heavy_work().has_time():
                    await heavy_work().wait()
                result = _read(connection, answer, call_id)
            except LegError as end:  # a name of its own: compiled, a name has one type
                self._release(connection, end, attempts)
                if not once_more or not is_of_before(end):
                    # TLS 1.3 servers refuse a missing client certificate after the handshake, by closing.
                    if self._unproven and isinstance(end, ConnectionLost):
                        rejected = self.endpoint.rejected()
                        rejected.attempts = attempts
                        raise rejected from None
                    raise
                connection, attempts, once_more = None, 2, False
            except BaseException as fault:
                self._release(connection, fault, attempts)
                raise
            else:
                self._pool.give(connection)
                return plain_reply(result, attempts, len(answer))

    def send(self, method: str, params: Mapping[str, Any]) -> HttpExchange | None:
        """Send an idempotent request at once over an idle connection; None if there is none."""
        connection = self._pool.take()
        if connection is None:
            return None
        call_id = next(self._ids)
        exchange = connection.ask(self._request(call_id, method, params))
        exchange.transport, exchange.connection, exchange.call_id = self, connection, call_id
        return exchange

    def finish(self, exchange: HttpExchange) -> Reply:
        """The reply of an exchange of `send` that is done. Raises LegError, among them ConnectionLost."""
        connection = exchange.connection
        assert connection is not None
        try:
            answer = exchange.result()
            result = _read(connection, answer, exchange.call_id)
        except BaseException as fault:
            self._release(connection, fault, 1)
            if isinstance(fault, LegError) and is_of_before(fault):
                self._pool.clear()  # the other idle connections are probably dead, too
                raise fault if isinstance(fault, ConnectionLost) else ConnectionLost(fault.message) from None
            raise
        self._pool.give(connection)
        return plain_reply(result, 1, len(answer))

    def new_connection(self) -> Connection:
        """A connection that is not connected yet, to `adopt` afterwards."""
        return self._pool.new_connection()

    def adopt(self, connection: Connection) -> None:
        """Use a connection that was opened elsewhere (by ALPN negotiation)."""
        self._pool.adopt(connection)
        self._pool.give(connection)

    @property
    def stderr_tail(self) -> None:
        """The engine is not a process of this gateway."""

    def renew(self) -> None:
        """Look the engine's name up anew, and use no open connection for another call."""
        self._pool.invalidate()

    def overdue(self) -> None:
        """Nothing to do: the gateway cannot restart a remote engine."""

    async def close(self) -> None:
        """Close all connections; calls under way end with ConnectFailed("closed")."""
        await self._pool.close()

    def _request(self, call_id: int, method: str, params: Mapping[str, Any]) -> bytes:
        body = envelope.encode_call(call_id, method, params)
        head = self._heads.get(method) or self._add_head(method)
        trace, request_id = OUTGOING.get(), REQUEST_ID.get()
        if trace is None and not request_id:
            return b"%b%d\r\n\r\n%b" % (head, len(body), body)
        # The trace context and the request id are all that is passed on of the caller's headers.
        lines = b"" if trace is None else trace.lines
        if request_id:
            lines += b"X-Request-ID: %b\r\n" % request_id.encode("ascii")
        return b"%b%d\r\n%b\r\n%b" % (head, len(body), lines, body)

    def _release(self, connection: Connection, fault: BaseException, attempts: int) -> None:
        """Keep the connection after a proper refusal; close it after an invalid response or a cancellation."""
        orderly = isinstance(fault, BadStatus | LegRateLimited)
        if isinstance(fault, LegError):
            fault.attempts = attempts
            orderly = orderly or fault.code is not None
        if orderly:
            self._pool.give(connection)
        else:
            connection.abort()

    def _add_head(self, method: str) -> bytes:
        """The request up to the value of Content-Length."""
        target = self.endpoint.target(method).encode("ascii")
        head = b"POST %b HTTP/1.1\r\n%bContent-Length: " % (target, self._header_lines)
        # Emptied, not evicted one by one: engines have a dozen methods.
        if len(self._heads) >= MAX_HEADS:
            self._heads.clear()
        self._heads[method] = head
        return head

    def _tls_context(self) -> ssl.SSLContext | None:
        """The TLS context, built at the first dial that succeeds in building it."""
        if self._tls is None and self.endpoint.secure:
            self._tls = tls_context(self._entry.tls)
        return self._tls if self.endpoint.secure else None

    def __repr__(self) -> str:
        return f"<HttpTransport {self._entry.id} {self._pool!r}>"


def _read(connection: Connection, answer: Content, call_id: int) -> dict[str, Any]:
    if connection.status == 200:
        return read_reply(answer, call_id)
    return read_answer(connection.status, answer, connection.retry_after, call_id)
