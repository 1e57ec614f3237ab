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
from app.engines.error_classification import Suspicion, counts, is_suspect, marks_down, strays
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
"""After traffic told a change, further ones are told by the next check only: an engine may flap with every call."""

Told = Callable[[LegError | None], None]


class Availability:
    """Up or down, and why. `told` hears of each change: None for up, else the fault."""

    __slots__ = ("_told", "_told_at", "_told_up", "answered", "fault")

    def __init__(self, told: Told) -> None:
        self.fault: LegError | None = ConnectFailed("no handshake yet")
        self.answered = False
        """Whether a call was answered since this was last set to False; traffic outranks checks."""
        self._told = told
        self._told_up: bool | None = None
        self._told_at = float("-inf")

    def good(self) -> None:
        """It did something right."""
        if self.fault is not None:
            self.fault = None
            self._tell()

    def bad(self, fault: LegError) -> None:
        """It failed."""
        self.fault = fault
        self._tell()

    def settle(self) -> None:
        """A check is over: what has not been told is told now."""
        up = self.fault is None
        if up is not self._told_up:
            self._told_up = up
            self._told(self.fault)

    def _tell(self) -> None:
        """Before the first check it is not said that an engine is down: it may just not be there yet."""
        now = asyncio.get_running_loop().time()
        if self._told_up is not None and now >= self._told_at + QUIET_SECONDS:
            self._told_at = now
            self.settle()

    def __repr__(self) -> str:
        return "<Standing up>" if self.fault is None else f"<Standing down, {self.fault.kind}: {self.fault.message}>"


Verify = Callable[[str, Replica, int], bool]
"""(method, replica, generation): begin a control call, and say whether there is one. The result goes to
`OutcomeTracker.verified`."""


EJECTING = 5
"""Errors in a row, the control call included, where no breaker states a number."""


class OutcomeTracker:
    """The outcomes of one engine's calls. Times are event-loop seconds."""

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
        """Takes secrets out of a fault before anybody is told of it."""
        self._instrumentation = instrumentation

    def renew(self, rules: BreakerRules) -> None:
        """Go by other rules from now on; what is held against the engine stays."""
        self.breaker.renew(rules)
        self.suspicion.enough = _enough(rules)

    def refusal(self) -> LegError | None:
        """Why the engine must not be asked now, None if it may; nothing changes by asking."""
        now = _now()
        seconds = self.breaker.retry_in(now)
        if seconds is not None:
            return _unsent(BreakerOpen("it failed too often and is left alone", retry_after_ms=_ms(seconds)))
        seconds = self.replicas.held_for(now)
        if seconds is not None:
            return _unsent(LegRateLimited("it asked not to be asked for a while", retry_after_ms=_ms(seconds)))
        return None

    def admit(self) -> int:
        """The generation of a call that goes now. Raises BreakerOpen, LegRateLimited."""
        refusal = self.refusal()
        if refusal is not None:
            raise refusal
        generation = self.breaker.admit(_now())
        assert generation is not None, "who is not refused is admitted"
        if self.breaker.state == HALF_OPEN:
            self._instrumentation.breaker(HALF_OPEN)
        return generation

    def succeeded(self, replica: Replica, generation: int) -> None:
        """A call was answered."""
        if self.suspicion.withheld:
            self.suspicion.cleared()
        if replica.failures or replica.ejections:
            self.replicas.succeeded(replica)
        if self.breaker.succeeded(generation):
            self._instrumentation.breaker(CLOSED)
        if self.breaker.closed:
            self.availability.good()

    def failed(
        self, fault: LegError, replica: Replica, generation: int, method: str, params: Mapping[str, Any]
    ) -> None:
        """An attempt to call `method` with `params` failed, in whatever way."""
        self.mask(fault)
        if is_suspect(fault):
            self._suspected(fault, replica, generation, method, params)
        else:
            self._failed(fault, replica, generation)

    def verified(self, replica: Replica, generation: int, fault: LegError | None) -> None:
        """A control call was answered (None), or failed as well: then all errors that were withheld count."""
        self.suspicion.pending = False
        if fault is None or not (is_suspect(fault) or counts(fault)):
            self.suspicion.acquitted(_now())
            self.succeeded(replica, generation)
            return
        for _ in range(self.suspicion.take_withheld()):
            now = _now()
            self.replicas.failed(replica, fault, now)
            if self._opened(fault, replica, generation, now):
                self.availability.bad(fault)
                return

    def unverified(self, generation: int) -> None:
        """A control call was called off, for its replica is closed: the next error begins another one."""
        self.suspicion.pending = False
        self.said_nothing(generation)

    def _suspected(
        self, fault: LegError, replica: Replica, generation: int, method: str, params: Mapping[str, Any]
    ) -> None:
        """An error that may follow from the params: nothing is held against the engine before a control call."""
        now = _now()
        probing = self.breaker.state == HALF_OPEN and generation == self.breaker.generation
        due = self.suspicion.failed(params, now, probing=probing)
        if due and self.verify is not None and self.verify(method, replica, generation):
            self.suspicion.pending = True
            return  # if this was the probe of the breaker, the control call is one in its place
        self.breaker.said_nothing(generation, now)

    def _failed(self, fault: LegError, replica: Replica, generation: int) -> None:
        now = _now()
        if isinstance(fault, LegRateLimited) and fault.retry_after_ms:
            self.replicas.hold(replica, now, fault.retry_after_ms / 1000)
            self._instrumentation.held(fault.retry_after_ms / 1000)
        if isinstance(fault, LegTimeout) and fault.attempts:
            replica.transport.overdue()
        opened = False
        if counts(fault) or strays(fault):
            self.replicas.failed(replica, fault, now)
        if counts(fault):
            opened = self._opened(fault, replica, generation, now)
        else:
            self.breaker.said_nothing(generation, now)
        if opened or marks_down(fault):
            self.availability.bad(fault)

    def _opened(self, fault: LegError, replica: Replica, generation: int, now: float) -> bool:
        """Count a failure, and say whether it opened the breaker."""
        if not self.breaker.failed(generation, now):
            return False
        replica.transport.renew()  # the probe must not go where the engine may no longer be
        self._instrumentation.breaker(self.breaker.state, fault, self.breaker.retry_in(now))
        return True

    def said_nothing(self, generation: int) -> None:
        """A call ended through nobody's fault: the caller left, or was in haste."""
        self.breaker.said_nothing(generation, _now())

    def checked(self) -> None:
        """A check went well. Traffic outranks it: while the breaker holds calls back, the engine stays down."""
        if self.breaker.retry_in(_now()) is None:
            self.availability.good()

    def reset(self) -> None:
        """Forget what is held against it, by an operator's wish."""
        if not self.breaker.closed:
            self._instrumentation.breaker(CLOSED)
        self.breaker.reset()
        self.replicas.reset()
        self.suspicion.cleared()

    def __repr__(self) -> str:
        return f"<Ledger {self.breaker!r}, {self.replicas!r}, {self.availability!r}>"


def breaker_rules(entry: EngineEntry, settings: EnginesSettings) -> BreakerRules:
    """The rules of one engine's breaker: its own where it has some, else those for all."""
    own = entry.breaker or EngineBreaker()
    return BreakerRules(
        failures=_first(own.failures, settings.breaker_failures),
        window=_first(own.window, settings.breaker_window),
        share=settings.breaker_share if own.share is None else own.share,
        open_seconds=_first(own.open_ms, settings.breaker_open_ms) / 1000,
        longest_seconds=_first(own.longest_open_ms, settings.breaker_longest_open_ms) / 1000,
    )


def _enough(rules: BreakerRules) -> int:
    """Errors after which a control call is due: that call is the failure that opens the breaker.

    With the breaker off, replicas may still be ejected.
    """
    return max(1, (rules.failures or EJECTING) - 1)


def _first(own: int | None, general: int) -> int:
    return general if own is None else own


def _unsent(fault: LegError) -> LegError:
    fault.attempts = 0
    return fault


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _now() -> float:
    return asyncio.get_running_loop().time()


PATIENCE = 8
"""Calls that may wait for each place at an engine's gate: a burst against a quick engine is served, not refused. Their
deadlines bound how long they wait."""

LONGEST_PAUSE = 1.0
"""Seconds between two attempts of one call, at most; an engine that asks for a longer one is not asked again by it."""

RESERVE = 10.0
"""Retries that an engine may be given at once before its budget binds."""


REMEMBERED = 128
"""Times of answers that the 95th percentile is taken of."""

LEAST = 20
"""With fewer times than this nobody is hedged: there is nothing to tell slow by."""

RECKONED_EVERY = 16
"""Answers between two calculations of the percentile."""
HEDGE_RESERVE = 1.0
"""Hedges that may be made at once before their budget binds."""


class HedgePolicy:
    """When to hedge one engine's calls. `share`: hedges as a share of its calls."""

    __slots__ = ("_delay", "_since", "_times", "budget")

    def __init__(self, share: float) -> None:
        self.budget = RetryBudget(share, HEDGE_RESERVE)
        self._times: deque[float] = deque(maxlen=REMEMBERED)
        self._since = 0
        self._delay: float | None = None

    @property
    def delay(self) -> float | None:
        """Seconds after which a call is slow; None while that is not known."""
        return self._delay

    def took(self, seconds: float) -> None:
        """An attempt was answered after so long."""
        self._times.append(seconds)
        self._since += 1
        if len(self._times) >= LEAST and (self._delay is None or self._since >= RECKONED_EVERY):
            self._since = 0
            self._delay = sorted(self._times)[int(len(self._times) * 0.95)]

    def __repr__(self) -> str:
        delay = "unknown" if self._delay is None else f"{self._delay * 1000:.0f} ms"
        return f"<Hedge after {delay}, {self.budget!r}>"


@dataclass(frozen=True, slots=True)
class CallPolicies:
    """What every call to one engine passes: breaker -> gate -> attempts -> replica."""

    entry: EngineEntry
    tracker: OutcomeTracker
    gate: BoundedSemaphore
    budget: RetryBudget
    """The retry budget."""
    pace: RetryPace
    hedge: HedgePolicy | None
    instrumentation: CallInstrumentation


def policies_of(
    entry: EngineEntry,
    settings: EnginesSettings,
    transports: Sequence[Transport | Replica],
    instrumentation: CallInstrumentation,
    told: Told,
    remember: Callable[[Advertisement], None],
    chance: Callable[[], float] = random.random,
    before: CallPolicies | None = None,
) -> CallPolicies:
    """The guards for one engine with one transport, or replica that is known already, for each address.

    `before` are the guards of the same engine under its earlier entry: what they know stays (breaker, standing, calls
    under way), and only the rules change. `chance` gives numbers from 0 up to 1.
    """
    replicas = [_replica(str(place), each, remember) for place, each in enumerate(transports)]
    rules = EjectionRules(settings.eject_failures, settings.eject_ms / 1000, settings.slow_start_seconds)
    queue = entry.max_concurrency * PATIENCE if entry.max_waiting is None else entry.max_waiting
    pace = RetryPace(settings.retry_backoff_ms / 1000, LONGEST_PAUSE, lambda: 1.0 - chance() / 2)
    if before is not None:
        before.tracker.renew(breaker_rules(entry, settings))
        before.tracker.replicas.renew(replicas, rules)
        before.gate.resize(entry.max_concurrency, queue)
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
            Availability(told),
            instrumentation,
        ),
        gate=BoundedSemaphore(entry.max_concurrency, queue),
        budget=RetryBudget(settings.retry_budget, RESERVE),
        pace=pace,
        hedge=HedgePolicy(settings.hedge_budget) if entry.hedge else None,
        instrumentation=instrumentation,
    )


def _replica(label: str, each: Transport | Replica, remember: Callable[[Advertisement], None]) -> Replica:
    """A new replica, or a known one that from now on belongs to the engine that remembers by `remember`."""
    if not isinstance(each, Replica):
        return Replica(label, each, remember)
    each.label = label
    each.handshake.remember = remember
    return each
