"""Before the MCP door: opens it when somebody first comes, for what it is made of takes a second to load.

It decides when that happens, aside from the event loop, and that whoever comes meanwhile waits. It refuses to know MCP
and the SDK; other paths are left to the application behind.
"""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from app.api.dispatch import Dispatcher
from app.api.gateway_state import GatewayState
from app.api.responses import Asgi, Receive, Scope
from app.api.streaming import Send
from app.mcp.protected_resource import METADATA, PATH
from app.mcp.tool_definitions import NAMES

if TYPE_CHECKING:
    from app.mcp.http import McpEndpoint

PATHS = frozenset({PATH, METADATA})


class LazyMount:
    """Stands in front of `app`, and of the door once there is one."""

    __slots__ = ("_app", "_dispatcher", "_door", "_life", "_opened", "_over", "_state")

    def __init__(self, app: Asgi, dispatcher: Dispatcher, state: GatewayState) -> None:
        self._app = app
        self._dispatcher = dispatcher
        self._state = state
        self._door: McpEndpoint | None = None
        self._life: asyncio.Task[None] | None = None
        self._opened = asyncio.Event()
        self._over = asyncio.Event()
        state.metrics.mcp.declare(NAMES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope.get("path") not in PATHS:
            await self._app(scope, receive, send)
            return
        door = self._door
        if door is None:
            door = await self._open()
        await door(scope, receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Around the life of the application. If MCP is wished for in the settings, the door is open from the start."""
        if self._state.settings.mcp.enabled:
            await self._open()
        try:
            yield
        finally:
            self._over.set()
            if self._life is not None:
                await asyncio.wait([self._life])

    async def _open(self) -> "McpEndpoint":
        if self._life is None:
            self._life = asyncio.get_running_loop().create_task(self._live())
        opening = asyncio.ensure_future(self._opened.wait())
        await asyncio.wait([opening, self._life], return_when=asyncio.FIRST_COMPLETED)
        opening.cancel()
        if self._door is None:
            self._life.result()
            raise asyncio.CancelledError  # the gateway ended before the door was open
        return self._door

    async def _live(self) -> None:
        """The life of the door, in one task from beginning to end, as the SDK wants it."""
        made = await asyncio.to_thread(import_module, "app.mcp.http")
        gc.freeze()  # what was loaded will stay, so it need not be looked at again and again
        door: McpEndpoint = made.McpEndpoint(self._app, self._dispatcher, self._state)
        async with door.running():
            self._door = door
            self._opened.set()
            await self._over.wait()

    def __repr__(self) -> str:
        return f"<Porch {PATH} {'not opened yet' if self._door is None else repr(self._door)}>"
