"""What is held against one engine: each outcome goes to its breaker, its replica and its standing, in one step.

Engines room. It decides whether the engine may be asked now. It refuses to know how it is asked.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from app.engines.availability import Availability
from app.engines.call_instrumentation import CallInstrumentation
from app.engines.control_calls import Suspicion
from app.engines.error_classification import counts, is_suspect, marks_down, strays
from app.engines.replicas import Replica, Replicas
from app.protocol.errors import BreakerOpen, LegError, LegRateLimited, LegTimeout
from app.resilience.breaker import CLOSED, HALF_OPEN, Breaker, BreakerRules
from app.settings.engine_parts import EngineBreaker
from app.settings.schema import EngineEntry, EnginesSettings

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
