"""Which engines hear which feedback signals, and how many of them were recorded (RCP §7.16). Pure.

A signal goes to whoever its hit came from: as the session remembers, else as namespaces tell, else to all. It refuses
to know what a signal says.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from app.federation.id_routing import namespaces_of, owners_of
from app.protocol.param_fields import Id

Signal = Mapping[str, Any]
PRAISE = ("used", "cited", "helpful")
SUSPICION = ("poisonSuspected", "injectionSuspected")
Origins = Mapping[str, Mapping[str, Id]]
"""A hit's id as a string -> engine id -> the id that this engine knows it by."""


class RoutedSignals(NamedTuple):
    """What is sent where."""

    engine_requests: Mapping[str, Mapping[int, dict[str, Any]]]
    """Engine id -> place of a signal -> the signal with the hit id that this engine knows."""
    unheard: tuple[int, ...]
    """Places of signals whose engines take no feedback."""


def addressed(
    signals: Sequence[Signal], origins: Origins, engines: Mapping[str, str | None], takers: Iterable[str]
) -> RoutedSignals:
    """Who hears which of `signals`. `engines`: every engine's namespace; `takers`: those that take feedback."""
    taking = frozenset(takers)
    namespaces = namespaces_of(engines.values())
    engine_requests: dict[str, dict[int, dict[str, Any]]] = {}
    unheard: list[int] = []
    for place, signal in enumerate(signals):
        hit_id = signal["hitId"]
        owners = origins.get(f"{hit_id}") or owners_of(hit_id, engines, namespaces)
        hearing = [engine for engine in sorted(owners) if engine in taking]
        for engine in hearing:
            engine_requests.setdefault(engine, {})[place] = {**signal, "hitId": owners[engine]}
        if not hearing:
            unheard.append(place)
    return RoutedSignals(engine_requests, tuple(unheard))


def rewards_of(signals: Sequence[Signal]) -> dict[str, float]:
    """Hit id as a string -> how useful the caller calls the hit, in [0,1]; the highest of several signals counts.

    `used`, `cited` or `helpful` is 1 if true and 0 if false; a negative `reward` is 0, and so is whatever is said of a
    hit that is suspected. A signal that says none of this is left out.
    """
    rewards: dict[str, float] = {}
    for signal in signals:
        said = [float(signal[flag]) for flag in PRAISE if flag in signal]
        if "reward" in signal:
            said.append(min(1.0, max(0.0, float(signal["reward"]))))
        if any(signal.get(flag) for flag in SUSPICION):
            said = [0.0]
        if said:
            hit_id = f"{signal['hitId']}"
            rewards[hit_id] = max(rewards.get(hit_id, 0.0), *said)
    return rewards


def recorded(
    engine_requests: Mapping[str, Iterable[int]], accepted: Mapping[str, int], learned: Iterable[int] = ()
) -> int:
    """How many signals at least one engine recorded, or the gateway learned from; never more than is sure.

    `letters`: engine id -> places of the signals it got; `accepted`: how many of them it says it recorded. Who recorded
    some of its signals does not say which: they count only as far as nobody else can have recorded the same.
    """
    sent = {engine: frozenset(engine_requests[engine]) for engine in accepted}
    sure: set[int] = set(learned)
    for engine, places in sent.items():
        if accepted[engine] >= len(places):
            sure |= places
    others = [
        accepted[engine] - len(places & sure) for engine, places in sent.items() if accepted[engine] < len(places)
    ]
    return len(sure) + max([0, *others])
