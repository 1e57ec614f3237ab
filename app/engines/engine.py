"""One downstream engine: starts calls, reads their answers, and keeps its last known advertisement.

A call passes the circuit breaker, the semaphore and the choice of a replica. While all of that needs no waiting, the
first attempt is made here, without a task; call.py makes all other attempts.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from app.engines.call import CallAttempts, has_short_deadline, is_handshake_due
from app.engines.call_instrumentation import CallInstrumentation, NoInstrumentation
from app.engines.error_classification import CONTROL_CALLS, is_suspect, worth_repeating
from app.engines.health import HandshakeSlots, HealthCheck
from app.engines.in_flight_call import InFlightCall
from app.engines.policies import AvailabilityListener, CallPolicies, policies_of
from app.engines.redaction import Secrets
from app.engines.replicas import Replica
from app.engines.transport import ConnectionLost, Exchange, Reply, Transport, check_shape
from app.protocol.advertisement import Advertisement
from app.protocol.errors import LegError, LegTimeout, Overloaded
from app.resilience.cancel_scope import Timeout
from app.resilience.semaphore import BoundedSemaphore, SemaphoreQueueFull
from app.settings.schema import EngineEntry, EnginesSettings
from app.telemetry.metrics import EngineState, ReplicaState


class RemoteEngine:
    """An engine of the registry as this process knows it. Satisfies `federation.engine.Engine`.

    `on_change` is called after each handshake with an advertisement that differs from the last known one,
    `on_availability` when the engine comes up (None) or goes down (why). `further` are the transports of its other
    replicas; a Replica in place of a transport is kept from the earlier entry. `before` is the same engine under its
    earlier entry, whose state is taken over. `slots` limits concurrent handshakes of all engines.
    """

    __slots__ = (
        "_availability",
        "_breaker",
        "_budget",
        "_count_first",
        "_handshake_at",
        "_health_check",
        "_needs_task",
        "_on_change",
        "_secrets",
        "_single",
        "_suspicion",
        "_tracker",
        "advertisement",
        "entry",
        "id",
        "policies",
        "semaphore",
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
        on_availability: AvailabilityListener = lambda fault: None,
        before: "RemoteEngine | None" = None,
        slots: HandshakeSlots | None = None,
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
            on_availability,
            self._remember,
            before=before.policies if before is not None else None,
        )
        self.semaphore: BoundedSemaphore = self.policies.semaphore
        self._budget = self.policies.budget
        self._count_first = self.policies.instrumentation.first
        self._tracker = self.policies.tracker
        self._breaker = self._tracker.breaker
        self._availability = self._tracker.availability
        self._suspicion = self._tracker.suspicion
        self._tracker.verify = self._verify
        self._single: Replica | None = self._tracker.replicas.single
        self._health_check = HealthCheck(self.policies, lambda: self.advertisement, slots or HandshakeSlots())
        self._secrets = Secrets(entry)
        self._tracker.mask = self._secrets.mask_error
        for replica in self._tracker.replicas.all:
            replica.handshake.clean = self._secrets.clean_advertisement
        self._on_change = on_change
        self._handshake_at = 0.0
        if before is not None:
            self.advertisement = before.advertisement
            self._handshake_at = before._handshake_at
            self._health_check.latency_ms = before._health_check.latency_ms
        self._needs_task = entry.hedge or entry.attempt_timeout_ms is not None

    @property
    def up(self) -> bool:
        """Whether its last call or check was a success."""
        return self._availability.fault is None

    @property
    def breaker_open(self) -> bool:
        """Whether its circuit breaker holds calls back."""
        return not self._breaker.closed

    @property
    def expected_seconds(self) -> float:
        """Seconds that a call takes now because all slots are taken; 0 while one is free."""
        return self.semaphore.expected_seconds

    @property
    def replicas(self) -> Sequence[Replica]:
        """All replicas, in the order of the registry entry."""
        return self._tracker.replicas.all

    @property
    def handshake_done(self) -> bool:
        """Whether a handshake with each of its replicas has succeeded."""
        return all(replica.handshake_done for replica in self._tracker.replicas.all)

    @property
    def down_reason(self) -> str | None:
        """Class and text of the failure that made it count as down; None while it is up."""
        fault = self._availability.fault
        return f"{fault.kind}: {fault.message}" if fault is not None else None

    @property
    def state_since(self) -> float:
        """Unix time since which it has been up or down."""
        return self._availability.since

    @property
    def last_latency_ms(self) -> float | None:
        """Duration of the last successful check."""
        return self._health_check.latency_ms

    def call(self, method: str, params: Mapping[str, Any], deadline: float, *, idempotent: bool = True) -> InFlightCall:
        """Start a call that ends before `deadline` (event-loop seconds), all waiting included.

        While the engine is well and a connection is idle, the request is written before this returns. An engine that
        restarted and answers -32001 gets a handshake and the request once more; `CallAttempts` decides on all other
        repetitions.
        """
        if self.semaphore.in_flight >= self.semaphore.limit:
            self._check_queue(deadline)
        call = InFlightCall(self, method, params, deadline, idempotent=idempotent)
        if not idempotent or self._needs_task or not self._breaker.closed or not self._send(call):
            call.continue_in_task(None)
        return call

    def _check_queue(self, deadline: float) -> None:
        """Raises Overloaded if a call that comes now cannot end before `deadline` (event-loop seconds).

        Such a call would wait in vain, and be sent with too little time left: the engine would work for nobody.
        """
        seconds = self.semaphore.expected_seconds
        if seconds > deadline - asyncio.get_running_loop().time():
            fault = Overloaded(f"{self._load()}; a call takes {seconds * 1000:.0f} ms now")
            fault.attempts = 0
            fault.retry_after_ms = max(1, int(self.semaphore.expected_wait * 1000))
            raise fault

    def _load(self) -> str:
        return f"{self.semaphore.in_flight} calls under way, {self.semaphore.waiting} waiting"

    def _send(self, call: InFlightCall) -> bool:
        """Write the first request of a call, if nothing has to be waited for. Returns whether that was so."""
        now = asyncio.get_running_loop().time()
        # An engine with one replica, the usual case, needs no choice.
        replica = self._single or self._tracker.replicas.choose(now)
        if replica is None or not replica.ready or not self.semaphore.try_enter():
            return False
        # No idle connection: connecting has to wait, so it is done in a task.
        exchange = replica.transport.send(call.method, call.params)
        if exchange is None:
            self.semaphore.leave()
            return False
        replica.in_flight += 1
        self._count_first()
        # Earning is skipped while the budget is full: a function call per call saved.
        budget = self._budget
        if budget.level < budget.reserve:
            budget.earn()
        call.begin(exchange, replica, self._breaker.generation, now)
        return True

    def finish(self, call: InFlightCall, exchange: Exchange) -> Reply | None:
        """Read the answer to the first request of a call; None if the call is repeated. Raises LegError."""
        replica = call.replica
        assert replica is not None
        self.semaphore.leave()
        replica.in_flight -= 1
        try:
            reply = exchange.take()
            check_shape(call.method, reply.result)
        except LegError as fault:
            if self._single is None:
                fault.replica = replica.label
            if self._may_repeat(fault, call, replica):
                call.continue_in_task(fault)
                return None
            raise self._secrets.mask_error(fault) from None
        # Traffic outranks a check that fails at the same time (health.py).
        availability = self._availability
        availability.answered = True
        # A success changes nothing unless something had failed before: skip the tracker on the fast path.
        if self._breaker.marked or replica.failures or availability.fault is not None or self._suspicion.withheld:
            self._tracker.succeeded(replica, call.generation)
        reply = self._clean(reply)
        return reply if self._single is not None else reply._replace(replica=replica.label)

    def abandon(self, call: InFlightCall, exchange: Exchange, *, expired: bool) -> LegTimeout:
        """Give up the first request of a call: its deadline has come (`expired`), or the caller has left."""
        replica = call.replica
        assert replica is not None
        self.semaphore.leave(completed=False)
        replica.in_flight -= 1
        exchange.drop()
        fault = LegTimeout("no answer within the time it was given")
        if self._single is None:
            fault.replica = replica.label
        if expired and not has_short_deadline(self.policies, call.deadline - call.started):
            self._tracker.failed(fault, replica, call.generation, call.method, call.params)
        return fault

    async def attempts(self, call: InFlightCall, after: LegError | None) -> Reply:
        """Make the attempts that need a task; `after` is the error of a first one. Raises LegError."""
        call_attempts = CallAttempts(self.policies, call.method, call.params, call.deadline, idempotent=call.idempotent)
        expiry = Timeout(call.deadline)
        try:
            reply = await call_attempts.answer(after)
            return self._clean(reply)
        except asyncio.CancelledError:
            if not expiry.is_the_cause():
                raise
            fault: LegError = call_attempts.late()
        except SemaphoreQueueFull:
            fault = Overloaded(self._load())
        except LegError as failed:
            fault = failed
        finally:
            expiry.end()
            call_attempts.end()
        # Whatever ended the call, its outcome reports how many requests were sent.
        fault.attempts, fault.hedged = call_attempts.sent, call_attempts.hedged
        raise self._secrets.mask_error(fault) from None

    async def check(self, deadline: float) -> None:
        """Check whether it answers: `ping`, or a handshake while it is down. Raises LegError."""
        try:
            await self._health_check.check(deadline)
        except LegError as fault:
            raise self._secrets.mask_error(fault) from None

    def report(self) -> None:
        """Report whether it is up, if that has changed since the last report. Called after each check."""
        self._availability.report()

    async def handshake(self, deadline: float) -> Advertisement:
        """Perform a handshake with all replicas; one success is enough. Raises LegError."""
        try:
            await self._health_check.handshake(deadline)
        except LegError as fault:
            self._availability.mark_down(self._secrets.mask_error(fault))
            raise
        assert self.advertisement is not None
        return self.advertisement

    def state(self) -> EngineState:
        """The current state, for metrics and the admin API."""
        replicas = () if self._single is not None else self._tracker.replicas.all
        return EngineState(
            id=self.id,
            up=self.up,
            in_flight=self.semaphore.in_flight,
            waiting=self.semaphore.waiting,
            limit=self.semaphore.limit,
            breaker=self._breaker.state,
            handshake=self._handshake_at,
            replicas=[ReplicaState(one.label, one.ejected_until is None, one.in_flight) for one in replicas],
        )

    def retry_in(self) -> float | None:
        """Seconds until it may be called again; None if it may be called now."""
        refusal = self._tracker.refusal()
        return None if refusal is None or refusal.retry_after_ms is None else refusal.retry_after_ms / 1000

    @property
    def stderr_tail(self) -> str | None:
        """The end of what a stdio engine wrote to stderr; None for all others."""
        tail = self._tracker.replicas.all[0].transport.stderr_tail
        return None if tail is None else self._secrets.mask(tail)

    def reset(self) -> None:
        """Close the breaker, use all replicas again and forget rate limits, on request of an operator."""
        self._tracker.reset()

    async def close(self) -> None:
        """Release its connections or its process."""
        await asyncio.gather(*(replica.close() for replica in self._tracker.replicas.all))

    def _may_repeat(self, fault: LegError, call: InFlightCall, replica: Replica) -> bool:
        """Record the error of a first request, and say whether further attempts may bring an answer."""
        if isinstance(fault, ConnectionLost):
            return True  # the connection had been idle: that it was closed says nothing about the engine
        if is_handshake_due(fault):
            # All calls that meet the restarted engine wait for one handshake.
            replica.handshake.due = True
            replica.update_ready()
            return True
        suspicion = self._tracker.suspicion
        known = is_suspect(fault) and suspicion.knows(call.params, asyncio.get_running_loop().time())
        self._tracker.failed(fault, replica, call.generation, call.method, call.params)
        if known:
            return False  # RCP §12 allows one repetition, and an earlier call with these params had it
        return self.entry.retries > 0 and worth_repeating(fault, True, 0, self._tracker.replicas.single is None)

    def succeed(self, before: "RemoteEngine") -> None:
        """Replace the engine of the earlier entry. Its advertisement stays valid until this one has a handshake."""
        if self.advertisement is None:
            self.advertisement = before.advertisement
        elif before.advertisement is not None and _differ(before.advertisement, self.advertisement):
            self.policies.instrumentation.advertised(before.advertisement, self.advertisement)

    def _clean(self, reply: Reply) -> Reply:
        """The reply, with the entry's secrets removed from its notes."""
        usage = reply.result.get("usage")
        if type(usage) is not dict or "notes" not in usage:
            return reply  # nearly always: no copy
        return reply._replace(result=self._secrets.clean_result(reply.result))

    def _verify(self, method: str, replica: Replica, generation: int) -> bool:
        """Start the control call that shows whether the engine or the params are at fault."""
        said = self.advertisement
        # `retrieve` without a filter is the cheapest call that exercises the index.
        asked = "retrieve" if said is not None and said.retrieve is not None else method
        if asked not in CONTROL_CALLS:
            return False
        replica.control_task = asyncio.get_running_loop().create_task(
            self._health_check.control(asked, replica, generation), name=f"control:{self.id}/{replica.label}"
        )
        replica.control_task.add_done_callback(
            lambda control: self._tracker.unverified(generation) if control.cancelled() else None
        )
        return True

    def _remember(self, advertisement: Advertisement) -> None:
        self._tracker.checked()
        self._handshake_at = time.time()
        before = self.advertisement
        if before is not None and not _differ(before, advertisement):
            return
        self.advertisement = advertisement
        if before is not None:
            self.policies.instrumentation.advertised(before, advertisement)
        self._on_change(self)

    def __repr__(self) -> str:
        state = "up" if self.up else f"down ({self.down_reason})"
        return f"<RemoteEngine {self.id} {self.entry.kind} {state}, {self._breaker!r}, {self.semaphore!r}>"


def _differ(before: Advertisement, after: Advertisement) -> bool:
    try:
        return before != after
    except RecursionError:  # JSON is read up to 1024 levels deep, more than Python can compare
        return True


class EngineSetChange(NamedTuple):
    """The difference between two registries: ids of the engines that joined, that left, and whose entry changed."""

    joined: list[str]
    left: list[str]
    changed: list[str]
