"""RCP over httpx2: for engines that need HTTP/2 or will sit behind a proxy.

Engines room. It decides how httpx2's pool is kept to the rules of our own one (addresses, age, one retry, the words for
what went wrong); it refuses to know what is asked. httpx2's client layer is left out: no cookies, no environment, no
redirects, no default headers.
"""

import asyncio
import importlib.util
import itertools
import ssl
import time
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, cast

import anyio
import httpcore2
import httpx2

from app.engines.body import Body, read_answer
from app.engines.connection import Severed
from app.engines.endpoint import Endpoint, request_headers, tls_context
from app.engines.resolver import Resolver
from app.engines.transport import Reply
from app.protocol import envelope
from app.protocol.errors import ConnectFailed, LegError, ProtocolViolation
from app.settings.schema import EngineEntry, EnginesSettings

HTTP2 = importlib.util.find_spec("h2") is not None


class Trail:
    """What one request did on the wire: whether it opened a connection, and whether any byte came back."""

    __slots__ = ("dialled", "heard")

    def __init__(self) -> None:
        self.dialled = self.heard = False


_TRAIL: ContextVar[Trail] = ContextVar("trail")


class WatchedStream(httpcore2.AsyncNetworkStream):
    """A network stream of httpcore2 that leaves a trail, and is closed when TLS over it does not come about."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream, endpoint: Endpoint) -> None:
        self._stream = stream
        self._endpoint = endpoint

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._stream.read(max_bytes, timeout)
        if data:
            _TRAIL.get().heard = True
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        try:
            secured = await self._stream.start_tls(ssl_context, server_hostname, timeout)
        except httpcore2.ConnectError as fault:
            raise self._endpoint.distrusted(fault) from None
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._stream.aclose()
            raise
        return WatchedStream(secured, self._endpoint)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class Dialler(httpcore2.AsyncNetworkBackend):
    """httpcore2's way to the network, with our resolver in front and our words for its failures."""

    def __init__(self, endpoint: Endpoint, resolver: Resolver) -> None:
        self._endpoint = endpoint
        self._resolver = resolver
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        _TRAIL.get().dialled = True
        fault: LegError = ConnectFailed("no address")
        addresses = await self._resolver.addresses(host)
        try:
            for address in addresses:
                try:
                    stream = await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
                except httpcore2.ConnectError as failed:
                    fault = self._endpoint.unreachable(failed)
                else:
                    return WatchedStream(stream, self._endpoint)
            raise fault
        except BaseException:
            self._resolver.forget(host)
            raise


class Wire:
    """One httpx2 transport with the connections it has opened, for as long as they may be used."""

    __slots__ = ("_transport", "born", "in_flight", "retired")

    def __init__(
        self, entry: EngineEntry, settings: EnginesSettings, tls: ssl.SSLContext, dialler: Dialler, born: float
    ) -> None:
        limits = httpx2.Limits(
            max_connections=None,  # the engine's gate is the bound
            max_keepalive_connections=entry.max_concurrency,
            keepalive_expiry=settings.idle_seconds,
        )
        self._transport = httpx2.AsyncHTTPTransport(verify=tls, trust_env=False, http2=HTTP2, limits=limits, retries=0)
        # httpx2 has no argument for httpcore2's `network_backend`.
        self._transport._pool._network_backend = dialler
        self.born = born
        self.in_flight = 0
        self.retired = False

    async def post(self, request: httpx2.Request, limit: int) -> tuple[int, bytes | bytearray, bytes | None]:
        """Status, decoded body and Retry-After of the answer. Raises LegError and httpx2.TransportError."""
        response = await self._transport.handle_async_request(request)
        try:
            headers = response.headers
            body = Body(limit, _raw(headers.get("content-encoding")))
            body.expect(int(headers.get("content-length", 0)))
            async for piece in cast(AsyncIterable[bytes], response.stream):
                body.feed(piece)
            return response.status_code, body.finish(), _raw(headers.get("retry-after"))
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Close every connection."""
        with suppress(httpx2.TransportError):
            await self._transport.aclose()


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
        self._calls: set[asyncio.Task[dict[str, Any]]] = set()
        self._closed = False

    async def call(self, method: str, params: Mapping[str, Any], *, idempotent: bool = True) -> Reply:
        """POST one request (RCP §5.2) and wait for its answer. Raises LegError.

        A reused connection that dies before the first byte of the answer is replaced once, if `idempotent`.
        """
        call_id = next(self._ids)
        body = envelope.encode_call(call_id, method, params)
        target = self.endpoint.target(method)
        trail = Trail()
        try:
            return Reply(await self._in_task(target, body, call_id, trail))
        except Severed:
            if trail.dialled or not idempotent:
                raise
        try:
            return Reply(await self._in_task(target, body, call_id, Trail()), attempts=2)
        except LegError as fault:
            fault.attempts = 2
            raise

    async def close(self) -> None:
        """Close all connections; calls under way end with ConnectFailed("closed")."""
        self._closed = True
        calls = tuple(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        if self._wire is not None:
            await self._retire(self._wire)

    async def _in_task(self, target: str, body: bytes, call_id: int, trail: Trail) -> dict[str, Any]:
        """The exchange in a task that `close` can end too."""
        if self._closed:
            raise ConnectFailed("closed")
        task = asyncio.get_running_loop().create_task(self._exchange(target, body, call_id, trail))
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

    async def _exchange(self, target: str, body: bytes, call_id: int, trail: Trail) -> dict[str, Any]:
        _TRAIL.set(trail)
        wire = await self._current_wire()
        url = f"{self.endpoint.origin}{target}"
        request = httpx2.Request("POST", url, headers=self._headers, content=body)
        wire.in_flight += 1
        try:
            status, answer, retry_after = await wire.post(request, self._settings.max_response_bytes)
            return read_answer(status, answer, retry_after, call_id)
        except httpx2.TransportError as fault:
            await self._retire(wire)
            raise _translated(fault, trail) from None
        except ProtocolViolation as fault:
            if fault.code is None:
                await self._retire(wire)  # it talks nonsense: not a word more over these connections
            raise
        except ConnectFailed:
            await self._retire(wire)  # connections opened before lead to where the engine no longer is
            raise
        finally:
            wire.in_flight -= 1
            if wire.retired and not wire.in_flight:
                with anyio.CancelScope(shield=True):
                    await wire.close()

    async def _current_wire(self) -> Wire:
        now = self._clock()
        wire = self._wire
        if wire is not None and now - wire.born >= self._settings.max_connection_age_seconds:
            await self._retire(wire)
        if self._wire is None:
            self._wire = Wire(self._entry, self._settings, self._trust(), self._dialler, now)
        return self._wire

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


def _translated(fault: httpx2.TransportError, trail: Trail) -> LegError:
    """What httpx2 found wrong on a connection that was there."""
    if not trail.heard:
        return Severed("the engine closed the connection without an answer")
    if isinstance(fault, httpx2.ProtocolError):
        return ProtocolViolation(f"the answer is not HTTP: {fault}")
    return ProtocolViolation("the connection broke off in the middle of the answer")


def _raw(value: str | None) -> bytes | None:
    return None if value is None else value.encode("latin-1", "replace")
