"""One downstream engine: breaker -> gate -> attempts -> replica -> transport, and its last known advertisement.

Engines room. It decides which of two ways a call takes: begun at once, without a task, while all is well (`begin`), or
the long way (`call`, inquiry.py). It refuses to know what is asked, and which kind of wire carries it.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.engines.availability import Told
from app.engines.call import CallAttempts, is_due, is_hasty
from app.engines.call_instrumentation import CallInstrumentation, NoInstrumentation
from app.engines.control_calls import CONTROL_CALLS
from app.engines.error_classification import Secrets, is_suspect, worth_repeating
from app.engines.health_check import HealthCheck, Places
from app.engines.in_flight_call import InFlightCall
from app.engines.policies import CallPolicies, policies_of
from app.engines.replicas import Replica
from app.engines.transport import ConnectionLost, Reply, Transport, check_shape
from app.protocol.advertisement import Advertisement
from app.protocol.errors import LegError, LegTimeout, Overloaded
from app.resilience.semaphore import BoundedSemaphore, SemaphoreQueueFull
from app.resilience.timeout import Timeout
from app.settings.schema import EngineEntry, EnginesSettings
from app.telemetry.metrics import EngineState, ReplicaState


class RemoteEngine:
    """An engine of the registry as this process knows it. Satisfies `federation.engine.Engine`.

    `on_change` is called after each handshake that brought another advertisement than the last known one, `told` when
    it comes up (None) or goes down (why). `further` are the transports of its other replicas; a Replica in place of a
    transport is one that is known already. `before` is the same engine under its earlier entry: it hands over what it
    knows. `places` bounds how many handshakes are under way at once, over all engines.
    """

    __slots__ = (
        "_availability",
        "_breaker",
        "_budget",
        "_checkup",
        "_count_first",
        "_heard_at",
        "_lone",
        "_on_change",
        "_roundabout",
        "_secrets",
        "_suspicion",
        "_tracker",
        "advertisement",
        "entry",
        "gate",
        "id",
        "policies",
    )

    def __init__(
        self,
        entry: EngineEntry,
        transport: Transport | Replica,
        on_change: Callable[["RemoteEngine"], None],
        *,
        further: Sequence[Transport | Replica] = (),
        settings: EnginesSettings | None = None,
        instrumentation: CallInstrumentation | None = None,
        told: Told = lambda fault: None,
        before: "RemoteEngine | None" = None,
        places: Places | None = None,
    ) -> None:
        self.id = entry.id
        self.entry = entry
        self.advertisement: Advertisement | None = None
        transports = (transport, *further)
        self.policies: CallPolicies = policies_of(
            entry,
            settings or EnginesSettings(),
            transports,
            instrumentation or NoInstrumentation(),
            told,
            self._remember,
            before=before.policies if before is not None else None,
        )
        self.gate: BoundedSemaphore = self.policies.gate
        self._budget = self.policies.budget
        self._count_first = self.policies.instrumentation.first
        self._tracker = self.policies.tracker
        self._breaker = self._tracker.breaker
        self._availability = self._tracker.availability
        self._suspicion = self._tracker.suspicion
        self._tracker.verify = self._verify
        self._lone: Replica | None = self._tracker.replicas.lone
        self._checkup = HealthCheck(self.policies, lambda: self.advertisement, places or Places())
        self._secrets = Secrets(entry)
        self._tracker.mask = self._secrets.masked
        for replica in self._tracker.replicas.all:
            replica.handshake.purge = self._secrets.purged
        self._on_change = on_change
        self._heard_at = 0.0
        if before is not None:
            self.advertisement = before.advertisement
            self._heard_at = before._heard_at
            self._checkup.latency_ms = before._checkup.latency_ms
        self._roundabout = entry.hedge or entry.attempt_timeout_ms is not None

    @property
    def up(self) -> bool:
        """Whether the last thing it did, in traffic or when checked, was right."""
        return self._availability.fault is None

    @property
    def replicas(self) -> Sequence[Replica]:
        """All its replicas, in the order of the registry entry."""
        return self._tracker.replicas.all

    @property
    def greeted(self) -> bool:
        """Whether a handshake with each of its replicas has succeeded."""
        return all(replica.greeted for replica in self._tracker.replicas.all)

    @property
    def down_reason(self) -> str | None:
        """Class and text of the failure that made it count as down; None while it is up."""
        fault = self._availability.fault
        return f"{fault.kind}: {fault.message}" if fault is not None else None

    @property
    def last_latency_ms(self) -> float | None:
        """How long the last check took that went well."""
        return self._checkup.latency_ms

    async def call(
        self,
        method: str,
        params: Mapping[str, Any],
        deadline: float,
        *,
        idempotent: bool = True,
        after: LegError | None = None,
    ) -> Reply:
        """Ask the engine and have its answer before `deadline` (event-loop seconds), all waits included.

        An engine that restarted and answers -32001 is shaken hands with and asked once more; what else is asked again
        is the guards' decision. `after` is the `fault` of an Asked that wants to be asked again. Raises LegError.
        """
        call_attempts = CallAttempts(self.policies, method, params, deadline, idempotent=idempotent)
        expiry = Timeout(deadline)
        try:
            reply = await call_attempts.answer(after)
            return self._clean(reply)
        except asyncio.CancelledError:
            if not expiry.is_the_cause():
                raise
            fault: LegError = call_attempts.late()
        except SemaphoreQueueFull:
            fault = Overloaded(f"{self.gate.in_flight} calls under way, {self.gate.waiting} waiting")
        except LegError as failed:
            fault = failed
        finally:
            expiry.end()
            call_attempts.end()
        fault.attempts, fault.hedged = call_attempts.sent, call_attempts.hedged
        raise self._secrets.masked(fault) from None

    def begin(self, method: str, params: Mapping[str, Any]) -> InFlightCall | None:
        """Ask an idempotent question at once if nothing has to be waited for; None if `call` must be used.

        Unlike `call` it sets no deadline: whoever holds the Asked must end it in time.
        """
        if self._roundabout or not self._breaker.closed:
            return None
        replica = self._lone or self._tracker.replicas.choose(asyncio.get_running_loop().time())
        if replica is None or not replica.at_hand or not self.gate.try_enter():
            return None
        exchange = replica.transport.begin(method, params)
        if exchange is None:
            self.gate.leave()
            return None
        replica.in_flight += 1
        self._count_first()
        budget = self._budget
        if budget.level < budget.reserve:
            budget.earn()
        return InFlightCall(self, method, params, replica, exchange, self._breaker.generation)

    def finish(self, asked: InFlightCall) -> Reply | None:
        """The answer of a begun exchange; None if it may be asked once more, by `call`. Raises LegError."""
        replica = asked.replica
        self.gate.leave()
        replica.in_flight -= 1
        try:
            reply = asked.exchange.take()
            check_shape(asked.method, reply.result)
        except LegError as fault:
            if self._lone is None:
                fault.replica = replica.label
            if self._may_ask_again(fault, asked):
                asked.fault = fault
                return None
            raise self._secrets.masked(fault) from None
        availability = self._availability
        availability.answered = True
        if self._breaker.marked or replica.failures or availability.fault is not None or self._suspicion.withheld:
            self._tracker.succeeded(replica, asked.generation)
        reply = self._clean(reply)
        return reply if self._lone is not None else reply._replace(replica=replica.label)

    def abandon(self, asked: InFlightCall, given: float | None) -> LegTimeout | None:
        """End a begun exchange that has no answer: out of its `given` seconds, or (None) because the caller left."""
        self.gate.leave()
        asked.replica.in_flight -= 1
        asked.exchange.drop()
        if given is None:
            return None
        fault = LegTimeout("no answer within the time it was given")
        if self._lone is None:
            fault.replica = asked.replica.label
        if not is_hasty(self.policies, given):
            self._tracker.failed(fault, asked.replica, asked.generation, asked.method, asked.params)
        return fault

    async def check(self, deadline: float) -> None:
        """See whether it is there: `ping`, or a handshake while it counts as down. Raises LegError."""
        try:
            await self._checkup.check(deadline)
        except LegError as fault:
            raise self._secrets.masked(fault) from None

    def settle(self) -> None:
        """A round of checks is over: tell whether it is up, if that has changed since it was last told."""
        self._availability.settle()

    async def handshake(self, deadline: float) -> Advertisement:
        """Shake hands with all its replicas, whatever is known; one that succeeds will do. Raises LegError."""
        try:
            await self._checkup.handshake(deadline)
        except LegError as fault:
            self._availability.bad(self._secrets.masked(fault))
            raise
        assert self.advertisement is not None
        return self.advertisement

    def state(self) -> EngineState:
        """How it stands at this moment."""
        replicas = () if self._lone is not None else self._tracker.replicas.all
        return EngineState(
            id=self.id,
            up=self.up,
            in_flight=self.gate.in_flight,
            waiting=self.gate.waiting,
            limit=self.gate.limit,
            breaker=self._breaker.state,
            handshake=self._heard_at,
            replicas=[ReplicaState(one.label, one.ejected_until is None, one.in_flight) for one in replicas],
        )

    def retry_in(self) -> float | None:
        """Seconds until it may be asked again; None if it may be now."""
        refusal = self._tracker.refusal()
        return None if refusal is None or refusal.retry_after_ms is None else refusal.retry_after_ms / 1000

    @property
    def stderr_tail(self) -> str | None:
        """The last that a stdio engine wrote to stderr; None for all others."""
        tail = self._tracker.replicas.all[0].transport.stderr_tail
        return None if tail is None else self._secrets.without(tail)

    def reset(self) -> None:
        """Close its breaker, let its replicas back in and forget that it asked to be left alone: an operator's wish."""
        self._tracker.reset()

    async def close(self) -> None:
        """Release its connections or its process."""
        await asyncio.gather(*(replica.close() for replica in self._tracker.replicas.all))

    def _may_ask_again(self, fault: LegError, asked: InFlightCall) -> bool:
        """Write the fault of a begun attempt down, and say whether the long way may still bring an answer."""
        if isinstance(fault, ConnectionLost):
            return True  # the connection had been idle, which says nothing
        if is_due(fault):
            asked.replica.handshake.forgotten = True
            asked.replica.look()
            return True
        suspicion = self._tracker.suspicion
        known = is_suspect(fault) and suspicion.knows(asked.params, asyncio.get_running_loop().time())
        self._tracker.failed(fault, asked.replica, asked.generation, asked.method, asked.params)
        if known:
            return False  # RCP §12 allows one repeat, and this question has had it
        return self.entry.retries > 0 and worth_repeating(fault, True, 0, self._tracker.replicas.lone is None)

    def succeed(self, before: "RemoteEngine") -> None:
        """Take the place of the engine that was reached under the earlier entry. A handshake may still be to come:
        until then the advertisement of that one stands."""
        if self.advertisement is None:
            self.advertisement = before.advertisement
        elif before.advertisement is not None and _differ(before.advertisement, self.advertisement):
            self.policies.instrumentation.advertised(before.advertisement, self.advertisement)

    def _clean(self, reply: Reply) -> Reply:
        """The reply, with no secret of ours quoted in its notes."""
        usage = reply.result.get("usage")
        if type(usage) is not dict or "notes" not in usage:
            return reply  # nearly always
        return reply._replace(result=self._secrets.cleaned(reply.result))

    def _verify(self, method: str, replica: Replica, generation: int) -> bool:
        """Begin the control call that tells whether the engine is at fault or what it was asked."""
        said = self.advertisement
        asked = "retrieve" if said is not None and said.retrieve is not None else method
        if asked not in CONTROL_CALLS:
            return False
        replica.control = asyncio.get_running_loop().create_task(
            self._checkup.control(asked, replica, generation), name=f"control:{self.id}/{replica.label}"
        )
        replica.control.add_done_callback(
            lambda control: self._tracker.unverified(generation) if control.cancelled() else None
        )
        return True

    def _remember(self, advertisement: Advertisement) -> None:
        self._tracker.checked()
        self._heard_at = time.time()
        before = self.advertisement
        if before is not None and not _differ(before, advertisement):
            return
        self.advertisement = advertisement
        if before is not None:
            self.policies.instrumentation.advertised(before, advertisement)
        self._on_change(self)

    def __repr__(self) -> str:
        state = "up" if self.up else f"down ({self.down_reason})"
        return f"<RemoteEngine {self.id} {self.entry.kind} {state}, {self._breaker!r}, {self.gate!r}>"


def _differ(before: Advertisement, after: Advertisement) -> bool:
    try:
        return before != after
    except RecursionError:  # it is read 1024 levels deep, which is more than can be compared
        return True
