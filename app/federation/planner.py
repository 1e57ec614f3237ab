"""Planning of a `retrieve`: which engines to ask, with which params, weight and deadline. Pure.

Every engine left out has a reason. A Plan is printable: the explanation of a request shows its plan.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from app.federation.calls import RetrieveCall
from app.federation.engine_interface import Engine
from app.federation.forwarded_params import (
    ALIKE,
    OWN_PARAMS,
    Shared,
    dedups,
    forwarded_meta,
    shared_params,
    write_funnel,
    write_inner_fusion,
)
from app.federation.membership import Members
from app.federation.option_demands import Refusal, demands_of, no_engine_can, only_cycles
from app.federation.outcome import MAX_HITS, Outcome, never_reached, skipped
from app.federation.request_options import (
    SURFACE,
    Depth,
    check_one_version,
    check_weights,
    closes_cycle,
    engine_weights,
    fusion_options,
    loop_reason,
    method_note,
    needs_text,
    pinned_versions,
    requested_engines,
    window_of,
)
from app.federation.rerank_plan import RerankPlan, union_of, without_rerank
from app.federation.sessions import scoped
from app.fusion.ranked_lists import FusionConfig
from app.protocol.advertisement import Advertisement, RetrieveOffer
from app.protocol.errors import BackendUnavailable, OptionUnsupported
from app.protocol.filters import FilterFault, fault_of
from app.resilience.deadline import call_seconds
from app.settings.schema import FusionSettings, RetrieveSettings


class EngineCall(NamedTuple):
    """One planned engine call; a named tuple, since one is made per engine and request.

    `deadline` is in event-loop seconds, `seconds` the same as a duration.
    """

    engine: Engine
    params: Mapping[str, Any]
    weight: float
    seconds: float
    deadline: float
    asked: int
    """The `k` sent to the engine."""
    score_floor: float | None = None
    pinned: str | None = None
    """The `indexVersion` it must serve."""
    without: tuple[str, ...] = ()
    """Options of the request that are not sent to this engine."""


class Selection(NamedTuple):
    """Which of many engines a request asks (`federation.engine_selection`)."""

    order: tuple[str, ...]
    """The candidates, the most promising first."""
    asked: frozenset[str]
    """Those that are asked."""
    explored: tuple[str, ...]
    """Those asked in order to learn about them."""
    audit: bool
    """Whether all candidates are asked in order to measure the selection."""
    n: int
    """How many places there are for promising engines."""
    would_ask: frozenset[str]
    """Those that are asked unless this is an audit."""
    scores: Mapping[str, float]
    parts: Mapping[str, Mapping[str, float]]
    """Term of the query -> engine -> what the term adds to its score; empty unless the response explains itself."""


class Plan(NamedTuple):
    """Everything decided before the first engine call."""

    engine_calls: tuple[EngineCall, ...]
    skipped: tuple[Outcome, ...]
    k: int
    fusion: FusionConfig
    notes: tuple[str, ...] = ()
    cut_by_caller: bool = False
    """Whether the caller's deadline, not the engines' timeouts, bounds the engine calls."""
    window: int = 0
    """Hits requested from each engine, unless its own `maxK` is smaller."""
    varied: bool = False
    """Whether the gateway itself diversifies the fused list."""
    lost: tuple[Outcome, ...] = ()
    """Engines that the request names and that were never reached: they count as failed."""
    union: RerankPlan | None = None
    """How the fused top is reranked, if the retrieving engines cannot rerank and another engine can."""
    selection: Selection | None = None
    """Which of these engines were selected; None without engine selection."""


def plan_retrieve(
    call: RetrieveCall,
    members: Members,
    now: float,
    settings: RetrieveSettings,
    blend: FusionSettings,
    depth: Depth = SURFACE,
) -> Plan:
    """The plan for one `retrieve`. `now` is in event-loop seconds.

    Raises the RcpError that one engine would answer when no engine can honour the request: InvalidParams (-32602) for a
    filter field nobody has, OptionUnsupported (-32005) for an option, CapabilityMissing (-32003) when no engine
    retrieves, BackendUnavailable (-32010) while none has been reached or a pinned snapshot cannot be served.
    """
    stop = loop_reason(call, members)
    fusion = fusion_options(call.params, settings, blend)
    if stop is not None:
        return plan_without_calls(call, members, fusion, *stop)
    if settings.rerank_union and call.params.options.rerank is not None:
        return _plan_reranked(call, members, now, settings, depth, fusion)
    return _Planner(call, members, now, settings, depth).plan(fusion)


def _plan_reranked(
    call: RetrieveCall,
    members: Members,
    now: float,
    settings: RetrieveSettings,
    depth: Depth,
    fusion: FusionConfig,
) -> Plan:
    """The plan of a request with `rerank`: engines that rerank themselves if there are any, otherwise all engines,
    followed by a rerank of their union."""
    own: Plan | OptionUnsupported
    try:
        own = _Planner(call, members, now, settings, depth).plan(fusion)
    except OptionUnsupported as refusal:
        own = refusal
    if isinstance(own, Plan) and [
        engine_call for engine_call in own.engine_calls if "rerank" not in engine_call.without
    ]:
        return own
    union = union_of(call, members, window_of(min(call.params.k, members.max_k), settings))
    if union is not None:
        return _Planner(without_rerank(call, now), members, now, settings, depth, union).plan(fusion)
    if isinstance(own, OptionUnsupported):
        raise own
    return own


def plan_without_calls(call: RetrieveCall, members: Members, fusion: FusionConfig, reason: str, detail: str) -> Plan:
    """A plan without engine calls, for one reason that applies to every engine."""
    return Plan(
        engine_calls=(),
        skipped=tuple(skipped(engine_id, reason, detail) for engine_id in sorted(members.ids())),
        k=min(call.params.k, members.max_k),
        fusion=fusion,
        notes=(f"no engine was asked: {detail}",),
    )


class _Planner:
    """Considers each engine once; values common to all engines are computed before."""

    __slots__ = (
        "_asked_engines",
        "_by_timeout",
        "_call",
        "_cut_by_caller",
        "_demands",
        "_depth",
        "_engine_calls",
        "_forwarded",
        "_fusion",
        "_k",
        "_lost",
        "_members",
        "_meta",
        "_notes",
        "_now",
        "_pinning",
        "_pins",
        "_plain",
        "_refusals",
        "_session",
        "_settings",
        "_shared",
        "_skipped",
        "_union",
        "_weights",
        "_window",
    )

    def __init__(
        self,
        call: RetrieveCall,
        members: Members,
        now: float,
        settings: RetrieveSettings,
        depth: Depth,
        union: RerankPlan | None = None,
    ) -> None:
        params = call.params
        self._call = call
        self._members = members
        self._now = now
        self._settings = settings
        self._k = min(params.k, members.max_k)
        self._depth = depth
        self._union = union
        self._window = window_of(self._k, settings)
        if union is not None:
            self._window = max(self._window, union.top_n)
        if depth is not SURFACE:
            self._window = max(self._window, min(max(self._window + depth.beyond, depth.least), MAX_HITS))
        self._pinning = params.options.index_version is not None
        self._pins = pinned_versions(params, members) if self._pinning else None
        self._demands = demands_of(params.raw, params.query_modalities)
        if self._pins is not None:
            self._demands = [demand for demand in self._demands if demand.option != "indexVersion"]
        self._forwarded = {key: value for key, value in params.raw.items() if key not in OWN_PARAMS}
        if union is not None or needs_text(params, settings, screened=call.screened):
            self._forwarded.pop("includeText", None)
        session_id = params.options.session_id
        self._session = None if session_id is None else scoped(members.identity, session_id, call.tenant)
        self._fusion: Mapping[str, Any] = params.raw.get("fusion") or {}
        self._weights = engine_weights(self._fusion, members)
        self._asked_engines = requested_engines(params.gateway, members)
        self._plain = params.raw.keys() <= ALIKE and session_id is None
        self._shared: Shared = {}
        self._by_timeout: dict[int, tuple[float, float, dict[str, Any]]] = {}
        self._meta = forwarded_meta(call, members.identity)
        self._cut_by_caller = False
        self._engine_calls: list[EngineCall] = []
        self._lost: list[Outcome] = []
        self._skipped: list[Outcome] = [skipped(name, "disabled", "disabled") for name in members.disabled]
        self._notes: list[str] = method_note(self._fusion)
        self._refusals: list[Refusal] = []
        check_weights(self._weights, members)
        if call.tenant is not None and call.tenant.weights:
            self._weights = {**engine_weights({"weights": call.tenant.weights}, members), **self._weights}

    def plan(self, fusion: FusionConfig) -> Plan:
        for engine in self._members.engines:
            self._consider(engine)
        if not self._engine_calls and not only_cycles(self._skipped, self._lost) and not self._depth.exhausted:
            raise no_engine_can(self._call.params.filter, self._refusals, [*self._skipped, *self._lost])
        if self._pinning and self._pins is None:
            check_one_version(
                [engine_call.engine.id for engine_call in self._engine_calls if engine_call.pinned is not None]
            )
        return Plan(
            tuple(self._engine_calls),
            tuple(self._skipped),
            self._k,
            fusion,
            tuple(self._notes),
            self._cut_by_caller,
            self._window,
            self._varied(),
            tuple(self._lost),
            self._union,
        )

    def _consider(self, engine: Engine) -> None:
        advertisement = engine.advertisement
        if self._asked_engines is not None and engine.id not in self._asked_engines:
            self._skip(engine, "not_selected", "the request names other engines")
        elif engine.id in self._depth.exhausted:
            self._skip(engine, "exhausted", "it has returned all its hits; the saved list is used")
        elif self._pins is not None and engine.id not in self._pins:
            self._skip(engine, "snapshot", "not part of the pinned snapshot")
        elif advertisement is None:
            self._skip_unreached(engine)
        elif advertisement.retrieve is None:
            self._skip(engine, "capability", "does not advertise retrieve")
        elif closes_cycle(advertisement, self._call, self._members):
            detail = f"its gateway ({advertisement.gateway_id}) is already in the federation path"
            self._skip(engine, "loop", detail)
            self._notes.append(f"{engine.id}: not asked: {detail}")
        else:
            self._route(engine, advertisement, advertisement.retrieve)

    def _route(self, engine: Engine, advertisement: Advertisement, offer: RetrieveOffer) -> None:
        fault = self._filter_fault(engine, advertisement)
        if fault is not None:
            self._refusals.append((fault, advertisement))
            self._skip(engine, "filter", fault.message)
            return
        left_out: list[str] = []
        for demand in self._demands:
            missing = demand.check(demand.value, advertisement, offer)
            if missing is None:
                continue
            if self._call.params.strict or not demand.keys:
                self._refusals.append((demand, advertisement))
                self._skip(engine, "option", missing)
                return
            left_out.extend(demand.keys)
            self._notes.append(f"{engine.id}: asked without '{demand.option}': {missing}")
        self._ask(engine, advertisement, offer, left_out)

    def _filter_fault(self, engine: Engine, advertisement: Advertisement) -> FilterFault | None:
        tree = self._call.params.filter
        if tree is None:
            return None
        fields = advertisement.filter_fields
        excluded = self._members.excluded_fields.get(engine.id)
        if excluded:
            fields = {name: kind for name, kind in fields.items() if name not in excluded}
        return fault_of(tree, fields, advertisement.filter_operators)

    def _ask(self, engine: Engine, advertisement: Advertisement, offer: RetrieveOffer, left_out: list[str]) -> None:
        seconds, deadline, meta = self._budget(engine.entry.timeout_ms)
        asked = self._window if offer.max_k is None else min(self._window, offer.max_k)
        weight = self._weights.get(engine.id, engine.entry.weight) if self._weights else engine.entry.weight
        if self._plain:
            shared = shared_params(self._shared, (asked, deadline), self._forwarded, meta)
            self._engine_calls.append(EngineCall(engine, shared, weight, seconds, deadline, asked, offer.score_floor))
            return
        params = {**self._forwarded, "_meta": meta}
        raw = self._call.params.raw
        if "candidateK" in raw or "rerank" in raw:
            wanted = {key: value for key, value in raw.items() if key not in left_out} if left_out else raw
            asked = write_funnel(params, wanted, asked, advertisement)
        params["k"] = asked
        if self._fusion:
            write_inner_fusion(params, self._fusion, offer)
        for key in left_out:
            params.pop(key, None)
        if self._session is not None and not dedups(advertisement):
            params["sessionId"] = self._session
        engine_call = EngineCall(engine, params, weight, seconds, deadline, asked, offer.score_floor)
        if left_out or self._pinning:
            engine_call = engine_call._replace(pinned=self._pin(engine.id, params), without=tuple(left_out))
        self._engine_calls.append(engine_call)

    def _pin(self, engine_id: str, params: dict[str, Any]) -> str | None:
        """Set the `indexVersion` that the engine must serve, if one is pinned; returns it."""
        if "indexVersion" not in params:
            return None
        if self._pins is not None:
            params["indexVersion"] = self._pins[engine_id]
        version: str = params["indexVersion"]
        return version

    def _budget(self, timeout_ms: int) -> tuple[float, float, dict[str, Any]]:
        """(seconds, deadline, `_meta`) for engines with this timeout; cached, since most share one."""
        budget = self._by_timeout.get(timeout_ms)
        if budget is None:
            own = timeout_ms / 1000
            seconds = call_seconds(self._call.deadline - self._now, own, self._settings.reserve_ms / 1000)
            self._cut_by_caller = self._cut_by_caller or seconds < own
            meta = {**self._meta, "deadlineMs": max(1, int(seconds * 1000))}
            budget = self._by_timeout[timeout_ms] = (seconds, self._now + seconds, meta)
        return budget

    def _skip(self, engine: Engine, reason: str, detail: str) -> None:
        self._skipped.append(skipped(engine.id, reason, detail))

    def _skip_unreached(self, engine: Engine) -> None:
        why = engine.down_reason or "not connected yet"
        if engine.entry.required:
            raise BackendUnavailable(
                f"the required engine '{engine.id}' has not been reached yet: {why}", retryable=True, detail=why
            )
        if self._asked_engines is None:
            self._skip(engine, "unreached", why)
        else:
            self._lost.append(never_reached(engine.id, why))

    def _varied(self) -> bool:
        """Whether the gateway diversifies: it was asked to, or no planned engine supports `mmr`."""
        params = self._call.params
        if params.gateway.mmr is not None:
            return True
        return "mmr" in params.raw and all("mmr" in engine_call.without for engine_call in self._engine_calls)
