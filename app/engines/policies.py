"""The guards of one engine, put together from its registry entry and the settings for all engines.

Engines room. It decides which setting feeds which guard. It refuses to know how a call passes them (inquiry.py).
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from app.engines.availability import Availability, Told
from app.engines.call_instrumentation import CallInstrumentation
from app.engines.hedging import HedgePolicy
from app.engines.outcome_tracker import OutcomeTracker, breaker_rules
from app.engines.replicas import EjectionRules, Replica, Replicas
from app.engines.transport import Transport
from app.protocol.advertisement import Advertisement
from app.resilience.breaker import Breaker
from app.resilience.retry import RetryBudget, RetryPace
from app.resilience.semaphore import BoundedSemaphore
from app.settings.schema import EngineEntry, EnginesSettings

PATIENCE = 8
"""Calls that may wait for each place at an engine's gate: a burst against a quick engine is served, not refused. Their
deadlines bound how long they wait."""

LONGEST_PAUSE = 1.0
"""Seconds between two attempts of one call, at most; an engine that asks for a longer one is not asked again by it."""

RESERVE = 10.0
"""Retries that an engine may be given at once before its budget binds."""


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
