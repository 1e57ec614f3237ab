"""A whole gateway behind a front socket of its own, and callers that read its event streams byte by byte.

Served as in production, by uvicorn with the endpoints' protocol, but in the loop of the test.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from app.api.gateway_state import GatewayState
from app.main import build_app
from app.server.http_protocol import HttpProtocol
from app.server.lifecycle import GatewayServer
from tests.support.running_gateway import PATIENCE, Json, made_state, until

EVENTS = "application/json, text/event-stream"


@asynccontextmanager
async def listening(
    entries: list[Json],
    settings: Json | None = None,
    *,
    send_buffer: int | None = None,
    tenants: Json | None = None,
    reach: bool = True,
) -> AsyncIterator[tuple[GatewayState, int]]:
    """A gateway on a port of loopback: (its state, the port); with `reach` once every engine has shaken hands.

    With a small `send_buffer` (bytes) the kernel holds little of what a caller does not read.
    """
    state = made_state(entries, settings, tenants=tenants)
    listener = socket.create_server(("127.0.0.1", 0))
    if send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    options = uvicorn.Config(
        build_app(state), http=HttpProtocol, lifespan="on", ws="none", log_config=None, access_log=False
    )
    server = GatewayServer(options, state)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await until(lambda: server.started or serving.done())
        await until(lambda: not reach or all(engine.advertisement is not None for engine in state.engines.engines))
        yield state, listener.getsockname()[1]
    finally:
        server.should_exit = True
        await asyncio.wait_for(serving, PATIENCE)
        listener.close()


@dataclass
class Reader:
    """The caller of one request: its answer's head, and what has come of the body."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    _rest: bytes = b""

    async def head(self) -> "Reader":
        """Read status and headers."""
        async with asyncio.timeout(PATIENCE):
            raw = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = raw.rstrip("\r\n").split("\r\n")
        self.status = int(first.split(" ")[1])
        for name, _, value in (line.partition(": ") for line in lines):
            assert name not in self.headers, f"{name} twice"
            self.headers[name.lower()] = value
        return self

    async def frame(self) -> bytes | None:
        """The next frame or comment, without its blank line; None once the answer has ended in good order."""
        assert self.headers["transfer-encoding"] == "chunked"
        while b"\n\n" not in self._rest:
            async with asyncio.timeout(PATIENCE):
                size = int((await self.reader.readuntil(b"\r\n"))[:-2], 16)
                piece = await self.reader.readexactly(size + 2)
            if size == 0:
                assert self._rest == b""
                return None
            self._rest += piece[:-2]
        frame, _, self._rest = self._rest.partition(b"\n\n")
        return frame

    async def message(self) -> Any:
        """The JSON-RPC message of the next frame, None at the end."""
        frame = await self.frame()
        if frame is None:
            return None
        assert frame.startswith(b"data: ")
        assert b"\n" not in frame
        return json.loads(frame.removeprefix(b"data: "))

    async def progress(self) -> Json:
        """The params of the next frame, which must be a progress."""
        message = await self.message()
        assert message["method"] == "notifications/progress", message
        assert "id" not in message
        params: Json = message["params"]
        return params

    async def plain(self) -> Any:
        """The body of a plain answer."""
        async with asyncio.timeout(PATIENCE):
            return json.loads(await self.reader.readexactly(int(self.headers["content-length"])))

    async def until_closed(self) -> bytes:
        """Everything until the gateway closes the connection or breaks it off."""
        received = b""
        with suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE):
                while piece := await self.reader.read(65_536):
                    received += piece
        return received


@asynccontextmanager
async def asking(
    port: int,
    message: Any,
    *,
    receive_buffer: int | None = None,
    limit: int = 2**24,
    path: str = "/rcp",
    **headers: str,
) -> AsyncIterator[Reader]:
    """One request on a connection of its own; `headers` with underscores for dashes.

    A small `receive_buffer` and `limit` (bytes) make a caller that does not read hold little.
    """
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=limit)
    writer.write(_request(message, {"accept": EVENTS, **headers}, path))
    try:
        yield Reader(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def _request(message: Any, headers: Mapping[str, str], path: str) -> bytes:
    body = json.dumps(message).encode()
    lines = [f"POST {path} HTTP/1.1", "host: gateway", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items() if value]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def question(token: str | int | None = "t", message_id: Any = 1, **params: Any) -> Json:
    """A `retrieve` that wants to hear of its progress, unless `token` is None."""
    meta = {} if token is None else {"_meta": {"progressToken": token}}
    return {"jsonrpc": "2.0", "id": message_id, "method": "retrieve", "params": {"query": "q", **meta, **params}}
