"""MCP over stdin and stdout, for desktop assistants: the same server and tools as over HTTP, for one client.

Separate from HTTP, because a pipe has one caller and no headers; reading and writing lines is `app.api.stdio`.
"""

import asyncio
from typing import Any

from app.api.caller import Caller
from app.api.dispatch import Dispatcher
from app.api.gateway_state import GatewayState
from app.api.send_queue import SendQueue
from app.api.stdio import SESSION, StdioEndpoint
from app.mcp import server
from app.mcp.server import McpAnswer, McpError, McpServer, read_message
from app.mcp.tools import Tools
from app.protocol import envelope
from app.protocol.errors import RcpError
from app.telemetry.logs import logger

WITHOUT_ENGINES = ("initialize", "ping", "resources/list", "resources/templates/list")
"""Methods whose answers do not depend on engines: a client that connects must not wait for them."""


class McpLines:
    """The protocol of one client on a pipe; satisfies LineProtocol."""

    def __init__(self, state: GatewayState, endpoint: StdioEndpoint, send_queue: SendQueue) -> None:
        self._dispatcher = Dispatcher(state)
        tools = Tools(self._dispatcher, state)
        self._server = McpServer(tools, state.metrics.mcp, state.settings.server.name, state.version)
        self._max_batch = state.settings.server.max_batch
        self._send_queue = send_queue
        # The revision of requests that do not describe themselves: what `initialize` negotiates.
        self._version = server.HANDSHAKE[-1]

    async def answer(self, message: Any, request_id: str, arrived: float) -> bytes | None:
        """The response to one message or batch; None if nothing is to be answered."""
        caller = Caller(request_id, SESSION, since=arrived)
        if type(message) is not list:
            return await self._answer_one(message, caller)
        if self._version != server.BATCHES or not 0 < len(message) <= self._max_batch:
            text = f"batches exist in revision {server.BATCHES} only, with 1 to {self._max_batch} messages"
            return McpError(server.INVALID_REQUEST, text).body(None)
        bodies = [body for body in await asyncio.gather(*(self._answer_one(each, caller) for each in message)) if body]
        return b"[" + b",".join(bodies) + b"]" if bodies else None

    async def _answer_one(self, message: Any, caller: Caller) -> bytes | None:
        try:
            modern = server.is_modern(message)
            read = read_message(message, server.MODERN if modern else self._version)
        except McpError as fault:
            return fault.body(server.id_of(message))
        # Nothing else is kept: a client of either kind may go on without, so the order of messages does not matter.
        if read.method == "initialize" and not modern:
            wanted = read.params.get("protocolVersion")
            self._version = wanted if wanted in server.HANDSHAKE else server.HANDSHAKE[-1]
        answer: McpAnswer = await self._server.answer(read, caller, self._send_queue.put)
        if answer.line is not None:
            logger().info("mcp", **answer.line, bytes=len(answer.body or b""))
        # A client that has cancelled its request does not expect a response, and may have used its id again.
        return None if answer.code == server.CANCELLED_CODE else answer.body

    def refused(self, fault: RcpError, request_id: str, message_id: envelope.RequestId) -> bytes:
        """The response to a line that is no message."""
        return self._dispatcher.refused(fault, request_id, None, message_id)

    def needs_engines(self, message: Any) -> bool:
        """Whether the answer depends on which engines have been reached."""
        if type(message) is not dict:
            return True
        # A notification is acted on at once: it may cancel a request that waits.
        return "id" in message and message.get("method") not in WITHOUT_ENGINES

    def shutdown_response(self, message: Any) -> bytes | None:
        """The response to a request that is cut off because the gateway stops."""
        if type(message) is list:
            bodies = [body for each in message if (body := self.shutdown_response(each)) is not None]
            return b"[" + b",".join(bodies) + b"]" if bodies else None
        if type(message) is dict and "id" not in message:
            return None
        return McpError(server.INTERNAL, "the gateway is shutting down").body(server.id_of(message))

    def __repr__(self) -> str:
        return f"<McpLines {self._version}, {self._server!r}>"
