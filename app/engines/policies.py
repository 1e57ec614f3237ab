"""What every call of one engine passes, and what its outcome changes: breaker, replicas, availability, retry budget.

`OutcomeTracker` applies each outcome in one synchronous step; `policies_of` builds everything from the registry entry.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.engines.call_instrumentation import CallInstrumentation
from app.engines.error_classification import Suspicion, concerns_replica, counts_as_failure, is_suspect, marks_down
from app.engines.replicas import EjectionRules, Replica, Replicas
from app.engines.transport import Transport
from app.protocol.advertisement import Advertisement
from app.protocol.errors import BreakerOpen, ConnectFailed, LegError, LegRateLimited, LegTimeout
from app.resilience.breaker import CLOSED, HALF_OPEN, Breaker, BreakerRules
from app.resilience.retry import RetryBudget, RetryPace
from app.resilience.semaphore import BoundedSemaphore
from app.settings.engine_parts import EngineBreaker
from app.settings.schema import EngineEntry, EnginesSettings

QUIET_SECONDS = 5.0
"""After a change was reported, further ones are reported by the next check only: an engine may flap on every call."""

AvailabilityListener = Callable[[LegError | None], None]
"""Called when an engine comes up (None) or goes down (why)."""


class Availability:
    """Whether one engine is up, by the last thing it did in traffic or in a check."""

    __slots__ = ("_listener", "_notified_at", "_notified_up", "answered", "fault")

    def __init__(self, listener: AvailabilityListener) -> None:
        self.fault: LegError | None = ConnectFailed("no handshake yet")
        self.answered = False
        """Whether a call was answered since this was last set to False; traffic outranks checks."""
        self._listener = listener
        self._notified_up: bool | None = None
        self._notified_at = float("-inf")

    def mark_up(self) -> None:
        """A call or a check succeeded."""
        if self.fault is not None:
            self.fault = None
            self._notify()

    def mark_down(self, fault: LegError) -> None:
        """A call or a check failed in a way that takes the engine down."""
        self.fault = fault
        self._notify()

    def report(self) -> None:
        """Report the current state, if it differs from the reported one. Called after each check."""
        up = self.fault is None
        if up is not self._notified_up:
            self._notified_up = up
            self._listener(self.fault)

    def _notify(self) -> None:
        now = asyncio.get_running_loop().time()
        # Before the first check, an engine is not reported as down: it may still be starting.
        if self._notified_up is not None and now >= self._notified_at + QUIET_SECONDS:
            self._notified_at = now
            self.report()

    def __repr__(self) -> str:
        return (
            "<Availability up>"
            if self.fault is None
            else f"<Availability down, {self.fault.kind}: {self.fault.message}>"
        )


Verify = Callable[[str, Replica, int], bool]
"""(method, replica, generation) -> whether a control call was started. Its result goes to `OutcomeTracker.verified`."""


ERRORS_WITHOUT_BREAKER = 5
"""Errors in a row, including the control call, that count when the breaker is switched off."""


class OutcomeTracker:
    """Applies the outcomes of calls to the engine's breaker, replicas and availability. Times: event-loop seconds."""

    __slots__ = ("_instrumentation", "availability", "breaker", "mask", "replicas", "suspicion", "verify")

    def __init__(
        self, breaker: Breaker, replicas: Replicas, availability: Availability, instrumentation: CallInstrumentation
    ) -> None:
        self.breaker = breaker
        self.replicas = replicas
        self.availability = availability
        self.suspicion = Suspicion(_enough(breaker.rules))
        self.verify: Verify | None = None
        self.mask: Callable[[LegError], LegError] = lambda fault: fault
        """Removes secrets from an error before it is logged or reported."""
        self._instrumentation = instrumentation

    def renew(self, rules: BreakerRules) -> None:
        """Apply other rules from the next outcome on; what was counted stays counted."""
        self.breaker.renew(rules)
        self.suspicion.enough = _enough(rules)

    def refusal(self) -> LegError | None:
        """Why the engine must not be called now; None if it may be. Changes nothing."""
        now = _now()
        seconds = self.breaker.retry_in(now)
        if seconds is not None:
            return _unsent(BreakerOpen("circuit breaker open after repeated failures", retry_after_ms=_ms(seconds)))
        seconds = self.replicas.held_for(now)
        if seconds is not None:
            return _unsent(LegRateLimited("the engine has asked for a pause (rate limit)", retry_after_ms=_ms(seconds)))
        return None

    def admit(self) -> int:
        """The breaker generation of a call that is made now. Raises BreakerOpen, LegRateLimited."""
        refusal = self.refusal()
        if refusal is not None:
            raise refusal
        # `refusal` has just said that the breaker admits a call, and nothing ran in between.
        generation = self.breaker.admit(_now())
        assert generation is not None, "a call that is not refused is admitted"
        if self.breaker.state == HALF_OPEN:
            self._instrumentation.breaker(HALF_OPEN)
        return generation

    def succeeded(self, replica: Replica, generation: int) -> None:
        """Record an answered call."""
        if self.suspicion.withheld:
            self.suspicion.cleared()
        # Nearly always false: the common case costs two attribute reads.
        if replica.failures or replica.ejections:
            self.replicas.succeeded(replica)
        if self.breaker.succeeded(generation):
            self._instrumentation.breaker(CLOSED)
        # While the breaker is open, late answers of earlier calls must not make the engine look healthy.
        if self.breaker.closed:
            self.availability.mark_up()

    def failed(
        self, fault: LegError, replica: Replica, generation: int, method: str, params: Mapping[str, Any]
    ) -> None:
        """Record a failed attempt to call `method` with `params`."""
        self.mask(fault)
        if is_suspect(fault):
            self._suspected(fault, replica, generation, method, params)
        else:
            self._failed(fault, replica, generation)

    def verified(self, replica: Replica, generation: int, fault: LegError | None) -> None:
        """Record the result of a control call: None if it was answered. If it failed too, all withheld errors count."""
        self.suspicion.pending = False
        # The engine answers the gateway's own params: the callers' params were at fault.
        if fault is None or not (is_suspect(fault) or counts_as_failure(fault)):
            self.suspicion.acquitted(_now())
            self.succeeded(replica, generation)
            return
        # Count one by one: the breaker may open before the last, and its window stays exact.
        for _ in range(self.suspicion.take_withheld()):
            now = _now()
            self.replicas.failed(replica, fault, now)
            if self._opened(fault, replica, generation, now):
                self.availability.mark_down(fault)
                return

    def unverified(self, generation: int) -> None:
        """Record a control call that was cancelled because its replica closed: the next error starts another."""
        self.suspicion.pending = False
        self.inconclusive(generation)

    def _suspected(
        self, fault: LegError, replica: Replica, generation: int, method: str, params: Mapping[str, Any]
    ) -> None:
        """Withhold an error that may be the fault of the params, until a control call decides."""
        now = _now()
        # As the probe of the breaker, a suspect error needs a verdict now: no other call is admitted until then.
        probing = self.breaker.state == HALF_OPEN and generation == self.breaker.generation
        due = self.suspicion.failed(params, now, probing=probing)
        if due and self.verify is not None and self.verify(method, replica, generation):
            self.suspicion.pending = True
            return  # if this call was the probe of the breaker, the control call takes its place
        self.breaker.inconclusive(generation, now)

    def _failed(self, fault: LegError, replica: Replica, generation: int) -> None:
        now = _now()
        if isinstance(fault, LegRateLimited) and fault.retry_after_ms:
            self.replicas.hold(replica, now, fault.retry_after_ms / 1000)
            self._instrumentation.held(fault.retry_after_ms / 1000)
        # `attempts` is 0 if the time passed before anything was sent: then the engine was not slow.
        if isinstance(fault, LegTimeout) and fault.attempts:
            replica.transport.overdue()
        opened = False
        # An error that only concerns the replica must not open the breaker of the whole engine.
        if counts_as_failure(fault) or concerns_replica(fault):
            self.replicas.failed(replica, fault, now)
        if counts_as_failure(fault):
            opened = self._opened(fault, replica, generation, now)
        else:
            self.breaker.inconclusive(generation, now)
        if opened or marks_down(fault):
            self.availability.mark_down(fault)

    def _opened(self, fault: LegError, replica: Replica, generation: int, now: float) -> bool:
        """Count a failure. Returns whether it opened the breaker."""
        if not self.breaker.failed(generation, now):
            return False
        replica.transport.renew()  # the probe must use a new connection: the engine may have moved
        self._instrumentation.breaker(self.breaker.state, fault, self.breaker.retry_in(now))
        return True

    def inconclusive(self, generation: int) -> None:
        """Record a call that says nothing about the engine: the caller left, or its deadline was short."""
        self.breaker.inconclusive(generation, _now())

    def checked(self) -> None:
        """Record a successful check. Traffic outranks it: while the breaker is open, the engine stays down."""
        # Pings often succeed where calls fail: an open breaker knows more than a ping.
        if self.breaker.retry_in(_now()) is None:
            self.availability.mark_up()

    def reset(self) -> None:
        """Forget all failures, on request of an operator."""
        if not self.breaker.closed:
            self._instrumentation.breaker(CLOSED)
        self.breaker.reset()
        self.replicas.reset()
        self.suspicion.cleared()

    def __repr__(self) -> str:
        return f"<OutcomeTracker {self.breaker!r}, {self.replicas!r}, {self.availability!r}>"


def breaker_rules(entry: EngineEntry, settings: EnginesSettings) -> BreakerRules:
    """The breaker rules of one engine: its own where it sets them, otherwise the general ones."""
    own = entry.breaker or EngineBreaker()
    return BreakerRules(
        failures=_first(own.failures, settings.breaker_failures),
        window=_first(own.window, settings.breaker_window),
        share=settings.breaker_share if own.share is None else own.share,
        open_seconds=_first(own.open_ms, settings.breaker_open_ms) / 1000,
        longest_seconds=_first(own.longest_open_ms, settings.breaker_longest_open_ms) / 1000,
    )


def _enough(rules: BreakerRules) -> int:
    """Errors after which a control call is due: one fewer than open the breaker, which the control call itself may do.

    With the breaker switched off, replicas can still be ejected.
    """
    return max(1, (rules.failures or ERRORS_WITHOUT_BREAKER) - 1)


def _first(own: int | None, general: int) -> int:
    return general if own is None else own


def _unsent(fault: LegError) -> LegError:
    fault.attempts = 0
    return fault


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _now() -> float:
    return asyncio.get_running_loop().time()


WAITING_PER_SLOT = 8
"""Calls that may wait for each concurrent call of an engine: a burst against a fast engine is served, not refused.

Their deadlines bound how long they wait.
"""

LONGEST_PAUSE = 1.0
"""Seconds between two attempts of one call, at most; an engine that asks for a longer one is not asked again by it."""

RESERVE = 10.0
"""Retries of an engine that are possible at once before its budget binds."""


REMEMBERED = 128
"""Response times over which the 95th percentile is calculated."""

LEAST = 20
"""With fewer response times than this, no call is hedged: it is not known yet what is slow."""

RECKONED_EVERY = 16
"""Answers between two calculations of the percentile."""
HEDGE_RESERVE = 1.0
"""Hedges that may be made at once before their budget binds."""


class HedgePolicy:
    """When to hedge one engine's calls. `share`: maximum hedges as a share of its calls."""

    __slots__ = ("_delay", "_since", "_times", "budget")

    def __init__(self, share: float) -> None:
        self.budget = RetryBudget(share, HEDGE_RESERVE)
        self._times: deque[float] = deque(maxlen=REMEMBERED)
        self._since = 0
        self._delay: float | None = None

    @property
    def delay(self) -> float | None:
        """Seconds after which a call counts as slow; None while that is not known."""
        return self._delay

    def took(self, seconds: float) -> None:
        """Record the response time of an attempt."""
        self._times.append(seconds)
        self._since += 1
        if len(self._times) >= LEAST and (self._delay is None or self._since >= RECKONED_EVERY):
            self._since = 0
            # 128 floats take 5 us to sort, once in 16 answers.
            self._delay = sorted(self._times)[int(len(self._times) * 0.95)]

    def __repr__(self) -> str:
        delay = "unknown" if self._delay is None else f"{self._delay * 1000:.0f} ms"
        return f"<Hedge after {delay}, {self.budget!r}>"


@dataclass(frozen=True, slots=True)
class CallPolicies:
    """What every call of one engine passes: breaker, semaphore, retry budget, choice of a replica."""

    entry: EngineEntry
    tracker: OutcomeTracker
    semaphore: BoundedSemaphore
    budget: RetryBudget
    pace: RetryPace
    hedge: HedgePolicy | None
    instrumentation: CallInstrumentation


def policies_of(
    entry: EngineEntry,
    settings: EnginesSettings,
    transports: Sequence[Transport | Replica],
    instrumentation: CallInstrumentation,
    listener: AvailabilityListener,
    remember: Callable[[Advertisement], None],
    chance: Callable[[], float] = random.random,
    before: CallPolicies | None = None,
) -> CallPolicies:
    """The policies of one engine, with one transport (or known replica) for each address.

    `before` are the policies of the same engine under its earlier entry: their state (breaker, availability, calls in
    flight) is kept, and only the rules change. `chance` returns random numbers in [0, 1).
    """
    replicas = [_replica(str(place), each, remember) for place, each in enumerate(transports)]
    rules = EjectionRules(settings.eject_failures, settings.eject_ms / 1000, settings.slow_start_seconds)
    queue = entry.max_concurrency * WAITING_PER_SLOT if entry.max_waiting is None else entry.max_waiting
    # Jitter between half and the whole pause, so that callers do not retry in step.
    pace = RetryPace(settings.retry_backoff_ms / 1000, LONGEST_PAUSE, lambda: 1.0 - chance() / 2)
    if before is not None:
        # A reload keeps what is known: an open breaker stays open, and calls in flight keep their places.
        before.tracker.renew(breaker_rules(entry, settings))
        before.tracker.replicas.renew(replicas, rules)
        before.semaphore.resize(entry.max_concurrency, queue)
        # A budget with another share starts anew, since its level means something else then.
        same_budget = before.budget.share == settings.retry_budget
        hedge = before.hedge
        if hedge is None or hedge.budget.share != settings.hedge_budget:
            hedge = HedgePolicy(settings.hedge_budget)
        return replace(
            before,
            entry=entry,
            pace=pace,
            budget=before.budget if same_budget else RetryBudget(settings.retry_budget, RESERVE),
            hedge=hedge if entry.hedge else None,
        )
    return CallPolicies(
        entry=entry,
        tracker=OutcomeTracker(
            Breaker(breaker_rules(entry, settings)),
            Replicas(replicas, rules, chance, lambda replica, fault: instrumentation.replica(replica.label, fault)),
            Availability(listener),
            instrumentation,
        ),
        semaphore=BoundedSemaphore(entry.max_concurrency, queue),
        budget=RetryBudget(settings.retry_budget, RESERVE),
        pace=pace,
        hedge=HedgePolicy(settings.hedge_budget) if entry.hedge else None,
        instrumentation=instrumentation,
    )


def _replica(label: str, each: Transport | Replica, remember: Callable[[Advertisement], None]) -> Replica:
    """A new replica, or a known one that reports its advertisements to `remember` from now on."""
    if not isinstance(each, Replica):
        return Replica(label, each, remember)
    each.label = label
    each.handshake.remember = remember
    return each
