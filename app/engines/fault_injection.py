"""A fault made on purpose, so that an operator sees what happens when an engine is slow, broken or mute.

Engines room. It stands between an engine and its transports for a while and is gone afterwards: without a drill no call
meets it. Pings and handshakes pass untouched. It refuses to know who wished for it, and whether that is allowed.
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
"""Methods that tell whether an engine is there; a drill is about its answers."""


class FaultInjectingTransport:
    """A transport whose calls have the fault of a drill."""

    def __init__(self, inner: Transport, kind: str, delay: float) -> None:
        self.inner = inner
        self._kind = kind
        self._delay = delay

    async def call(self, method: str, params: Mapping[str, Any], *, idempotent: bool = True) -> Reply:
        """The call with the fault before it. Raises LegError."""
        if method not in UNTOUCHED:
            if self._kind == "error":
                raise ConnectFailed("a drill: this failure is made on purpose")
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
        return f"<Drilled {self._kind} {self.inner!r}>"


class FaultInjection:
    """One engine under a fault of `kind`, for `seconds`; `delay` in seconds, for the kind `delay` alone."""

    __slots__ = ("_drilled", "_timer", "delay", "ends", "engine", "kind")

    def __init__(self, engine: RemoteEngine, kind: str, delay: float, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self.engine = engine
        self.kind = kind
        self.delay = delay
        self.ends = loop.time() + seconds
        """Event-loop seconds."""
        self._drilled: list[tuple[Replica, FaultInjectingTransport]] = []
        for replica in engine.policies.tracker.replicas.all:
            drilled = FaultInjectingTransport(replica.transport, kind, delay)
            replica.reach(drilled)
            self._drilled.append((replica, drilled))
        self._timer = loop.call_later(seconds, self.end)

    @property
    def on(self) -> bool:
        """Whether it still stands in the way."""
        return bool(self._drilled)

    def end(self) -> None:
        """Step aside: calls under way keep their fault, later ones have none."""
        self._timer.cancel()
        drilled, self._drilled = self._drilled, []
        for replica, transport in drilled:
            replica.reach(transport.inner)

    def __repr__(self) -> str:
        return f"<Drill {self.kind} of {self.engine.id}, {'on' if self.on else 'over'}>"
