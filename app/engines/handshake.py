"""The handshake with one replica (RCP §7.1, §13), performed once for all calls that find it due at the same time.

Separate from replicas.py, which never waits.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from app.engines.transport import Reply, Transport
from app.protocol.advertisement import Advertisement, read_advertisement
from app.protocol.errors import InvalidRequest, LegError, NotInitialized, Refused
from app.protocol.method_names import PROTOCOL_VERSION

INITIALIZE_PARAMS = {
    "protocolVersion": PROTOCOL_VERSION,
    "client": {"name": "rcp-gateway", "version": "1"},
    "capabilities": {},
}


class EngineHandshake:
    """The handshakes with one replica; `remember` is called with each advertisement."""

    __slots__ = ("_lock", "clean", "count", "due", "remember", "transport")

    def __init__(self, transport: Transport, remember: Callable[[Advertisement], None]) -> None:
        self.count = 0
        self.due = False
        """Whether it has answered -32001 since the last handshake, as after a restart."""
        self.transport = transport
        self.clean: Callable[[Any], Any] = lambda described: described
        """Removes secrets from what an engine advertises."""
        self.remember = remember
        self._lock = asyncio.Lock()

    async def perform(self, seen: int) -> None:
        """Perform a handshake, unless the count has risen above `seen` meanwhile. Raises LegError."""
        # Calls that find the handshake due at the same time wait for one of them.
        async with self._lock:
            if self.count == seen:
                described = read_advertisement(self.clean(await self._initialize()))
                self.count += 1
                self.due = False
                self.remember(described)

    async def refresh(self) -> None:
        """Read the advertisement again. Raises LegError."""
        self.remember(read_advertisement(self.clean((await self.transport.call("info", {})).result)))

    async def call(self, method: str, params: Mapping[str, Any], idempotent: bool) -> Reply:
        """Send a request, once more after a handshake if one turns out to be due. Raises LegError.

        The repetition does not count as a retry (`Reply.free`).
        """
        seen = self.count
        if self.due:
            await self.perform(seen)
            seen = self.count
        try:
            return await self.transport.call(method, params, idempotent=idempotent)
        except Refused as refusal:
            # -32001: the engine has restarted and lost its session.
            if refusal.code != NotInitialized.code:
                raise
            before = refusal.attempts
        await self.perform(seen)
        try:
            reply = await self.transport.call(method, params, idempotent=idempotent)
        except LegError as fault:
            fault.attempts += before
            fault.free = before
            raise
        return reply._replace(attempts=reply.attempts + before, free=before)

    async def _initialize(self) -> dict[str, Any]:
        """Send `initialize`, or `info` if the engine answers that it is initialized already (RCP §13)."""
        try:
            return (await self.transport.call("initialize", INITIALIZE_PARAMS)).result
        except Refused as refusal:
            if refusal.code != InvalidRequest.code:
                raise
        return (await self.transport.call("info", {})).result

    def __repr__(self) -> str:
        return f"<EngineHandshake {self.count} so far{', one is due' if self.due else ''}>"


class Warmed(NamedTuple):
    """The end of an engine's warm-up: `fault` is None after a handshake, otherwise why there was none in time."""

    engine: str
    seconds: float
    fault: str | None
