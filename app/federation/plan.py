"""Which engines are asked, with which params, weight and deadline; every engine left out has a reason. Pure.

`plan_retrieve` turns a call and the members into a Plan, which is printable: explaining a request is showing its plan.
It refuses to know what engines answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from app.federation.call import RetrieveCall
from app.federation.engine import Engine
from app.federation.membership import Members
from app.federation.options import Demand, demands_of
from app.federation.outcome import Outcome, skipped
from app.fusion.ranked import FusionOptions
from app.protocol.capabilities import Advertisement, RetrieveOffer
from app.protocol.errors import BackendUnavailable, CapabilityMissing, InvalidParams, OptionUnsupported, RcpError
from app.protocol.filters import FilterFault, FilterTree, fault_of
from app.protocol.params import FUSION_METHODS, GatewayOptions, RetrieveParams
from app.resilience.deadline import leg_seconds
from app.settings.schema import FusionSettings, RetrieveSettings

OWN_PARAMS = ("minScore", "tokenBudget", "cursor", "fusion", "sessionId", "k", "candidateK", "rerank")
"""Params that the gateway honours itself or adjusts; the others are forwarded as they are."""

INNER_LISTS = frozenset({"dense", "sparse"})
"""Keys of `fusion.weights` that belong to the engines, not to the federation."""


class Leg(NamedTuple):
    """One engine's share of a plan; a named tuple, since one is made per engine and request.

    `deadline` is in event-loop seconds, `seconds` the same as a duration.
    """

    engine: Engine
    params: Mapping[str, Any]
    weight: float
    seconds: float
    deadline: float
    asked: int
    """The `k` it is asked for."""
    score_floor: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is decided before anybody is asked."""

    legs: tuple[Leg, ...]
    skipped: tuple[Outcome, ...]
    k: int
    fusion: FusionOptions
    notes: tuple[str, ...] = ()
    cut_by_caller: bool = False
    """Whether the caller's deadline, not the engines' own timeouts, bounds the legs."""


def plan_retrieve(
    call: RetrieveCall, members: Members, now: float, wishes: RetrieveSettings, blend: FusionSettings
) -> Plan:
    """The plan for one `retrieve`. `now` is in event-loop seconds.

    Raises the RcpError that one engine would answer when no engine can honour the request: InvalidParams (-32602) for a
    filter field nobody has, OptionUnsupported (-32005) for an option, CapabilityMissing (-32003) when no engine
    retrieves, BackendUnavailable (-32010) while none has been reached.
    """
    params = call.params
    k = min(params.k, members.max_k)
    stop = _loop_reason(call, members)
    if stop is not None:
        reason, detail = stop
        return Plan(
            legs=(),
            skipped=tuple(skipped(engine_id, reason, detail) for engine_id in sorted(members.ids())),
            k=k,
            fusion=_fusion_options(call, blend),
            notes=(f"no engine was asked: {detail}",),
        )
    return _Planner(call, members, now, wishes, k).plan(_fusion_options(call, blend))


def _loop_reason(call: RetrieveCall, members: Members) -> tuple[str, str] | None:
    """Why nothing may be forwarded at all (RCP §16, decision 3), if so."""
    if members.identity in call.meta.path:
        return "loop", f"this gateway ({members.identity}) is already in the federation path"
    if call.meta.depth is not None and call.meta.depth <= 0:
        return "depth", "the federation depth is used up"
    return None


def _fusion_options(call: RetrieveCall, blend: FusionSettings) -> FusionOptions:
    """The blend of this request: its own `fusion` and `x-gateway` over the settings."""
    fusion: Mapping[str, Any] = call.params.raw.get("fusion") or {}
    gateway = call.params.gateway
    method = fusion.get("method")
    weight = gateway.confidence_weight
    return FusionOptions(
        method=method if method in FUSION_METHODS else blend.method,
        rrf_k=fusion.get("rrfK", blend.rrf_k),
        confidence_weight=blend.confidence_weight if weight is None else weight,
        identity=gateway.identity or "id",
    )


class _Planner:
    """Walks the members once; what is the same for every engine is worked out before."""

    __slots__ = (
        "_asked_engines",
        "_by_timeout",
        "_call",
        "_cut_by_caller",
        "_demands",
        "_forwarded",
        "_fusion",
        "_k",
        "_legs",
        "_members",
        "_meta",
        "_notes",
        "_now",
        "_refusals",
        "_skipped",
        "_weights",
        "_window",
        "_wishes",
    )

    def __init__(self, call: RetrieveCall, members: Members, now: float, wishes: RetrieveSettings, k: int) -> None:
        params = call.params
        self._call = call
        self._members = members
        self._now = now
        self._wishes = wishes
        self._k = k
        self._window = max(int(k * wishes.overfetch), wishes.window_min)
        self._demands = demands_of(params.raw, params.query_modalities)
        self._forwarded = {key: value for key, value in params.raw.items() if key not in OWN_PARAMS}
        if _needs_text(params):
            self._forwarded.pop("includeText", None)
        self._fusion: Mapping[str, Any] = params.raw.get("fusion") or {}
        self._weights: Mapping[str, float] = self._fusion.get("weights") or {}
        self._asked_engines = _asked_engines(params.gateway, members)
        self._by_timeout: dict[int, tuple[float, float, dict[str, Any]]] = {}
        self._meta = _forwarded_meta(call, members)
        self._cut_by_caller = False
        self._legs: list[Leg] = []
        self._skipped: list[Outcome] = [skipped(name, "disabled", "switched off") for name in members.disabled]
        self._notes: list[str] = _method_note(self._fusion)
        self._refusals: list[tuple[Demand | FilterFault, Advertisement]] = []
        self._check_weights()

    def plan(self, fusion: FusionOptions) -> Plan:
        for engine in self._members.engines:
            self._consider(engine)
        if not self._legs and not self._only_cycles():
            raise self._nobody_can()
        return Plan(tuple(self._legs), tuple(self._skipped), self._k, fusion, tuple(self._notes), self._cut_by_caller)

    def _consider(self, engine: Engine) -> None:
        advertisement = engine.advertisement
        if self._asked_engines is not None and engine.id not in self._asked_engines:
            self._skip(engine, "not_selected", "the request names other engines")
        elif advertisement is None:
            self._skip_unreached(engine)
        elif advertisement.retrieve is None:
            self._skip(engine, "capability", "does not advertise retrieve")
        elif advertisement.gateway_id is not None and advertisement.gateway_id in self._call.meta.path:
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
        params = dict(self._forwarded)
        params["_meta"] = meta
        raw = self._call.params.raw
        if "candidateK" in raw or "rerank" in raw:
            wanted = {key: value for key, value in raw.items() if key not in left_out} if left_out else raw
            asked = _funnel(params, wanted, asked, advertisement)
        params["k"] = asked
        if self._fusion:
            _inner_fusion(params, self._fusion, offer)
        for key in left_out:
            params.pop(key, None)
        weight = self._weights.get(engine.id, engine.entry.weight) if self._weights else engine.entry.weight
        self._legs.append(Leg(engine, params, weight, seconds, deadline, asked, offer.score_floor))

    def _budget(self, timeout_ms: int) -> tuple[float, float, dict[str, Any]]:
        """(seconds, deadline, `_meta`) for engines with this timeout; shared by all that have the same."""
        budget = self._by_timeout.get(timeout_ms)
        if budget is None:
            own = timeout_ms / 1000
            seconds = leg_seconds(self._call.deadline - self._now, own, self._wishes.reserve_ms / 1000)
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
        self._skip(engine, "unreached", why)

    def _check_weights(self) -> None:
        known = self._members.ids() | INNER_LISTS if self._weights else frozenset()
        for name in self._weights:
            if name not in known:
                raise InvalidParams(
                    f"'fusion.weights' names '{name}', which is neither an engine nor dense or sparse",
                    field=f"fusion.weights.{name}",
                )

    def _only_cycles(self) -> bool:
        """Whether nobody is asked because whoever could be would close a cycle: an empty success (decision 3)."""
        reasons = {outcome.kind for outcome in self._skipped}
        return "loop" in reasons and not reasons & {"option", "filter", "unreached"}

    def _nobody_can(self) -> RcpError:
        """The error for a request that no engine may be asked (RCP §12): field, then option, then capability."""
        faults = [refusal for refusal, _ in self._refusals if isinstance(refusal, FilterFault)]
        demands = [refusal for refusal, _ in self._refusals if isinstance(refusal, Demand)]
        reasons = "; ".join(f"{outcome.engine}: {outcome.detail}" for outcome in self._skipped)
        tree = self._call.params.filter
        if faults and not demands and tree is not None:
            return _filter_error(tree, faults, [advertisement for _, advertisement in self._refusals], reasons)
        if demands:
            demand = demands[0]
            return OptionUnsupported(
                f"no engine that may be asked supports '{demand.option}' as requested",
                option=demand.option,
                detail=reasons,
            )
        unreached = [outcome for outcome in self._skipped if outcome.kind == "unreached"]
        if unreached:
            return BackendUnavailable("no engine has been reached yet", retryable=True, detail=reasons)
        return CapabilityMissing("no engine offers 'retrieve'", detail=reasons)


def _filter_error(tree: FilterTree, faults: list[FilterFault], refusing: list[Advertisement], detail: str) -> RcpError:
    """What a filter that nobody can apply comes to: -32602 for a field that nobody has or a value of the wrong shape,
    else -32005 (RCP §8)."""
    known = {name for advertisement in refusing for name in advertisement.filter_fields}
    for leaf in tree.leaves:
        if leaf.field not in known:
            return InvalidParams(f"filter field '{leaf.field}' is not advertised", field=leaf.field, detail=detail)
    for fault in faults:
        if fault.kind == "shape":
            return InvalidParams(fault.message, field=fault.field, detail=detail)
    operator = next((fault for fault in faults if fault.kind == "operator"), None)
    if operator is not None:
        return OptionUnsupported(operator.message, option="filter.operators", detail=detail)
    return OptionUnsupported("no single engine has all fields of the filter", option="filter", detail=detail)


def _asked_engines(gateway: GatewayOptions, members: Members) -> frozenset[str] | None:
    """The engines that the request restricts itself to. Raises InvalidParams for a name that is not configured."""
    names = gateway.engines
    if names is None:
        return None
    known = members.ids()
    for name in names:
        if name not in known:
            raise InvalidParams(
                f"'x-gateway.engines' names '{name}', which is not configured", field="x-gateway.engines"
            )
    return frozenset(names)


def _method_note(fusion: Mapping[str, Any]) -> list[str]:
    """What to say about a `fusion.method` that RCP does not know; only a lenient request gets this far with one."""
    method = fusion.get("method")
    if method is None or method in FUSION_METHODS:
        return []
    return [f"fusion.method is none of {', '.join(FUSION_METHODS)}; the default was used"]


def _needs_text(params: RetrieveParams) -> bool:
    """Whether the gateway needs the hits' text for itself, even if the caller does not want it."""
    return params.options.token_budget is not None or params.gateway.identity == "content"


def _forwarded_meta(call: RetrieveCall, members: Members) -> dict[str, Any]:
    """The `_meta` every engine gets, but for its deadline: one level less deep, our identity appended (RCP §16)."""
    most = call.default_depth
    depth = most if call.meta.depth is None else min(call.meta.depth, most)
    return {**call.passed_on, "federation": {"depth": max(0, depth - 1), "path": [*call.meta.path, members.identity]}}


def _funnel(params: dict[str, Any], raw: Mapping[str, Any], asked: int, advertisement: Advertisement) -> int:
    """Write `rerank` and `candidateK` so that candidateK ≥ topN ≥ k holds at this engine; returns that `k`."""
    rerank = raw.get("rerank")
    floor = asked
    if rerank is not None:
        if type(rerank) is dict and "topN" in rerank:
            reranker = advertisement.capabilities.get("rerank")
            most = reranker.get("maxCandidates") if type(reranker) is dict else None
            top_n = max(rerank["topN"], asked)
            if type(most) is int and most >= 1:
                top_n = min(top_n, most)
                asked = min(asked, top_n)
            floor = top_n
            rerank = {**rerank, "topN": top_n}
        params["rerank"] = rerank
    if "candidateK" in raw:
        params["candidateK"] = max(raw["candidateK"], floor)
    return asked


def _inner_fusion(params: dict[str, Any], fusion: Mapping[str, Any], offer: RetrieveOffer) -> None:
    """Forward what `fusion` says about dense and sparse inside an engine, if it advertises that method."""
    method = fusion.get("method")
    inner = {key: fusion[key] for key in ("method", "rrfK", "alpha") if key in fusion}
    weights = {name: value for name, value in (fusion.get("weights") or {}).items() if name in INNER_LISTS}
    if weights:
        inner["weights"] = weights
    if (method in offer.fusion) if method is not None else bool(offer.fusion and (weights or "alpha" in fusion)):
        params["fusion"] = inner
