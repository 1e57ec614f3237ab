"""One downstream engine: gate -> transport, its handshake, and its last known advertisement.

It decides when to shake hands and how an engine's life (up, down, restarted) looks from here.
It refuses to know what is asked of an engine, and which kind of wire carries it.
"""

import asyncio
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from app.engines.transport import Exchange, Reply, Severed, Transport
from app.protocol.capabilities import Advertisement, read_advertisement
from app.protocol.errors import (
    BadStatus,
    ConnectFailed,
    InvalidRequest,
    LegError,
    LegTimeout,
    NotInitialized,
    Overloaded,
    ProtocolViolation,
    Refused,
)
from app.protocol.messages import PROTOCOL_VERSION
from app.resilience.expiry import Expiry
from app.resilience.limits import Gate, GateFull
from app.settings.schema import EngineEntry

UNHEALTHY_KINDS = frozenset({"timeout", "connect", "tls", "http_status", "protocol"})
"""Failures that say something about the engine; the others say something about one request."""

PATIENCE = 8
"""Calls that may wait for each place at an engine's gate: a burst against a quick engine is served, not refused. Their
deadlines bound how long they wait."""

HASTE = 0.5
"""A timeout after less than this share of the engine's own is the caller's haste, not the engine's failure."""


REFRESH = 4
"""Every how many checks an engine that is up is asked again what it can do; a gateway is asked each time."""


class RemoteEngine:
    """An engine of the registry as this process knows it. Satisfies `federation.engine.Engine`.

    `on_change` is called after each handshake that brought another advertisement than the last known one.
    """

    __slots__ = (
        "_checks",
        "_fault",
        "_forgotten",
        "_handshakes",
        "_on_change",
        "_secrets",
        "_shaking",
        "_transport",
        "advertisement",
        "entry",
        "gate",
        "id",
        "last_latency_ms",
    )

    def __init__(self, entry: EngineEntry, transport: Transport, on_change: Callable[["RemoteEngine"], None]) -> None:
        self.id = entry.id
        self.entry = entry
        self.advertisement: Advertisement | None = None
        self.gate = Gate(entry.max_concurrency, queue=entry.max_concurrency * PATIENCE)
        self.last_latency_ms: float | None = None
        self._transport = transport
        self._secrets = _secrets_of(entry)
        self._on_change = on_change
        self._fault: LegError | None = ConnectFailed("no handshake yet")
        self._shaking = asyncio.Lock()
        self._handshakes = 0
        self._checks = 0
        self._forgotten = False  # it answered that it knows of no handshake, as after a restart

    @property
    def up(self) -> bool:
        """Whether the last thing it did, in traffic or when checked, was right."""
        return self._fault is None

    @property
    def down_reason(self) -> str | None:
        """Class and text of the failure that made it count as down; None while it is up."""
        return f"{self._fault.kind}: {self._fault.message}" if self._fault is not None else None

    async def call(self, method: str, params: Mapping[str, Any], deadline: float, *, idempotent: bool = True) -> Reply:
        """Ask the engine and have its answer before `deadline` (event-loop seconds), the wait at the gate included.

        An engine that restarted and answers -32001 is shaken hands with and asked once more. Raises LegError.
        """
        given = deadline - asyncio.get_running_loop().time()
        attempts = 0
        expiry = Expiry(deadline)
        try:
            if not self.gate.try_enter():
                await self.gate.enter()
            try:
                attempts = 1
                reply = await self._ask(method, params, idempotent)
            finally:
                self.gate.leave()
        except asyncio.CancelledError:
            if not expiry.is_the_cause():
                raise
            raise self._late(given, attempts) from None
        except GateFull:
            raise self._overloaded() from None
        except LegError as fault:
            raise self._noted(fault) from None
        finally:
            expiry.end()
        self._fault = None
        return reply

    def begin(self, method: str, params: Mapping[str, Any]) -> "Asked | None":
        """Ask an idempotent question at once if nothing has to be waited for; None if `call` must be used.

        Unlike `call` it sets no deadline: whoever holds the Asked must end it in time.
        """
        if self._forgotten or not self.gate.try_enter():
            return None
        exchange = self._transport.begin(method, params)
        if exchange is None:
            self.gate.leave()
            return None
        return Asked(self, exchange)

    def finish(self, exchange: Exchange) -> Reply | None:
        """The answer of a begun exchange; None if it must be asked once more, by `call`. Raises LegError."""
        self.gate.leave()
        try:
            reply = exchange.take()
        except Severed:
            return None
        except LegError as fault:
            if fault.code == NotInitialized.code and isinstance(fault, Refused):
                self._forgotten = True
                return None
            raise self._noted(fault) from None
        self._fault = None
        return reply

    def abandon(self, exchange: Exchange, given: float | None) -> LegTimeout | None:
        """End a begun exchange that has no answer: out of its `given` seconds, or (None) because the caller left."""
        self.gate.leave()
        exchange.drop()
        return None if given is None else self._late(given, 1)

    async def check(self, deadline: float) -> None:
        """See whether it is there: `ping`, or a handshake while it counts as down. Raises LegError."""
        started = perf_counter()  # the loop's own clock may be no finer than a millisecond
        if self._fault is not None or self.advertisement is None:
            await self.handshake(deadline)
        else:
            self._checks += 1
            await self._ping(deadline)
            if self._fault is None and (self.advertisement.gateway_id is not None or self._checks % REFRESH == 0):
                await self._refresh(deadline)
        self.last_latency_ms = (perf_counter() - started) * 1000

    async def handshake(self, deadline: float) -> Advertisement:
        """`initialize`, or `info` if it says it is initialized already (RCP §7.1, §13). Raises LegError."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._shake_hands(self._handshakes)
        except TimeoutError:
            raise self._noted(LegTimeout("the handshake took longer than it was given")) from None
        except LegError as fault:
            raise self._noted(fault) from None

    async def close(self) -> None:
        """Release its connections or its process."""
        await self._transport.close()

    async def _refresh(self, deadline: float) -> None:
        """Ask once more what it can do: it may have been replaced unnoticed, and a gateway's engines come and go."""
        try:
            async with asyncio.timeout_at(deadline):
                said = read_advertisement((await self._transport.call("info", {})).result)
        except (TimeoutError, LegError):
            return  # it answers pings: what it said last still holds
        self._remember(said)

    async def _ping(self, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await self._transport.call("ping", {})  # not through the gate: a saturated engine is not a dead one
            self._fault = None
        except TimeoutError:
            raise self._noted(LegTimeout("no answer to ping")) from None
        except (BadStatus, ProtocolViolation):
            await self.handshake(deadline)  # it may not serve ping at all; what it does serve outranks that
        except LegError as fault:
            if fault.kind in UNHEALTHY_KINDS:
                raise self._noted(fault) from None

    async def _ask(self, method: str, params: Mapping[str, Any], idempotent: bool) -> Reply:
        seen = self._handshakes
        if self._forgotten:
            await self._shake_hands(seen)
            seen = self._handshakes
        try:
            return await self._transport.call(method, params, idempotent=idempotent)
        except Refused as refusal:
            if refusal.code != NotInitialized.code:
                raise
            before = refusal.attempts
        await self._shake_hands(seen)
        try:
            reply = await self._transport.call(method, params, idempotent=idempotent)
        except LegError as fault:
            fault.attempts += before
            raise
        return Reply(reply.result, reply.attempts + before, reply.size)

    async def _shake_hands(self, seen: int) -> Advertisement:
        """One handshake for all who noticed at the same time that one is due (`seen`: how many there had been)."""
        async with self._shaking:
            if self._handshakes == seen or self.advertisement is None:
                self._remember(read_advertisement(await self._greet()))
            assert self.advertisement is not None
            return self.advertisement

    async def _greet(self) -> dict[str, Any]:
        greeting = {
            "protocolVersion": PROTOCOL_VERSION,
            "client": {"name": "rcp-gateway", "version": "1"},
            "capabilities": {},
        }
        try:
            return (await self._transport.call("initialize", greeting)).result
        except Refused as refusal:
            if refusal.code != InvalidRequest.code:
                raise
        return (await self._transport.call("info", {})).result

    def _remember(self, advertisement: Advertisement) -> None:
        self._handshakes += 1
        self._fault = None
        self._forgotten = False
        try:
            same = advertisement == self.advertisement
        except RecursionError:  # it is read 1024 levels deep, which is more than can be compared
            same = False
        if not same:
            self.advertisement = advertisement
            self._on_change(self)

    def _late(self, given: float, attempts: int) -> LegTimeout:
        """The timeout of a call that had `given` seconds; held against the engine unless the caller was in haste."""
        fault = LegTimeout("no answer within the time it was given")
        fault.attempts = attempts
        if given * 1000 >= self.entry.timeout_ms * HASTE:
            self._fault = fault
        return fault

    def _overloaded(self) -> Overloaded:
        fault = Overloaded(f"{self.gate.in_flight} calls under way, {self.gate.waiting} waiting")
        fault.attempts = 0
        return fault

    def _noted(self, fault: LegError) -> LegError:
        for secret in self._secrets:
            if secret in fault.message:  # an engine, or what stands before it, quotes the request
                fault.message = fault.message.replace(secret, "***")
                fault.args = (fault.message,)
            if fault.culprit is not None:
                fault.culprit = {key: name.replace(secret, "***") for key, name in fault.culprit.items()}
        if fault.kind in UNHEALTHY_KINDS:
            self._fault = fault
        return fault

    def __repr__(self) -> str:
        state = "up" if self.up else f"down ({self.down_reason})"
        return f"<RemoteEngine {self.id} {self.entry.kind} {state}, {self.gate!r}, {self._handshakes} handshakes>"


def _secrets_of(entry: EngineEntry) -> tuple[str, ...]:
    """What must not come back in a note, longest first: the values of its headers and of its URL's query."""
    values = {word for value in entry.headers.values() for word in (value, *value.split())}
    values.update(pair.partition("=")[2] for pair in urlsplit(entry.url or "").query.split("&"))
    return tuple(sorted((value for value in values if len(value) >= 4), key=len, reverse=True))


class Asked:
    """A call under way without a task of its own. Exactly one of `take`, `late` and `drop` must end it."""

    __slots__ = ("_engine", "_exchange", "waiter")

    def __init__(self, engine: RemoteEngine, exchange: Exchange) -> None:
        self.waiter = exchange.waiter
        self._engine = engine
        self._exchange = exchange

    def take(self) -> Reply | None:
        """The answer, once `waiter` is done; None if the question must be asked once more. Raises LegError."""
        return self._engine.finish(self._exchange)

    def late(self, given: float) -> LegTimeout:
        """Its `given` seconds are over: the fault of its leg."""
        fault = self._engine.abandon(self._exchange, given)
        assert fault is not None
        return fault

    def drop(self) -> None:
        """Nobody waits for the answer any more."""
        self._engine.abandon(self._exchange, None)

    def __repr__(self) -> str:
        return f"<Asked {self._engine.id}: {self._exchange!r}>"
