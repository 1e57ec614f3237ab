"""`feedback` (RCP §7.16): passes feedback signals on to the engines that the hits came from.

A signal goes to the engines that the session remembers for its hit, else to those its namespace names, else to all."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from app.federation.broadcast import BroadcastContext, BroadcastRequest, BroadcastResult, gather, with_report
from app.federation.candidates import candidates_for
from app.federation.engine_interface import Engine
from app.federation.forwarded_params import dedups
from app.federation.id_routing import namespaces_of, owners_of
from app.federation.learning import Event, scope_of
from app.federation.outcome import Outcome, skipped, succeeded
from app.federation.pagination import Pages
from app.federation.sessions import scoped
from app.protocol.errors import ProtocolViolation
from app.protocol.method_params import FeedbackParams, read_feedback
from app.protocol.param_fields import Id
from app.protocol.retrieve_params import read_gateway

# --- Routing of signals ---

Signal = Mapping[str, Any]
PRAISE = ("used", "cited", "helpful")
SUSPICION = ("poisonSuspected", "injectionSuspected")
Origins = Mapping[str, Mapping[str, Id]]
"""A hit's id as a string -> engine id -> the id by which that engine knows it."""


class RoutedSignals(NamedTuple):
    """Which engine is sent which signals."""

    engine_requests: Mapping[str, Mapping[int, dict[str, Any]]]
    """Engine id -> position of a signal -> the signal with the id that this engine knows."""
    unrouted: tuple[int, ...]
    """Positions of signals for which no engine takes feedback."""


def addressed(
    signals: Sequence[Signal], origins: Origins, engines: Mapping[str, str | None], takers: Iterable[str]
) -> RoutedSignals:
    """Which engine is sent which of `signals`. `engines`: every engine's namespace; `takers`: those that take
    feedback."""
    taking = frozenset(takers)
    namespaces = namespaces_of(engines.values())
    engine_requests: dict[str, dict[int, dict[str, Any]]] = {}
    unrouted: list[int] = []
    for place, signal in enumerate(signals):
        hit_id = signal["hitId"]
        # What the session remembers is certain; namespaces are the next best.
        owners = origins.get(f"{hit_id}") or owners_of(hit_id, engines, namespaces)
        takers = [engine for engine in sorted(owners) if engine in taking]
        for engine in takers:
            engine_requests.setdefault(engine, {})[place] = {**signal, "hitId": owners[engine]}
        if not takers:
            unrouted.append(place)
    return RoutedSignals(engine_requests, tuple(unrouted))


def rewards_of(signals: Sequence[Signal]) -> dict[str, float]:
    """Hit id as a string -> usefulness of the hit in [0, 1]; the highest of several signals counts.

    `used`, `cited` and `helpful` are 1 if true and 0 if false. A negative `reward` is 0, and so is the usefulness of a
    hit that is reported as poisoned or as an injection. A signal with none of these is left out.
    """
    rewards: dict[str, float] = {}
    for signal in signals:
        values = [float(signal[flag]) for flag in PRAISE if flag in signal]
        if "reward" in signal:
            values.append(min(1.0, max(0.0, float(signal["reward"]))))
        if any(signal.get(flag) for flag in SUSPICION):
            values = [0.0]
        if values:
            hit_id = f"{signal['hitId']}"
            rewards[hit_id] = max(rewards.get(hit_id, 0.0), *values)
    return rewards


def recorded(
    engine_requests: Mapping[str, Iterable[int]], accepted: Mapping[str, int], learned: Iterable[int] = ()
) -> int:
    """How many signals at least one engine recorded or the gateway learned from; a lower bound.

    `engine_requests`: engine id -> positions of the signals it was sent; `accepted`: how many of them it recorded;
    `learned`: positions of the signals that the gateway learned from. An engine that recorded only some does not say
    which: they count only as far as no other engine can have recorded the same.
    """
    sent = {engine: frozenset(engine_requests[engine]) for engine in accepted}
    sure: set[int] = set(learned)
    for engine, places in sent.items():
        if accepted[engine] >= len(places):
            sure |= places
    # At best, the largest of the partial counts adds to the sure ones.
    others = [
        accepted[engine] - len(places & sure) for engine, places in sent.items() if accepted[engine] < len(places)
    ]
    return len(sure) + max([0, *others])


# --- Method ---


async def feedback(context: BroadcastContext, pages: Pages) -> dict[str, Any]:
    """Answer one `feedback`: `accepted` signals were recorded by at least one engine. Raises RcpError.

    Engines are sent it once, because recording is not idempotent. Hits reported as poisoned are remembered for the
    tenant, if the injection screen uses reports.
    """
    call, members = context.call, context.members
    request = read_feedback(call.params)
    candidates = candidates_for(call, members, "feedback", read_gateway(call.params.get("x-gateway")))
    # Before the engines are asked: the report counts even if none takes feedback.
    await pages.report(f"{signal['hitId']}" for signal in request.signals if signal.get("poisonSuspected"))
    if context.selector is not None:
        praised = [hit_id for hit_id, reward in rewards_of(request.signals).items() if reward > 0]
        context.selector.praised("" if call.tenant is None else call.tenant.id, praised)
    learned = await _learned(context, pages, request)
    known = {} if request.session_id is None else await pages.origins.load(request.session_id)
    namespaces = {engine.id: engine.entry.id_namespace for engine in members.engines}
    routed = addressed(request.signals, known, namespaces, [engine.id for engine in candidates.engines])

    def engine_request(engine: Engine) -> BroadcastRequest | Outcome:
        return _engine_request(request, routed, context, engine)

    if not candidates.engines and not candidates.lost and context.settings.fusion.learning == "on":
        gathered = BroadcastResult({}, (), candidates.skipped)  # no engine takes feedback, but the gateway does
    else:
        gathered = await gather(context, candidates, engine_request, _read, idempotent=False)
    accepted = {outcome.engine: (outcome.result or {})["accepted"] for outcome in gathered.answers()}
    unrouted = (
        (f"{len(routed.unrouted)} signal(s) concern hits of engines that do not take feedback",)
        if routed.unrouted
        else ()
    )
    return with_report(context, gathered, {"accepted": recorded(routed.engine_requests, accepted, learned)}, unrouted)


async def _learned(context: BroadcastContext, pages: Pages, request: FeedbackParams) -> list[int]:
    """Update the engines' calibration with the signals; the positions of the signals that were used.

    Without a session it is unknown which engines returned a hit, and at which rank: such a signal is only passed on.
    """
    fusion, call = context.settings.fusion, context.call
    if fusion.learning != "on" or pages.attributions is None:
        return []
    rewards = rewards_of(request.signals)
    if request.session_id is None:
        pages.learning.counted("unknown", len(rewards))
        return []
    judged, unknown = await pages.attributions.judged(request.session_id, rewards)
    pages.learning.counted("unknown", len(unknown))
    tenant = None if call.tenant is None or fusion.learning_scope == "tenant" else call.tenant.id
    pages.learning.learn(Event(scope_of(call.tenant, fusion), call.caller, tenant), judged)
    return [
        place
        for place, signal in enumerate(request.signals)
        if (hit_id := f"{signal['hitId']}") in rewards and hit_id not in unknown
    ]


def _engine_request(
    request: FeedbackParams, routed: RoutedSignals, context: BroadcastContext, engine: Engine
) -> BroadcastRequest | Outcome:
    # An engine is sent only signals about its own hits.
    signals = routed.engine_requests.get(engine.id)
    if not signals:
        return skipped(engine.id, "signals", "no signal concerns a hit of this engine")
    params = {**request.raw, "signals": list(signals.values())}
    if request.session_id is not None and engine.advertisement is not None and not dedups(engine.advertisement):
        params["sessionId"] = scoped(context.members.identity, request.session_id, context.call.tenant)
    return BroadcastRequest(params)


def _read(engine: str, result: Mapping[str, Any], took: float, attempts: int, size: int = 0) -> Outcome:
    """The outcome of an engine that says how many signals it recorded. Raises ProtocolViolation."""
    accepted = result.get("accepted")
    if type(accepted) is not int or accepted < 0:
        raise ProtocolViolation("the feedback result has no valid 'accepted'")
    return succeeded(engine, result, took, attempts, size)
