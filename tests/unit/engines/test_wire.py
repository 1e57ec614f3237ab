"""One httpx2 transport with our network under it: the trail that a request leaves, and what its failures are called."""

import asyncio
import socket
import ssl
from typing import Any

import httpcore2
import httpx2
import pytest

from app.engines.endpoint import Endpoint
from app.engines.resolver import Resolver
from app.engines.transport import Severed
from app.engines.wire import TRAIL, Dialler, Trail, WatchedStream, Wire
from app.protocol.errors import ConnectFailed, ProtocolViolation, ResponseTooLarge, TlsFailed
from app.settings.schema import EngineEntry, EnginesSettings
from tests.support.raw_peer import Line, RawPeer, echo, http_answer
from tests.support.transport_kinds import Listen


def _wire(peer: RawPeer) -> Wire:
    entry = EngineEntry(id="docs", url=peer.url)
    empty = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return Wire(entry, EnginesSettings(), empty, Dialler(Endpoint.of(peer.url), Resolver()), 0.0)


async def _post(
    wire: Wire, peer: RawPeer, trail: Trail, limit: int = 1000
) -> tuple[int, bytes | bytearray, bytes | None]:
    TRAIL.set(trail)
    request = httpx2.Request("POST", f"{peer.url}/ping", content=b'{"id": 1, "params": {}}')
    return await wire.post(request, limit)


async def test_trail_of_a_first_and_of_a_second_request(listen: Listen) -> None:
    """The first request opens a connection, the second finds it; both hear an answer."""
    peer = await listen(echo)
    wire, first, second = _wire(peer), Trail(), Trail()
    status, body, retry_after = await _post(wire, peer, first)
    await _post(wire, peer, second)
    assert (status, retry_after) == (200, None)
    assert body.startswith(b'{"jsonrpc"')
    assert (first.dialled, first.heard, first.unreachable) == (True, True, False)
    assert (second.dialled, second.heard) == (False, True)
    await wire.close()


@pytest.mark.parametrize(
    ("answer", "heard", "fault"),
    [
        (b"", False, Severed),
        (b"HTTP/1.1 200 OK\r\nCont", True, ProtocolViolation),
        (b"nonsense\r\n\r\n", True, ProtocolViolation),
        (http_answer(bytes(1001)), True, ResponseTooLarge),
    ],
)
async def test_failures(listen: Listen, answer: bytes, heard: bool, fault: type[Exception]) -> None:
    """Before the first byte it is Severed, after it a violation of the protocol; httpx2's errors never come through."""

    async def script(line: Line) -> None:
        await line.request()
        line.send(answer)

    peer = await listen(script)
    wire, trail = _wire(peer), Trail()
    with pytest.raises(fault) as caught:
        await _post(wire, peer, trail)
    assert type(caught.value) is fault
    assert trail.heard is heard
    await wire.close()


async def test_unreachable() -> None:
    """When no address answers, the trail says so and the error names host and port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        dialler = Dialler(Endpoint.of(f"http://127.0.0.1:{port}/rcp"), Resolver())
        trail = Trail()
        TRAIL.set(trail)
        with pytest.raises(ConnectFailed, match=f"127.0.0.1:{port}: Connection refused"):
            await dialler.connect_tcp("127.0.0.1", port)
    assert trail.unreachable


class Stream(httpcore2.AsyncNetworkStream):
    """A network stream that fails, or hangs in the handshake."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.fault = fault
        self.closed = False

    async def _act(self) -> Any:
        if self.fault is not None:
            raise self.fault
        await asyncio.Event().wait()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._act()

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._act()

    async def start_tls(self, *args: Any, **kwargs: Any) -> httpcore2.AsyncNetworkStream:
        return await self._act()

    async def aclose(self) -> None:
        self.closed = True


async def test_tls_errors_on_an_open_stream() -> None:
    """What TLS complains about while reading or writing is class tls."""
    stream = WatchedStream(Stream(ssl.SSLError(1, "alert")), Endpoint.of("https://engine"))
    with pytest.raises(TlsFailed):
        await stream.read(10)
    with pytest.raises(TlsFailed):
        await stream.write(b"x")


async def test_handshake_that_is_given_up() -> None:
    """A handshake that hangs until its caller gives up closes the TCP connection under it."""
    inner = Stream()
    stream = WatchedStream(inner, Endpoint.of("https://engine"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await stream.start_tls(ssl.create_default_context())
    assert inner.closed
