"""JSON-RPC over a pipe (RCP §5.1): one message per line in both directions, answered in the order in which they finish.

`StdioEndpoint` reads and writes lines for any protocol; `RcpLines` is RCP. Each request is answered exactly once, also
when the caller leaves or the gateway stops.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from secrets import token_hex
from typing import Any, Protocol

from app.api.caller import Caller
from app.api.dispatch import Dispatcher
from app.api.gateway_state import GatewayState
from app.api.rpc_sessions import HandshakePolicy, SingleSession, session_sets
from app.api.send_queue import PipeProgressListener, SendQueue, Write
from app.engines.child_output import LineSplitter, OversizedLine
from app.protocol import envelope
from app.protocol.errors import BackendUnavailable, InvalidRequest, PayloadTooLarge, RcpError

MAX_UNDER_WAY = 128
"""Lines that are answered at once; the next are read when one has been. It bounds what unread answers may take."""

SHUTDOWN_SECONDS = 1.0
"""Seconds that a caller has to read the last answers when the gateway stops."""

SESSION = "stdio"

SPEAKS_MCP = InvalidRequest(
    "this is a message of MCP, and `rcp-gateway stdio` speaks RCP: start `rcp-gateway mcp` instead"
)

Read = Callable[[], Awaitable[bytes]]
"""The next bytes, none at the end. Raises OSError."""


class LineProtocol(Protocol):
    """What the messages of a pipe mean."""

    async def answer(self, message: Any, request_id: str, arrived: float) -> bytes | None:
        """The response to a parsed line that was read at `arrived` (event-loop seconds); None if there is none."""
        ...

    def refused(self, fault: RcpError, request_id: str, message_id: envelope.RequestId) -> bytes:
        """The response to a line that is no message."""
        ...

    def needs_engines(self, message: Any) -> bool:
        """Whether the answer depends on which engines have been reached."""
        ...

    def shutdown_response(self, message: Any) -> bytes | None:
        """The response to a request that is cut off because the gateway stops."""
        ...


ProtocolOf = Callable[["StdioEndpoint", SendQueue], LineProtocol]


class StdioEndpoint:
    """One caller at the other end of a pipe. `reach_engines` ends when the engines have had time to be reached."""

    def __init__(
        self,
        protocol_of: ProtocolOf,
        max_line_bytes: int,
        read: Read,
        write: Write,
        reach_engines: Callable[[], Awaitable[None]],
    ) -> None:
        self._limit = max_line_bytes
        self._splitter = LineSplitter(self._limit)
        self._read = read
        self._reach_engines = reach_engines
        self._capacity = asyncio.Event()
        self._send_queue = SendQueue(write, self._capacity.set)
        self._protocol = protocol_of(self, self._send_queue)
        self._under_way: set[asyncio.Task[None]] = set()
        self._request_ids = map(f"{token_hex(6)}-{{:x}}".format, count(1))
        self._engines_ready: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._stopping = False

    async def serve(self) -> None:
        """Until the caller leaves (the end of its input, or `shutdown`), what is under way included, or `stop`."""
        loop = asyncio.get_running_loop()
        self._engines_ready = loop.create_task(self._wait_for_engines())
        self._reading = loop.create_task(self._take_lines())
        writing = loop.create_task(self._send_queue.run())
        writing.add_done_callback(self._written)
        parts = (self._engines_ready, self._reading, writing)
        try:
            await asyncio.wait([self._reading])
            while self._under_way:
                await asyncio.wait(self._under_way)
            self._send_queue.close()
            await asyncio.wait([writing], timeout=SHUTDOWN_SECONDS if self._stopping else None)
        finally:
            for part in parts:
                part.cancel()
            ends = await asyncio.gather(*parts, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception) and not isinstance(end, OSError):
                raise end  # a fault of ours; an OSError is a caller that is gone

    def leave(self) -> None:
        """No further line is read; what is under way is still answered."""
        if self._reading is not None:
            self._reading.cancel()

    def stop(self) -> None:
        """End at once: what is under way is answered with -32010."""
        self._stopping = True
        self.leave()
        for task in self._under_way:
            task.cancel()

    async def _wait_for_engines(self) -> None:
        await self._reach_engines()

    async def _take_lines(self) -> None:
        """Read the pipe to its end, no faster than the caller reads."""
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while chunk := await self._read():
                arrived = loop.time()
                for line in self._splitter.feed(chunk):
                    await self._take(line, arrived)
        for line in self._splitter.rest():
            await self._take(line, loop.time())

    async def _take(self, line: bytes | bytearray | OversizedLine, arrived: float) -> None:
        """Begin to answer one line, as soon as there is room for it; it was read at `arrived` (event-loop seconds)."""
        while len(self._under_way) >= MAX_UNDER_WAY or self._send_queue.full:
            self._capacity.clear()
            await self._capacity.wait()
        request_id = next(self._request_ids)
        if isinstance(line, OversizedLine):
            fault = PayloadTooLarge(f"a line may be at most {self._limit} bytes long", field="body")
            self._send_queue.put(self._protocol.refused(fault, request_id, line.id))
        elif line.strip():
            try:
                message = envelope.read_body(bytes(line))
            except RcpError as fault:
                self._send_queue.put(self._protocol.refused(fault, request_id, None))
            else:
                task = asyncio.get_running_loop().create_task(self._answer(message, request_id, arrived))
                self._under_way.add(task)
                task.add_done_callback(self._answered)

    async def _answer(self, message: Any, request_id: str, arrived: float) -> None:
        """One message, or a batch, from beginning to end."""
        try:
            if (
                self._engines_ready is not None
                and not self._engines_ready.done()
                and self._protocol.needs_engines(message)
            ):
                await asyncio.shield(self._engines_ready)
            answer = await self._protocol.answer(message, request_id, arrived)
        except asyncio.CancelledError:
            answer = self._protocol.shutdown_response(message)
        if answer is not None:
            self._send_queue.put(answer)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._capacity.set()

    def _written(self, writing: asyncio.Task[None]) -> None:
        """Nothing can be written any more: done, or nobody is there to read it."""
        if not writing.cancelled() and writing.exception() is not None:
            self.stop()

    def __repr__(self) -> str:
        state = "stopping" if self._stopping else "reading" if self._reading else "not begun"
        return f"<StdioEndpoint {state}, {len(self._under_way)} under way, {self._send_queue!r}, {self._splitter!r}>"


class RcpLines:
    """RCP over a pipe, as one session."""

    def __init__(self, state: GatewayState, endpoint: StdioEndpoint, send_queue: SendQueue) -> None:
        sets = session_sets(state.settings)
        handshake = HandshakePolicy(SingleSession(sets, endpoint.leave), sets, state.offers)
        self._dispatcher = Dispatcher(state, handshake)
        self._progress = PipeProgressListener(send_queue)

    async def answer(self, message: Any, request_id: str, arrived: float) -> bytes | None:
        """See LineProtocol."""
        caller = Caller(request_id, SESSION, since=arrived)
        if type(message) is list:
            return await self._dispatcher.batch(message, caller, None)
        if _is_mcp(message):
            return self.refused(SPEAKS_MCP, request_id, envelope.recover_id(message))
        return await self._dispatcher.message(message, caller, None, self._progress)

    def refused(self, fault: RcpError, request_id: str, message_id: envelope.RequestId) -> bytes:
        """See LineProtocol."""
        return self._dispatcher.refused(fault, request_id, None, message_id)

    def needs_engines(self, message: Any) -> bool:
        """See LineProtocol; a ping must not wait for engines."""
        return type(message) is not dict or message.get("method") not in ("ping", "shutdown")

    def shutdown_response(self, message: Any) -> bytes | None:
        """See LineProtocol."""
        fault = BackendUnavailable("the gateway is shutting down", retryable=True)
        if type(message) is list:
            answers = [answer for member in message if (answer := self.shutdown_response(member)) is not None]
            return b"[" + b",".join(answers) + b"]" if answers else None
        if type(message) is dict and "id" not in message and "jsonrpc" in message:
            return None
        return envelope.failure(envelope.recover_id(message), fault)


def _is_mcp(message: Any) -> bool:
    """Whether it is a client of MCP that begins: the version is a date in MCP, and an integer in RCP."""
    if type(message) is not dict or message.get("method") not in ("initialize", "server/discover"):
        return False
    params = message.get("params")
    version = params.get("protocolVersion") if type(params) is dict else None
    return message["method"] == "server/discover" or type(version) is str
