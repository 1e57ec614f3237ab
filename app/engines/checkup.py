"""Looking whether an engine is there, apart from traffic: `ping`, or a handshake while it counts as down.

Engines room. It decides what a check asks and what it takes for well; traffic outranks it. It refuses to know when
checks are due (health.py).
"""

import asyncio
from collections.abc import Callable
from time import perf_counter

from app.engines.blame import counts, is_suspect, marks_down
from app.engines.guards import Guards
from app.engines.replica import Replica
from app.engines.suspicion import CONTROL_CALLS
from app.engines.transport import check_shape
from app.protocol.capabilities import Advertisement
from app.protocol.errors import BadStatus, LegError, LegTimeout, ProtocolViolation

REFRESH = 4
"""Every how many checks an engine that is up is asked again what it can do; a gateway is asked each time."""


class Checkup:
    """The checks of one engine. `known` gives its last known advertisement."""

    __slots__ = ("_guards", "_known", "_pings", "_rounds", "latency_ms")

    def __init__(self, guards: Guards, known: Callable[[], Advertisement | None]) -> None:
        self.latency_ms: float | None = None
        """Of the last check that went well."""
        self._guards = guards
        self._known = known
        self._pings = 0
        self._rounds = 0

    async def check(self, deadline: float) -> None:
        """One replica that is well will do; each check begins with another. Raises LegError."""
        standing = self._guards.ledger.standing
        standing.answered = False
        replicas = self._guards.ledger.replicas.all
        first = self._rounds % len(replicas)
        self._rounds += 1
        fault: LegError | None = None
        for place, replica in enumerate((*replicas[first:], *replicas[:first])):
            share = (deadline - _now()) / (len(replicas) - place)
            try:
                await self._look(replica, _now() + share)
                return
            except LegError as failed:
                fault = self._guards.ledger.mask(failed)
                if counts(fault):  # -32603 as well: what a check asks is our own
                    self._guards.ledger.replicas.failed(replica, fault, _now())
        assert fault is not None
        if standing.answered:
            return  # it serves what it is there for
        if marks_down(fault) or is_suspect(fault) or standing.fault is not None:
            standing.bad(fault)
        raise fault

    async def handshake(self, deadline: float, replica: Replica | None = None) -> None:
        """`initialize`, or `info` if it says it is initialized already (RCP §7.1, §13). Raises LegError."""
        replica = replica or self._guards.ledger.replicas.all[0]
        await self._in_time(replica, deadline, "the handshake took longer than it was given", shaking=True)

    async def control(self, method: str, replica: Replica, generation: int) -> None:
        """Make a plain call and tell the ledger what came of it. Not through the gate: a saturated engine is not a
        broken one."""
        ledger = self._guards.ledger
        fault: LegError | None = None
        try:
            async with asyncio.timeout(self._guards.entry.timeout_ms / 1000):
                reply = await replica.transport.call(method, CONTROL_CALLS[method])
            check_shape(method, reply.result)
        except TimeoutError:
            fault = LegTimeout("no answer to a control call")
        except LegError as failed:
            fault = ledger.mask(failed)
        ledger.verified(replica, generation, fault)

    async def _look(self, replica: Replica, deadline: float) -> None:
        ledger = self._guards.ledger
        started = perf_counter()  # the loop's own clock may be no finer than a millisecond
        advertisement = self._known()
        if ledger.standing.fault is not None or advertisement is None:
            await self.handshake(deadline, replica)
        else:
            self._pings += 1
            await self._ping(replica, deadline)
            if advertisement.gateway_id is not None or self._pings % REFRESH == 0:
                await self._refresh(replica, deadline)
        ledger.checked()
        self.latency_ms = (perf_counter() - started) * 1000

    async def _ping(self, replica: Replica, deadline: float) -> None:
        try:
            await self._in_time(replica, deadline, "no answer to ping", shaking=False)
        except (BadStatus, ProtocolViolation):
            await self.handshake(deadline, replica)  # it may not serve ping at all; what it does serve outranks that
        except LegError as fault:
            if marks_down(fault):
                raise

    async def _refresh(self, replica: Replica, deadline: float) -> None:
        """Ask once more what it can do: it may have been replaced unnoticed, and a gateway's engines come and go."""
        try:
            async with asyncio.timeout_at(deadline):
                await replica.handshake.refresh()
        except (TimeoutError, LegError):
            return  # it answers pings: what it said last still holds

    async def _in_time(self, replica: Replica, deadline: float, words: str, *, shaking: bool) -> None:
        """Raises LegError; not through the gate: a saturated engine is not a dead one."""
        try:
            async with asyncio.timeout_at(deadline):
                if shaking:
                    await replica.handshake.shake(replica.handshake.count)
                else:
                    await replica.transport.call("ping", {})
        except TimeoutError:
            raise LegTimeout(words) from None

    def __repr__(self) -> str:
        latency = "" if self.latency_ms is None else f", the last took {self.latency_ms:.1f} ms"
        return f"<Checkup {self._rounds} checks{latency}>"


def _now() -> float:
    return asyncio.get_running_loop().time()
