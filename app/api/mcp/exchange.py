"""One HTTP exchange at the MCP door: its request id, what has been sent, and when a caller that does not read is given
up.

It refuses to know who is answered, and what.
"""

import asyncio
from collections.abc import Callable, MutableMapping
from types import TracebackType
from typing import Any

from app.api.rpc import sane_request_id
from app.api.stream import Send
from app.telemetry.logs import logger


class Exchange:
    """Made in the task that serves the request; used as a context, it swallows the end that it has made itself."""

    __slots__ = ("_send", "_task", "_timeout", "begun", "given_up", "request_id", "scope")

    def __init__(self, scope: MutableMapping[str, Any], send: Send, timeout: float, new_id: Callable[[], str]) -> None:
        """`timeout`: seconds that a caller may take to make room for the next piece of its answer."""
        self.scope = scope
        self.begun = False
        self.given_up = False
        self.request_id = sane_request_id(scope["headers"]) or new_id()
        self._send = send
        self._timeout = timeout
        self._task = asyncio.current_task()

    async def send(self, event: MutableMapping[str, Any]) -> None:
        """ASGI's send. A caller that makes no room in time is given up: its task is cancelled."""
        if event["type"] == "http.response.start":
            self.begun = True
            event = {**event, "headers": [*event.get("headers", ()), (b"x-request-id", self.request_id.encode())]}
        try:
            async with asyncio.timeout(self._timeout):
                await self._send(event)
        except TimeoutError:
            self._give_up()
            raise

    async def answer(self, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
        """A whole answer of JSON, unless another has begun."""
        if self.begun:
            return
        told = [*headers, (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await self.send({"type": "http.response.start", "status": status, "headers": told})
        sent = b"" if self.scope["method"] == "HEAD" else body
        await self.send({"type": "http.response.body", "body": sent})

    def _give_up(self) -> None:
        if not self.given_up:
            self.given_up = True
            logger().warning("slow_caller", request_id=self.request_id)
            if self._task is not None:
                self._task.cancel()

    def __enter__(self) -> "Exchange":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not self.given_up or kind is None:
            return False
        return kind is asyncio.CancelledError and self._task is not None and self._task.uncancel() == 0

    def __repr__(self) -> str:
        state = "given up" if self.given_up else "answering" if self.begun else "not begun"
        return f"<Exchange {self.request_id} {state}>"
