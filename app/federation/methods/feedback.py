"""`feedback` (RCP §7.16): what callers say of hits, told to the engines that these came from.

Decides who hears of a hit that nobody remembers, and how many signals count as recorded. It changes nothing that is
under way, and refuses to know what a signal says.
"""

from collections.abc import Mapping
from typing import Any

from app.federation.broadcast import BroadcastContext, BroadcastRequest, BroadcastResult, gather, told_of
from app.federation.candidates import candidates_for
from app.federation.engine_interface import Engine
from app.federation.feedback_routing import RoutedSignals, addressed, recorded, rewards_of
from app.federation.forwarded_params import dedups
from app.federation.learning import Event, scope_of
from app.federation.outcome import Outcome, skipped, told
from app.federation.pagination import Pages
from app.federation.sessions import scoped
from app.protocol.errors import ProtocolViolation
from app.protocol.method_params import FeedbackParams, read_feedback
from app.protocol.retrieve_params import read_gateway


async def feedback(context: BroadcastContext, pages: Pages) -> dict[str, Any]:
    """Answer one `feedback`: `accepted` signals were recorded by at least one engine. Raises RcpError.

    An engine is sent it once: what may have been recorded is not repeated. Hits that are called poisoned are remembered
    for whoever says so, if screens heed that.
    """
    call, members = context.call, context.members
    wish = read_feedback(call.params)
    candidates = candidates_for(call, members, "feedback", read_gateway(call.params.get("x-gateway")))
    await pages.report(f"{signal['hitId']}" for signal in wish.signals if signal.get("poisonSuspected"))
    learned = await _learned(context, pages, wish)
    known = {} if wish.session_id is None else await pages.origins.of(wish.session_id)
    namespaces = {engine.id: engine.entry.id_namespace for engine in members.engines}
    mail = addressed(wish.signals, known, namespaces, [engine.id for engine in candidates.engines])

    def engine_request(engine: Engine) -> BroadcastRequest | Outcome:
        return _engine_request(wish, mail, context, engine)

    if not candidates.engines and not candidates.lost and context.settings.fusion.learning == "on":
        gathered = BroadcastResult({}, (), candidates.skipped)  # no engine takes feedback, but the gateway does
    else:
        gathered = await gather(context, candidates, engine_request, _read, idempotent=False)
    accepted = {outcome.engine: (outcome.result or {})["accepted"] for outcome in gathered.answers()}
    unheard = (
        (f"{len(mail.unheard)} signal(s) are about hits of engines that take no feedback",) if mail.unheard else ()
    )
    return told_of(context, gathered, {"accepted": recorded(mail.engine_requests, accepted, learned)}, unheard)


async def _learned(context: BroadcastContext, pages: Pages, wish: FeedbackParams) -> list[int]:
    """Teach the engines' calibration what the signals say; the places of the signals that something was learned from.

    Without a session nobody knows which engines gave a hit, and at which rank: such a signal is passed on only.
    """
    fusion, call = context.settings.fusion, context.call
    if fusion.learning != "on" or pages.attributions is None:
        return []
    rewards = rewards_of(wish.signals)
    if wish.session_id is None:
        pages.learning.counted("unknown", len(rewards))
        return []
    judged, unknown = await pages.attributions.judged(wish.session_id, rewards)
    pages.learning.counted("unknown", len(unknown))
    tenant = None if call.tenant is None or fusion.learning_scope == "tenant" else call.tenant.id
    pages.learning.learn(Event(scope_of(call.tenant, fusion), call.caller, tenant), judged)
    return [
        place
        for place, signal in enumerate(wish.signals)
        if (hit_id := f"{signal['hitId']}") in rewards and hit_id not in unknown
    ]


def _engine_request(
    wish: FeedbackParams, mail: RoutedSignals, context: BroadcastContext, engine: Engine
) -> BroadcastRequest | Outcome:
    signals = mail.engine_requests.get(engine.id)
    if not signals:
        return skipped(engine.id, "signals", "no signal is about a hit of it")
    params = {**wish.raw, "signals": list(signals.values())}
    if wish.session_id is not None and engine.advertisement is not None and not dedups(engine.advertisement):
        params["sessionId"] = scoped(context.members.identity, wish.session_id, context.call.tenant)
    return BroadcastRequest(params)


def _read(engine: str, result: Mapping[str, Any], took: float, attempts: int, size: int = 0) -> Outcome:
    """The outcome of a leg whose engine says how many signals it recorded. Raises ProtocolViolation."""
    accepted = result.get("accepted")
    if type(accepted) is not int or accepted < 0:
        raise ProtocolViolation("the feedback result does not say how many signals were 'accepted'")
    return told(engine, result, took, attempts, size)
