"""A peer on a raw socket: every byte it sends, and every moment it hangs or hangs up, is scripted by the test.

    async def script(line: Line) -> None:
        request = await line.request()
        line.send(http_answer(rpc_answer(request.id, {"hits": []})))

    async with RawPeer(script) as peer: ...  # peer.url, peer.requests, peer.lines

The script runs once per connection; when it returns, the connection is closed.
"""

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class RawRequest:
    """One HTTP request as it came over the wire."""

    head: bytes
    body: bytes

    @property
    def target(self) -> str:
        return self.head.split(b" ", 2)[1].decode()

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode().split("\r\n")[1:]
        return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}

    @property
    def message(self) -> dict[str, Any]:
        return json.loads(self.body)

    @property
    def id(self) -> Any:
        return self.message["id"]


@dataclass(eq=False, slots=True)
class Line:
    """One accepted connection, from the peer's side. `ended` is set when the other side has closed it."""

    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    peer: "RawPeer"
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def request(self) -> RawRequest | None:
        """The next whole request, None when the other side has closed."""
        try:
            head = (await self.reader.readuntil(b"\r\n\r\n"))[:-4]
            request = RawRequest(head, b"")
            body = await self.reader.readexactly(int(request.headers["content-length"]))
        except (asyncio.IncompleteReadError, ConnectionError):
            self.ended.set()
            return None
        request = RawRequest(head, body)
        self.peer.requests.append(request)
        return request

    def send(self, *pieces: bytes) -> None:
        self.writer.write(b"".join(pieces))

    async def drip(self, data: bytes, size: int = 1) -> None:
        """Send `data` in pieces that arrive one by one."""
        for start in range(0, len(data), size):
            self.writer.write(data[start : start + size])
            await self.writer.drain()
            await asyncio.sleep(0)

    async def until_ended(self) -> None:
        """Wait until the other side closes, whatever it still sends."""
        with suppress(ConnectionError):
            while await self.reader.read(65_536):
                pass
        self.ended.set()

    def reset(self) -> None:
        """Hang up with a TCP reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Script = Callable[[Line], Awaitable[None]]


class RawPeer:
    """A listening socket on loopback whose connections all follow one script."""

    def __init__(
        self, script: Script, *, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        self._script = script
        self._host = host
        self._tls = tls
        self._tasks: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None
        self.port = port
        self.lines: list[Line] = []
        self.requests: list[RawRequest] = []
        self.faults: list[BaseException] = []

    @property
    def url(self) -> str:
        return self.address()

    def address(self, host: str | None = None, path: str = "/rcp") -> str:
        """Its URL, by another name if `host` is given."""
        shown = host or (f"[{self._host}]" if ":" in self._host else self._host)
        return f"{'https' if self._tls else 'http'}://{shown}:{self.port}{path}"

    @property
    def open_lines(self) -> int:
        return sum(not line.ended.is_set() for line in self.lines)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self._host, self.port, ssl=self._tls, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        if self.faults:
            raise self.faults[0]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        line = Line(len(self.lines) + 1, reader, writer, self)
        self.lines.append(line)
        try:
            await self._script(line)
        except (asyncio.CancelledError, ConnectionError):
            pass
        except Exception as fault:  # noqa: BLE001 - kept for the test to fail with
            self.faults.append(fault)
        finally:
            self._tasks.discard(task)
            writer.close()
            with suppress(ConnectionError, ssl.SSLError, asyncio.CancelledError):
                await writer.wait_closed()


def http_answer(
    body: bytes | dict[str, Any], status: int = 200, headers: Iterable[tuple[str, str]] = (), length: bool = True
) -> bytes:
    """The bytes of an HTTP/1.1 response."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Whatever", "Content-Type: application/json"]
    if length:
        lines.append(f"Content-Length: {len(content)}")
    lines.extend(f"{name}: {value}" for name, value in headers)
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + content


def chunked_answer(*chunks: bytes, headers: Iterable[tuple[str, str]] = ()) -> bytes:
    """A response in chunks."""
    head = http_answer(b"", headers=(("Transfer-Encoding", "chunked"), *headers), length=False)
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


def rpc_answer(request_id: Any, result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def rpc_error(request_id: Any, code: int, message: str, **data: Any) -> dict[str, Any]:
    error = {"code": code, "message": message, **({"data": data} if data else {})}
    return {"jsonrpc": "2.0", "id": request_id, "error": error}


async def echo(line: Line) -> None:
    """The script of a well-behaved engine: the result is the params."""
    while request := await line.request():
        line.send(http_answer(rpc_answer(request.id, request.message["params"])))


def answering(make: Callable[[RawRequest], bytes]) -> Script:
    """The script that answers each request with the bytes made of it."""

    async def script(line: Line) -> None:
        while request := await line.request():
            line.send(make(request))

    return script


class MutePeer:
    """A peer that takes thousands of connections cheaply and says nothing until `awake`, then echoes the params."""

    def __init__(self) -> None:
        self.awake = False
        self.open_lines = 0
        self.lines: set[asyncio.Transport] = set()
        self.taken = 0
        self.url = ""
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _MuteLine(self), "127.0.0.1", 0, backlog=1024)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/rcp"
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._server is not None
        for _ in range(5):  # what the kernel has accepted becomes a connection, and one that was left ends
            await asyncio.sleep(0)
        self._server.close()
        for line in tuple(self.lines):
            line.abort()
        await self._server.wait_closed()


class _MuteLine(asyncio.Protocol):
    def __init__(self, peer: MutePeer) -> None:
        self._peer = peer

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._peer.lines.add(transport)
        self._peer.open_lines += 1
        self._peer.taken += 1

    def data_received(self, data: bytes) -> None:
        if self._peer.awake:
            message = json.loads(data[data.index(b"\r\n\r\n") :])
            self._transport.write(http_answer(rpc_answer(message["id"], message["params"])))

    def connection_lost(self, exc: Exception | None) -> None:
        self._peer.lines.discard(self._transport)
        self._peer.open_lines -= 1
