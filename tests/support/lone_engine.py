"""One RemoteEngine on a fake wire, and whom it told of changes."""

import asyncio
from typing import Any

from app.engines.engine import RemoteEngine
from app.engines.transport import Reply
from tests.support.fake_engine import FakeTransport, entry_of


class LoneEngine:
    """A RemoteEngine on a fake wire, and whom it told of changes."""

    def __init__(self, transport: FakeTransport, **wishes: Any) -> None:
        self.transport = transport
        self.changes: list[RemoteEngine] = []
        self.engine = RemoteEngine(entry_of("docs", **wishes), transport, self.changes.append)

    async def ask(self, seconds: float = 2.0, **options: Any) -> Reply:
        deadline = asyncio.get_running_loop().time() + seconds
        return await self.engine.call("retrieve", {"query": "q"}, deadline, **options)

    async def shake(self, seconds: float = 2.0) -> None:
        await self.engine.handshake(asyncio.get_running_loop().time() + seconds)

    async def check(self, seconds: float = 2.0) -> None:
        await self.engine.check(asyncio.get_running_loop().time() + seconds)
