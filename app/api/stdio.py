"""JSON-RPC over stdin and stdout (RCP §5.1): one message per line, with responses in the order of completion.

`StdioEndpoint` reads and writes lines for RCP and MCP; `RcpLines` is RCP. Each request is answered exactly once, even
if the caller closes its end or the gateway stops.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
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

MAX_IN_FLIGHT = 128
"""Most lines in flight; further ones wait. It limits the memory that unread responses can take."""

SHUTDOWN_SECONDS = 1.0
"""Seconds that the caller has to read the last responses when the gateway stops."""

SESSION = "stdio"

SPEAKS_MCP = InvalidRequest(
    "this is an MCP message, but `rcp-gateway stdio` speaks RCP: start `rcp-gateway mcp` instead"
)

Read = Callable[[], Awaitable[bytes]]
"""The next bytes; empty at the end. Raises OSError."""


class LineProtocol(Protocol):
    """The protocol of the lines: RCP or MCP."""

    async def answer(self, message: Any, request_id: str, arrived: float) -> bytes | None:
        """The response to a parsed line that arrived at `arrived` (event-loop seconds); None for notifications."""
        ...

    def refused(self, fault: RcpError, request_id: str, message_id: envelope.RequestId) -> bytes:
        """The response to a line that is not a message."""
        ...

    def needs_engines(self, message: Any) -> bool:
        """Whether the answer depends on which engines have been reached."""
        ...

    def shutdown_response(self, message: Any) -> bytes | None:
        """The response to a request that is cut off because the gateway stops."""
        ...


ProtocolOf = Callable[["StdioEndpoint", SendQueue], LineProtocol]


class StdioEndpoint:
    """Serves the caller at the other end of a pipe.

    `reach_engines` returns once engines had time for their first handshake.
    """

    def __init__(
        self,
        protocol_of: ProtocolOf,
        max_line_bytes: int,
        read: Read,
        write: Write,
        reach_engines: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._limit = max_line_bytes
        self._splitter = LineSplitter(self._limit)
        self._read = read
        self._reach_engines = reach_engines
        self._capacity = asyncio.Event()
        self._send_queue = SendQueue(write, self._capacity.set)
        self._protocol = protocol_of(self, self._send_queue)
        self._in_flight: set[asyncio.Task[None]] = set()
        self._request_ids = map(f"{token_hex(6)}-{{:x}}".format, count(1))
        self._engines_ready: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._stopping = False

    async def serve(self) -> None:
        """Serve until the input ends, or `leave` or `stop` is called. Only `stop` cancels the requests in flight."""
        loop = asyncio.get_running_loop()
        self._engines_ready = loop.create_task(self._reach_engines())
        self._reading = loop.create_task(self._take_lines())
        writing = loop.create_task(self._send_queue.run())
        writing.add_done_callback(self._written)
        # Requests that need no engine are answered before the first handshakes.
        parts = (self._engines_ready, self._reading, writing)
        try:
            await asyncio.wait([self._reading])
            while self._in_flight:
                await asyncio.wait(self._in_flight)
            self._send_queue.close()
            await asyncio.wait([writing], timeout=SHUTDOWN_SECONDS if self._stopping else None)
        finally:
            for part in parts:
                part.cancel()
            # Waits for the cancelled tasks, so that none outlives the endpoint.
            ends = await asyncio.gather(*parts, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception) and not isinstance(end, OSError):
                raise end  # a bug; an OSError means that the caller is gone

    def leave(self) -> None:
        """Stop reading. Requests in flight are still answered."""
        if self._reading is not None:
            self._reading.cancel()

    def stop(self) -> None:
        """Stop now: requests in flight are cancelled and answered with -32010."""
        self._stopping = True
        self.leave()
        for task in self._in_flight:
            task.cancel()

    async def _take_lines(self) -> None:
        """Read lines until the end of the input, and no faster than the caller reads responses."""
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while chunk := await self._read():
                arrived = loop.time()
                for line in self._splitter.feed(chunk):
                    await self._take(line, arrived)
        # The last line may have no newline.
        for line in self._splitter.rest():
            await self._take(line, loop.time())

    async def _take(self, line: bytes | bytearray | OversizedLine, arrived: float) -> None:
        """Begin to answer one line, once there is capacity. It arrived at `arrived` (event-loop seconds)."""
        # A loop, because a wake-up can mean either: a request has ended, or lines were written.
        while len(self._in_flight) >= MAX_IN_FLIGHT or self._send_queue.full:
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
                self._in_flight.add(task)
                task.add_done_callback(self._answered)

    async def _answer(self, message: Any, request_id: str, arrived: float) -> None:
        """Answer one message or batch, and queue the response."""
        try:
            if (
                self._engines_ready is not None
                and not self._engines_ready.done()
                and self._protocol.needs_engines(message)
            ):
                # Shielded: several requests wait for the same task.
                await asyncio.shield(self._engines_ready)
            answer = await self._protocol.answer(message, request_id, arrived)
        except asyncio.CancelledError:
            answer = self._protocol.shutdown_response(message)
        if answer is not None:
            self._send_queue.put(answer)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        self._capacity.set()

    def _written(self, writing: asyncio.Task[None]) -> None:
        """Writing has ended: all is written, or the caller is gone."""
        if not writing.cancelled() and writing.exception() is not None:
            self.stop()

    def __repr__(self) -> str:
        state = "stopping" if self._stopping else "reading" if self._reading else "not begun"
        return f"<StdioEndpoint {state}, {len(self._in_flight)} in flight, {self._send_queue!r}, {self._splitter!r}>"


class RcpLines:
    """RCP over stdio: all lines belong to one session."""

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
    """Whether this is the first message of an MCP client. The version is a date in MCP, and an integer in RCP."""
    if type(message) is not dict or message.get("method") not in ("initialize", "server/discover"):
        return False
    params = message.get("params")
    version = params.get("protocolVersion") if type(params) is dict else None
    return message["method"] == "server/discover" or type(version) is str
