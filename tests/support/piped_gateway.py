"""A stdio endpoint at work in the test's own loop: the test is the caller at the other end of its pipe."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from app.api.gateway_state import GatewayState
from app.api.stdio import RcpLines, StdioEndpoint
from tests.support.running_gateway import PATIENCE, Json, made_state, until

HELLO: Json = {"protocolVersion": 1, "client": {"name": "test", "version": "1"}}


async def at_once() -> None:
    """Nothing has to settle."""


class PipedGateway:
    """One stdio endpoint and its caller. `reading` cleared: the caller reads nothing."""

    def __init__(self, state: GatewayState, reach_engines: Callable[[], Awaitable[None]] = at_once) -> None:
        self.state = state
        self.reading = asyncio.Event()
        self.reading.set()
        self.broken = False
        self.written = 0
        """Bytes that the endpoint has handed over."""
        self.taken = 0
        """Chunks that the endpoint has read."""
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self._messages: asyncio.Queue[Any] = asyncio.Queue()
        self._rest = b""
        self._ids = 0
        self.endpoint = StdioEndpoint(
            partial(RcpLines, state), state.settings.server.max_line_bytes, self._read, self._write, reach_engines
        )

    def send(self, *messages: Any) -> None:
        """Write messages, each a line: JSON, or bytes as they are."""
        for message in messages:
            self.write((message if isinstance(message, bytes) else json.dumps(message).encode()) + b"\n")

    def write(self, data: bytes) -> None:
        """Write these bytes in one go."""
        self._chunks.put_nowait(data)

    def leave(self) -> None:
        """Close the pipe to the endpoint."""
        self._chunks.put_nowait(b"")

    def ask(self, method: str, params: Json | None = None, message_id: Any = None) -> Any:
        """Send one request; its id."""
        self._ids += 1
        message_id = self._ids if message_id is None else message_id
        self.send({"jsonrpc": "2.0", "id": message_id, "method": method, "params": params or {}})
        return message_id

    async def message(self) -> Any:
        """The next line that comes."""
        return await asyncio.wait_for(self._messages.get(), PATIENCE)

    async def call(self, method: str, params: Json | None = None) -> Json:
        """One request and the next line, which must be its answer."""
        message_id = self.ask(method, params)
        answer: Json = await self.message()
        assert answer["id"] == message_id, answer
        return answer

    async def hello(self) -> Json:
        """Shake hands; the result."""
        result: Json = (await self.call("initialize", HELLO))["result"]
        return result

    def unread(self) -> list[Any]:
        """Every line that has come and was not looked at."""
        return [self._messages.get_nowait() for _ in range(self._messages.qsize())]

    async def _read(self) -> bytes:
        chunk = await self._chunks.get()
        self.taken += 1
        return chunk

    async def _write(self, data: bytes) -> None:
        await self.reading.wait()
        if self.broken:
            raise BrokenPipeError
        self.written += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._messages.put_nowait(json.loads(line))


@asynccontextmanager
async def piped(
    entries: list[Json], settings: Json | None = None, *, hello: bool = True, reach: bool = True
) -> AsyncIterator[PipedGateway]:
    """A gateway behind a pipe, its engines reached and shaken hands with; at the end the caller leaves."""
    state = made_state(entries, settings)
    gateway = PipedGateway(state)
    state.engines.start()
    if reach:
        await until(lambda: all(engine.advertisement is not None for engine in state.engines.engines))
    serving = asyncio.create_task(gateway.endpoint.serve())
    try:
        if hello:
            await gateway.hello()
        yield gateway
        gateway.reading.set()
        gateway.leave()
        await asyncio.wait_for(serving, PATIENCE)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await state.engines.close()
