"""Scatter-gather for methods other than `retrieve`: asks several engines at once and collects their answers.

The rules are those of `retrieve`: an engine that fails is left out and named in the report, a failed `required` engine
fails the request, and one answer is a success. The caller supplies what each engine is sent and how it is read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from app.federation.call_tracing import spans_for
from app.federation.calls import MIN_SECONDS, MethodCall, time_left
from app.federation.candidates import Candidates
from app.federation.engine_interface import Engine
from app.federation.engine_selection import EngineSelector
from app.federation.fanout import FanOut, OutcomeListener, ReadResult
from app.federation.forward import TRY_NEXT, share_of
from app.federation.hit_validation import sanitized
from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.membership import Members
from app.federation.outcome import (
    Hit,
    Outcome,
    degraded,
    no_engine_answered,
    notes,
    refused_by,
    report,
    required_failed,
    skipped,
)
from app.federation.planner import EngineCall
from app.federation.progress import ProgressListener, ProgressReporter, fused
from app.federation.request_options import engine_weights, loop_reason
from app.federation.response_merge import EngineResponse
from app.federation.result_set import lists_of
from app.fusion.injection_screen import InjectionScreen
from app.fusion.merge import FusedList
from app.fusion.ranked_lists import FusionConfig
from app.fusion.rrf import fuse
from app.protocol.errors import BackendUnavailable, DeadlineExceeded
from app.protocol.retrieve_params import GatewayOptions
from app.settings.schema import GatewaySettings

_engine_of = attrgetter("engine")


class BroadcastContext(NamedTuple):
    """What every broadcast needs: the call, the engines, the settings, and where to report."""

    call: MethodCall
    members: Members
    settings: GatewaySettings
    instrumentation: RetrieveInstrumentation
    listener: ProgressListener | None = None
    selector: EngineSelector | None = None
    """Learns from praise how good engine selection is."""


class BroadcastRequest(NamedTuple):
    """What one engine is sent; `_meta` is added when it is sent."""

    params: Mapping[str, Any]
    asked: int = 0
    """How many hits the engine is asked for."""


MakeRequest = Callable[[Engine], BroadcastRequest | Outcome]
"""What a candidate is sent, or the outcome that says why it is not asked."""

PartialMerge = Callable[[Mapping[str, EngineCall], Sequence[Outcome]], list[Hit] | None]
"""(calls by engine id, outcomes so far) -> the hits of a response made from them; None if it has no hits."""


class BroadcastResult(NamedTuple):
    """The outcomes of a broadcast."""

    engine_calls: Mapping[str, EngineCall]
    """Calls by engine id."""
    outcomes: Sequence[Outcome] = ()
    """Of the engines that were asked, and of those that were named but never reached, by engine id."""
    skipped: Sequence[Outcome] = ()
    notes: Sequence[str] = ()

    def answers(self) -> list[Outcome]:
        """Outcomes of the engines that answered."""
        return [outcome for outcome in self.outcomes if outcome.status == "ok"]

    def responses(self) -> list[EngineResponse]:
        """Results of the engines that answered, for merging everything that is not a hit."""
        # Priority and namespace come from the registry, not from the response.
        entries = {engine_id: engine_call.engine.entry for engine_id, engine_call in self.engine_calls.items()}
        return [
            EngineResponse(
                outcome.engine,
                outcome.result or {},
                entries[outcome.engine].priority,
                entries[outcome.engine].id_namespace,
            )
            for outcome in self.answers()
        ]


async def gather(
    context: BroadcastContext,
    candidates: Candidates,
    make_request: MakeRequest,
    read: ReadResult,
    partial_hits: PartialMerge | None = None,
    *,
    idempotent: bool = True,
    single_engine: bool = False,
) -> BroadcastResult:
    """Ask at once every candidate for which `make_request` returns a request. Raises RcpError if none answers.

    `single_engine`: only one engine can answer this, so its refusal is the response. The result is empty if a cycle
    or the depth forbids asking any engine (decision 3), or if `make_request` returns no request.
    """
    call, members, instrumentation = context.call, context.members, context.instrumentation
    listener = context.listener
    # As for `retrieve`: an empty success rather than an error, so that a cycle of gateways ends quietly.
    stop = loop_reason(call, members)
    if stop is not None:
        no_candidate_error = [skipped(engine_id, *stop) for engine_id in sorted(members.ids())]
        return BroadcastResult({}, (), no_candidate_error, (f"no engine was asked: {stop[1]}",))
    # Before the candidates: a missing required engine fails the request even if others could answer.
    _check_required(members, candidates)
    if not candidates.engines:
        raise candidates.no_candidate_error()
    if time_left(call) < MIN_SECONDS:
        raise DeadlineExceeded("the deadline leaves no time to ask any engine", retryable=True)
    # Requests are built before any is sent, so that an invalid one fails without side effects.
    written = {engine.id: (engine, make_request(engine)) for engine in candidates.engines}
    engine_calls = {
        name: _engine_call(context, engine, sent)
        for name, (engine, sent) in written.items()
        if isinstance(sent, BroadcastRequest)
    }
    left_out = [sent for _, sent in written.values() if isinstance(sent, Outcome)]
    reporter = (
        None if listener is None or not engine_calls else _reporter(context, listener, engine_calls, partial_hits)
    )
    listen: OutcomeListener = instrumentation.engine_call if reporter is None else reporter.call_ended
    spans = spans_for(instrumentation.tracing, call.method)
    asked = [*engine_calls.values()]
    fan_out = FanOut(asked, listen, method=call.method, read=read, idempotent=idempotent, spans=spans)
    try:
        lost = await fan_out.run()
    finally:
        if reporter is not None:
            reporter.close()
    if lost is not None:
        raise required_failed(lost)
    # Sorted by id: nothing in the result may depend on the order of arrival.
    outcomes = sorted([*fan_out.outcomes, *candidates.lost], key=_engine_of)
    if engine_calls and not any(outcome.status == "ok" for outcome in outcomes):
        # Only one engine can answer, so its own refusal says more than -32010.
        if single_engine and outcomes[0].kind == "refused" and outcomes[0].code not in TRY_NEXT:
            raise refused_by(outcomes[0])
        raise no_engine_answered(outcomes, out_of_time=_cut_by_caller(engine_calls))
    if listener is not None and engine_calls:
        listener.send(fused(call.meta.progress_token, outcomes))
    return BroadcastResult(engine_calls, outcomes, [*candidates.skipped, *left_out])


def settings_of(context: BroadcastContext) -> GatewaySettings:
    """The settings, with the tenant's own fusion settings if it has some."""
    tenant = context.call.tenant
    if tenant is None or tenant.fusion is None:
        return context.settings
    return context.settings.model_copy(update={"fusion": tenant.fusion})


def with_report(
    context: BroadcastContext, gathered: BroadcastResult, result: Mapping[str, Any], more_notes: Sequence[str] = ()
) -> dict[str, Any]:
    """`result` with `usage.notes` and the report of every engine in `_meta`, as for `retrieve`."""
    lines = [*gathered.notes, *notes(gathered.outcomes), *more_notes, *sanitized(result.get("hits", ()))]
    usage = {**result.get("usage", {}), **({"notes": lines} if lines else {})}
    engines = report([*gathered.outcomes, *gathered.skipped], of_hits="hits" in result)
    meta: dict[str, Any] = {"x-gateway": {"id": context.members.identity, "engines": engines}}
    dropped = degraded(gathered.outcomes)
    if dropped:
        meta["degraded"] = dropped
    return {**result, **({"usage": usage} if usage else {}), "_meta": meta}


def _engine_call(context: BroadcastContext, engine: Engine, engine_request: BroadcastRequest) -> EngineCall:
    share = share_of(context.call, engine, context.members, context.settings)
    # Last, because the remaining time is part of `_meta`.
    params = {**engine_request.params, "_meta": share.meta}
    tenant = context.call.tenant
    # A tenant's weights are by engine id; the weight of a gateway applies to its engines.
    weights = {} if tenant is None else engine_weights({"weights": tenant.weights}, context.members)
    return EngineCall(
        engine, params, weights.get(engine.id, engine.entry.weight), share.seconds, share.deadline, engine_request.asked
    )


def _reporter(
    context: BroadcastContext,
    listener: ProgressListener,
    engine_calls: Mapping[str, EngineCall],
    partial_hits: PartialMerge | None,
) -> ProgressReporter:
    def hits(ended: Sequence[Outcome]) -> list[Hit] | None:
        return None if partial_hits is None else partial_hits(engine_calls, sorted(ended, key=_engine_of))

    return ProgressReporter(listener, context.instrumentation, context.call.meta, len(engine_calls), hits)


def _cut_by_caller(engine_calls: Mapping[str, EngineCall]) -> bool:
    """Whether the caller's deadline, not an engine's own timeout, limits any of the calls."""
    return any(
        engine_call.seconds < engine_call.engine.entry.timeout_ms / 1000 for engine_call in engine_calls.values()
    )


def _check_required(members: Members, candidates: Candidates) -> None:
    """Raises BackendUnavailable for a required engine that has never been reached: whether it offers the method is
    unknown."""
    away = {outcome.engine for outcome in (*candidates.skipped, *candidates.lost) if outcome.kind == "unreached"}
    for engine in members.engines:
        if engine.entry.required and engine.id in away:
            why = engine.down_reason or "not connected yet"
            raise BackendUnavailable(
                f"the required engine '{engine.id}' has not been reached yet: {why}", retryable=True, detail=why
            )


class HitFusion:
    """Fuses the hits of `graph` and `memory/recall` by the settings and `x-gateway`, as for `retrieve` (RCP §16.3)."""

    __slots__ = ("_k", "_options", "_screen")

    def __init__(
        self, gateway: GatewayOptions, settings: GatewaySettings, k: int, screen: InjectionScreen | None = None
    ) -> None:
        """At most `k` hits; `screen` inspects them."""
        defaults = settings.fusion
        weight = gateway.confidence_weight
        self._k = k
        self._screen = screen
        self._options = FusionConfig(
            # Convex fusion needs a `scoreFloor`, which engines state only for `retrieve`.
            method="rrf" if defaults.method == "convex" else defaults.method,
            rrf_k=defaults.rrf_k,
            confidence_weight=defaults.confidence_weight if weight is None else weight,
            identity=gateway.identity or settings.retrieve.identity,
            silent=defaults.silent,
        )

    def steps(self, engine_calls: Mapping[str, EngineCall], outcomes: Sequence[Outcome]) -> Iterator[None]:
        """Screen the texts before `fusion` does; yields where the event loop should run other requests."""
        if self._screen is not None:
            yield from self._screen.steps(fuse(lists_of(engine_calls, outcomes), self._options), 0, self._k)

    def fusion(self, engine_calls: Mapping[str, EngineCall], outcomes: Sequence[Outcome]) -> FusedList:
        """The fused hits of all engines that answered, without those that the screen drops; `outcomes` by engine id."""
        fusion = fuse(lists_of(engine_calls, outcomes), self._options)
        return fusion if self._screen is None else self._screen.kept(fusion)

    def hits(self, fusion: FusedList) -> list[Hit]:
        """The hits to return."""
        hits = fusion.hits(0, self._k)
        if self._screen is not None:
            self._screen.inspect(hits)
        return hits

    def keys(self, fusion: FusedList) -> Sequence[str]:
        """Identity keys of the hits to return."""
        return fusion.keys(0, self._k)

    def partial_hits(self, engine_calls: Mapping[str, EngineCall], outcomes: Sequence[Outcome]) -> list[Hit] | None:
        """The hits of a response made from the outcomes so far; None if no engine has answered yet."""
        if not any(one.status == "ok" for one in outcomes):
            return None
        fusion = fuse(lists_of(engine_calls, outcomes), self._options)
        if self._screen is not None and any(True for _ in self._screen.steps(fusion, 0, self._k)):
            # Screening would block the event loop for too long, so this notification carries no hits.
            return None
        hits = self.hits(fusion if self._screen is None else self._screen.kept(fusion))
        sanitized(hits)
        return hits

    def __repr__(self) -> str:
        return f"<HitFusion of at most {self._k} hits by {self._options.method}>"
