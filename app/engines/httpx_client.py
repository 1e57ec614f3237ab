"""RCP over httpx2: for engines with HTTP/2 (over TLS, if `h2` is installed) or with unusual TLS or HTTP.

Engines room. It decides how httpx2's pool is kept to the rules of our own one (addresses, age, one retry, the words for
what went wrong); it refuses to know what is asked. httpx2's client layer is left out: no cookies, no proxies or
other environment, no redirects, no default headers.
"""

import asyncio
import itertools
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import httpx2

from app.engines.body import read_answer
from app.engines.endpoint import Endpoint, request_headers, tls_context
from app.engines.resolver import Resolver
from app.engines.transport import Reply, Severed
from app.engines.wire import HTTP2, TRAIL, Dialler, Trail, Wire
from app.protocol import envelope
from app.protocol.errors import ConnectFailed, LegError, ProtocolViolation
from app.resilience.byte_budget import hold
from app.settings.schema import EngineEntry, EnginesSettings
from app.telemetry.traces import OUTGOING


class HttpxTransport:
    """One engine over httpx2. Satisfies `Transport`.

    A wire older than `max_connection_age_seconds`, or one that could not be trusted, takes no new calls and is closed
    when its last call has ended.
    """

    __slots__ = (
        "_calls",
        "_clock",
        "_closed",
        "_dialler",
        "_entry",
        "_headers",
        "_ids",
        "_settings",
        "_stale",
        "_tls",
        "_wire",
        "endpoint",
    )

    def __init__(
        self,
        entry: EngineEntry,
        settings: EnginesSettings,
        *,
        ssl_context: ssl.SSLContext | None = None,
        resolver: Resolver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is connected or read yet. `clock` (seconds) tells the age of a wire."""
        self.endpoint = Endpoint.of(entry.url or "")
        self._entry = entry
        self._settings = settings
        self._headers = request_headers(self.endpoint, entry)
        self._dialler = Dialler(self.endpoint, resolver or Resolver())
        self._tls = ssl_context
        self._clock = clock
        self._ids = itertools.count(1)
        self._wire: Wire | None = None
        self._calls: set[asyncio.Task[tuple[dict[str, Any], int]]] = set()
        self._closed = False
        self._stale = False

    async def call(self, method: str, params: Mapping[str, Any], *, idempotent: bool = True) -> Reply:
        """POST one request (RCP §5.2) and wait for its answer. Raises LegError.

        A reused connection that dies before the first byte of the answer is replaced once, if `idempotent`. What is not
        goes over a fresh connection: one that was kept may be dead without our knowing.
        """
        call_id = next(self._ids)
        body = envelope.encode_call(call_id, method, params)
        target = self.endpoint.target(method)
        trail = Trail()
        try:
            result, size = await self._in_task(target, body, call_id, trail, fresh=not idempotent)
            hold(size)
            return Reply(result, size=size)
        except Severed:
            if trail.dialled or not idempotent:
                raise
        try:
            result, size = await self._in_task(target, body, call_id, Trail())
            hold(size)
            return Reply(result, attempts=2, size=size)
        except LegError as fault:
            fault.attempts = 2
            raise

    def begin(self, method: str, params: Mapping[str, Any]) -> None:
        """Nothing is ever sent without waiting here; use `call`."""

    @property
    def stderr_tail(self) -> None:
        """There is no process of ours at the other end."""

    def renew(self) -> None:
        """Look the engine's name up anew, and use the present wire for no other call."""
        self._stale = True
        self._dialler.forget()

    async def close(self) -> None:
        """Close all connections; calls under way end with ConnectFailed("closed")."""
        self._closed = True
        calls = tuple(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        if self._wire is not None:
            await self._retire(self._wire)

    async def _in_task(
        self, target: str, body: bytes, call_id: int, trail: Trail, *, fresh: bool = False
    ) -> tuple[dict[str, Any], int]:
        """The exchange in a task that `close` can end too."""
        if self._closed:
            raise ConnectFailed("closed")
        task = asyncio.get_running_loop().create_task(self._exchange(target, body, call_id, trail, fresh))
        self._calls.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if self._closed and not (current and current.cancelling()):
                raise ConnectFailed("closed") from None
            raise
        finally:
            self._calls.discard(task)

    async def _exchange(
        self, target: str, body: bytes, call_id: int, trail: Trail, fresh: bool
    ) -> tuple[dict[str, Any], int]:
        TRAIL.set(trail)
        wire = self._wire_for_one() if fresh else await self._current_wire()
        url = f"{self.endpoint.origin}{target}"
        trace = OUTGOING.get()
        headers = self._headers if trace is None else [*self._headers, *trace.headers]
        request = httpx2.Request("POST", url, headers=headers, content=body)
        wire.in_flight += 1
        try:
            status, answer, retry_after = await wire.post(request, self._settings.max_response_bytes)
            return read_answer(status, answer, retry_after, call_id), len(answer)
        except LegError as fault:
            # It talks nonsense, or it is no longer where these connections lead: not a word more over them.
            if trail.unreachable or (isinstance(fault, ProtocolViolation) and fault.code is None):
                await self._retire(wire)
            raise
        finally:
            wire.in_flight -= 1
            if wire.retired and not wire.in_flight:
                with anyio.CancelScope(shield=True):
                    await wire.close()

    async def _current_wire(self) -> Wire:
        now = self._clock()
        wire = self._wire
        if wire is not None and (self._stale or now - wire.born >= self._settings.max_connection_age_seconds):
            await self._retire(wire)
        self._stale = False
        if self._wire is None:
            self._wire = Wire(self._entry, self._settings, self._trust(), self._dialler, now)
        return self._wire

    def _wire_for_one(self) -> Wire:
        """A wire for one call, closed after it."""
        wire = Wire(self._entry, self._settings, self._trust(), self._dialler, self._clock())
        wire.retired = True
        return wire

    async def _retire(self, wire: Wire) -> None:
        """No new calls on this wire; it is closed once nothing is under way on it."""
        wire.retired = True
        if self._wire is wire:
            self._wire = None
        if not wire.in_flight:
            await wire.close()

    def _trust(self) -> ssl.SSLContext:
        """The TLS context, built once; for plain HTTP an empty one, since httpx2 would read all authorities."""
        if self._tls is None:
            secure = self.endpoint.secure
            self._tls = tls_context(self._entry.tls) if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return self._tls

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._calls)} calls under way"
        return f"<HttpxTransport {self._entry.id} {self.endpoint.label} {state}, {'HTTP/2' if HTTP2 else 'HTTP/1.1'}>"
