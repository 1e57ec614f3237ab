"""Injects faults into the calls of one engine for a while: delays, errors, or no answer (`admin/fault`).

Pings and handshakes are not affected, so that only the engine's answers fail.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from app.engines.engine import RemoteEngine
from app.engines.replicas import Replica
from app.engines.transport import Exchange, Reply, Transport
from app.protocol.errors import ConnectFailed

KINDS = ("delay", "error", "hang")

UNTOUCHED = frozenset({"ping", "initialize", "info"})
"""Methods that show whether an engine is running; only its answers get faults."""


class FaultInjectingTransport:
    """A transport whose calls fail or wait as injected."""

    def __init__(self, inner: Transport, kind: str, delay: float) -> None:
        self.inner = inner
        self._kind = kind
        self._delay = delay

    async def call(self, method: str, params: Mapping[str, Any], *, idempotent: bool = True) -> Reply:
        """The call with the fault before it. Raises LegError."""
        # Checks must see the engine as it is, or it would count as down.
        if method not in UNTOUCHED:
            if self._kind == "error":
                raise ConnectFailed("injected fault: this failure is made on purpose")
            if self._kind == "hang":
                await asyncio.Event().wait()
            await asyncio.sleep(self._delay)
        return await self.inner.call(method, params, idempotent=idempotent)

    def send(self, method: str, params: Mapping[str, Any]) -> Exchange | None:
        """Never: only `call` can delay, and so injects the fault."""
        return None

    @property
    def stderr_tail(self) -> str | None:
        return self.inner.stderr_tail

    def renew(self) -> None:
        self.inner.renew()

    def overdue(self) -> None:
        """The fault is made on purpose."""

    async def close(self) -> None:
        await self.inner.close()

    def __repr__(self) -> str:
        return f"<FaultInjectingTransport {self._kind} {self.inner!r}>"


class FaultInjection:
    """One engine under a fault of `kind`, for `seconds`; `delay` in seconds, for the kind `delay` alone."""

    __slots__ = ("_injected", "_timer", "delay", "ends", "engine", "kind")

    def __init__(self, engine: RemoteEngine, kind: str, delay: float, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self.engine = engine
        self.kind = kind
        self.delay = delay
        self.ends = loop.time() + seconds
        """Event-loop seconds."""
        self._injected: list[tuple[Replica, FaultInjectingTransport]] = []
        for replica in engine.policies.tracker.replicas.all:
            injected = FaultInjectingTransport(replica.transport, kind, delay)
            replica.reach(injected)
            self._injected.append((replica, injected))
        self._timer = loop.call_later(seconds, self.end)

    @property
    def on(self) -> bool:
        """Whether the fault is still injected."""
        return bool(self._injected)

    def end(self) -> None:
        """Stop injecting: calls in flight keep their fault, later ones have none."""
        self._timer.cancel()
        injected, self._injected = self._injected, []
        for replica, transport in injected:
            replica.reach(transport.inner)

    def __repr__(self) -> str:
        return f"<FaultInjection {self.kind} of {self.engine.id}, {'on' if self.on else 'over'}>"
