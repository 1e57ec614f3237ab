"""httpx2 held to the rules of this room: addresses from our resolver, one cap, and a trail of what went over the wire.

Engines room, for the httpx2 client alone. It decides how one POST goes over an httpx2 transport and what its failures
are called; it refuses to know what is asked, and when a wire is too old.
"""

import asyncio
import importlib.util
import ssl
from collections.abc import AsyncIterable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, cast

import anyio
import httpcore2
import httpx2

from app.engines.body import Body
from app.engines.endpoint import Endpoint
from app.engines.resolver import Resolver
from app.engines.transport import Severed
from app.protocol.errors import ConnectFailed, LegError, ProtocolViolation
from app.settings.schema import EngineEntry, EnginesSettings

HTTP2 = importlib.util.find_spec("h2") is not None
"""HTTP/2 is offered to engines over TLS if the extra `http2` is installed; else it is HTTP/1.1."""


class Trail:
    """What one request did: whether it opened a connection, found no address that answers, got any byte back."""

    __slots__ = ("dialled", "heard", "unreachable")

    def __init__(self) -> None:
        self.dialled = self.heard = self.unreachable = False

    def __repr__(self) -> str:
        return f"<Trail {' '.join(name for name in self.__slots__ if getattr(self, name)) or 'nothing yet'}>"


TRAIL: ContextVar[Trail] = ContextVar("trail")
"""The trail of the request whose task is running. (Over HTTP/2 a task may hear what is meant for another.)"""


class WatchedStream(httpcore2.AsyncNetworkStream):
    """A network stream of httpcore2 that leaves a trail, and is closed when TLS over it does not come about."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream, endpoint: Endpoint) -> None:
        self._stream = stream
        self._endpoint = endpoint

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            data = await self._stream.read(max_bytes, timeout)
        except ssl.SSLError as fault:  # in TLS 1.3 a refused client certificate shows only now
            raise self._endpoint.distrusted(fault) from None
        if data:
            TRAIL.get().heard = True
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        try:
            await self._stream.write(buffer, timeout)
        except ssl.SSLError as fault:
            raise self._endpoint.distrusted(fault) from None

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

    def __repr__(self) -> str:
        return f"<WatchedStream to {self._endpoint.label}>"


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
        trail = TRAIL.get()
        trail.dialled = True
        fault: LegError = ConnectFailed("no address")
        for address in await self._resolver.addresses(host):
            try:
                stream = await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except httpcore2.ConnectError as failed:
                self._resolver.doubt(host, address)
                fault = self._endpoint.unreachable(failed)
            except asyncio.CancelledError:
                self._resolver.doubt(host, address)
                raise
            else:
                return WatchedStream(stream, self._endpoint)
        trail.unreachable = True
        raise fault

    def forget(self) -> None:
        """Look the name up again for the next connection."""
        self._resolver.forget(self._endpoint.host)

    def __repr__(self) -> str:
        return f"<Dialler {self._endpoint.label} by {self._resolver!r}>"


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
        """Status, decoded body and Retry-After of the answer. Raises LegError."""
        try:
            return await self._post(request, limit)
        except httpx2.TransportError as fault:
            raise _translated(fault, TRAIL.get()) from None

    async def _post(self, request: httpx2.Request, limit: int) -> tuple[int, bytes | bytearray, bytes | None]:
        response = await self._transport.handle_async_request(request)
        try:
            headers = response.headers
            body = Body(limit, _raw(headers.get("content-encoding")))
            length = headers.get("content-length", "")
            if length.isdecimal():
                body.expect(int(length))
            async for piece in cast(AsyncIterable[bytes], response.stream):
                body.feed(piece)
            return response.status_code, body.finish(), _raw(headers.get("retry-after"))
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Close every connection."""
        with suppress(httpx2.TransportError):
            await self._transport.aclose()

    def __repr__(self) -> str:
        return f"<Wire {'retired, ' if self.retired else ''}{self.in_flight} in flight, {self._transport._pool!r}>"


def _translated(fault: httpx2.TransportError, trail: Trail) -> LegError:
    """What httpx2 found wrong on a connection that was there."""
    if not trail.heard:
        return Severed("the engine closed the connection without an answer")
    if isinstance(fault, httpx2.ProtocolError):
        return ProtocolViolation(f"the answer is not HTTP: {fault}")
    return ProtocolViolation("the connection broke off in the middle of the answer")


def _raw(value: str | None) -> bytes | None:
    return None if value is None else value.encode("latin-1", "replace")
