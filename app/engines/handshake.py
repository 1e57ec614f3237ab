"""Shaking hands with one replica (RCP §7.1, §13): once for all who notice at the same time that it is due.

Engines room. It decides when a handshake is due and how it is asked for; what an engine advertises is read here and
kept by the engine. It refuses to know deadlines.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from app.engines.transport import Reply, Transport
from app.protocol.advertisement import Advertisement, read_advertisement
from app.protocol.errors import InvalidRequest, LegError, NotInitialized, Refused
from app.protocol.method_names import PROTOCOL_VERSION

GREETING = {
    "protocolVersion": PROTOCOL_VERSION,
    "client": {"name": "rcp-gateway", "version": "1"},
    "capabilities": {},
}


class EngineHandshake:
    """The handshakes with one replica; `remember` is handed what it advertises each time."""

    __slots__ = ("_shaking", "count", "forgotten", "purge", "remember", "transport")

    def __init__(self, transport: Transport, remember: Callable[[Advertisement], None]) -> None:
        self.count = 0
        self.forgotten = False
        """It answered that it knows of no handshake, as after a restart."""
        self.transport = transport
        self.purge: Callable[[Any], Any] = lambda said: said
        """Takes secrets out of what an engine says of itself."""
        self.remember = remember
        self._shaking = asyncio.Lock()

    async def shake(self, seen: int) -> None:
        """Shake hands unless somebody has since there were `seen`. Raises LegError."""
        async with self._shaking:
            if self.count == seen:
                said = read_advertisement(self.purge(await self._greet()))
                self.count += 1
                self.forgotten = False
                self.remember(said)

    async def refresh(self) -> None:
        """Ask once more what it can do. Raises LegError."""
        self.remember(read_advertisement(self.purge((await self.transport.call("info", {})).result)))

    async def ask(self, method: str, params: Mapping[str, Any], idempotent: bool) -> Reply:
        """The answer; the question is put once more, for free, if a handshake turns out to be due. Raises LegError."""
        seen = self.count
        if self.forgotten:
            await self.shake(seen)
            seen = self.count
        try:
            return await self.transport.call(method, params, idempotent=idempotent)
        except Refused as refusal:
            if refusal.code != NotInitialized.code:
                raise
            before = refusal.attempts
        await self.shake(seen)
        try:
            reply = await self.transport.call(method, params, idempotent=idempotent)
        except LegError as fault:
            fault.attempts += before
            fault.free = before
            raise
        return reply._replace(attempts=reply.attempts + before, free=before)

    async def _greet(self) -> dict[str, Any]:
        """`initialize`, or `info` if it says that it is initialized already."""
        try:
            return (await self.transport.call("initialize", GREETING)).result
        except Refused as refusal:
            if refusal.code != InvalidRequest.code:
                raise
        return (await self.transport.call("info", {})).result

    def __repr__(self) -> str:
        return f"<Handshake {self.count} so far{', one is due' if self.forgotten else ''}>"
