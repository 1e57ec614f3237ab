"""The guards of one engine, put together from its registry entry and the settings for all engines.

Engines room. It decides which setting feeds which guard. It refuses to know how a call passes them (inquiry.py).
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from app.engines.hedge import Hedge
from app.engines.ledger import Ledger, breaker_rules
from app.engines.replica import EjectionRules, Replica, Replicas
from app.engines.standing import Standing, Told
from app.engines.transport import Transport
from app.engines.witness import Witness
from app.protocol.capabilities import Advertisement
from app.resilience.attempts import Allowance, Pace
from app.resilience.breaker import Breaker
from app.resilience.limits import Gate
from app.settings.schema import EngineEntry, EnginesSettings

PATIENCE = 8
"""Calls that may wait for each place at an engine's gate: a burst against a quick engine is served, not refused. Their
deadlines bound how long they wait."""

LONGEST_PAUSE = 1.0
"""Seconds between two attempts of one call, at most; an engine that asks for a longer one is not asked again by it."""

RESERVE = 10.0
"""Retries that an engine may be given at once before its budget binds."""


@dataclass(frozen=True, slots=True)
class Guards:
    """What every call to one engine passes: breaker -> gate -> attempts -> replica."""

    entry: EngineEntry
    ledger: Ledger
    gate: Gate
    allowance: Allowance
    """The retry budget."""
    pace: Pace
    hedge: Hedge | None
    witness: Witness


def guards_of(
    entry: EngineEntry,
    settings: EnginesSettings,
    transports: Sequence[Transport | Replica],
    witness: Witness,
    told: Told,
    remember: Callable[[Advertisement], None],
    chance: Callable[[], float] = random.random,
    before: Guards | None = None,
) -> Guards:
    """The guards for one engine with one transport, or replica that is known already, for each address.

    `before` are the guards of the same engine under its earlier entry: what they know stays (breaker, standing, calls
    under way), and only the rules change. `chance` gives numbers from 0 up to 1.
    """
    replicas = [_replica(str(place), each, remember) for place, each in enumerate(transports)]
    rules = EjectionRules(settings.eject_failures, settings.eject_ms / 1000, settings.slow_start_seconds)
    queue = entry.max_concurrency * PATIENCE if entry.max_waiting is None else entry.max_waiting
    pace = Pace(settings.retry_backoff_ms / 1000, LONGEST_PAUSE, lambda: 1.0 - chance() / 2)
    if before is not None:
        before.ledger.renew(breaker_rules(entry, settings))
        before.ledger.replicas.renew(replicas, rules)
        before.gate.resize(entry.max_concurrency, queue)
        same_budget = before.allowance.share == settings.retry_budget
        hedge = before.hedge
        if hedge is None or hedge.allowance.share != settings.hedge_budget:
            hedge = Hedge(settings.hedge_budget)
        return replace(
            before,
            entry=entry,
            pace=pace,
            allowance=before.allowance if same_budget else Allowance(settings.retry_budget, RESERVE),
            hedge=hedge if entry.hedge else None,
        )
    return Guards(
        entry=entry,
        ledger=Ledger(
            Breaker(breaker_rules(entry, settings)),
            Replicas(replicas, rules, chance, lambda replica, fault: witness.replica(replica.label, fault)),
            Standing(told),
            witness,
        ),
        gate=Gate(entry.max_concurrency, queue),
        allowance=Allowance(settings.retry_budget, RESERVE),
        pace=pace,
        hedge=Hedge(settings.hedge_budget) if entry.hedge else None,
        witness=witness,
    )


def _replica(label: str, each: Transport | Replica, remember: Callable[[Advertisement], None]) -> Replica:
    """A new replica, or a known one that from now on belongs to the engine that remembers by `remember`."""
    if not isinstance(each, Replica):
        return Replica(label, each, remember)
    each.label = label
    each.handshake.remember = remember
    return each
