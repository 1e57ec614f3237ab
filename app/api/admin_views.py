"""The views of the operator endpoints: engines with recent statistics, overlap, calibration, settings and tenants.

They are built from data in this process, without calls to engines. They never contain a credential or the text of a
hit.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from app.api.auth.authentication import Authenticator
from app.api.gateway_state import GatewayState
from app.api.reload import Reload
from app.engines.engine import RemoteEngine
from app.engines.fault_injection import FaultInjection
from app.evaluation.measures import SIGNIFICANT, TEST, p_value
from app.federation.tenants import tenant_of
from app.resilience.yield_limiter import in_slices
from app.settings.effective_settings import effective
from app.telemetry.overlap import Agreement
from app.telemetry.rolling import SLOT_SECONDS, SLOTS, RollingStatistics, RollingSummary

Json = dict[str, Any]

MIN_PAIRS = 200
"""With fewer praised answers, nothing is concluded about a shadow engine."""

MAX_CALIBRATIONS = 20
"""Most learned calibration maps listed per engine; `/admin/calibration` has all of them."""


async def engines_view(state: GatewayState, drills: Mapping[str, FaultInjection]) -> Json:
    """All engines, the merged advertisement, and the length of the statistics window."""
    engines = state.engines
    windows = state.instrumentation.windows
    # Keeps these engines, and drops the statistics of those that have left the registry.
    windows.forget([engine.id for engine in engines.engines])
    learned: dict[str, list[Json]] = {}
    for scope in state.pages.learning.view():
        for one in scope["engines"]:
            maps = [{"scope": scope["scope"], "kind": kind, **one[kind]} for kind in ("confident", "silent")]
            learned.setdefault(one["id"], []).extend([one for one in maps if one["n"] > 0])
    views: list[Json] = []
    # Hundreds of engines take tens of milliseconds, so other requests must run in between.
    async for engine in in_slices(engines.engines):
        view = engine_view(engine, windows, engine.id in engines.switched_off, drills.get(engine.id))
        views.append({**view, "calibration": learned.get(engine.id, [])[:MAX_CALIBRATIONS]})
    return {
        "engines": views,
        # Disabled in the registry; engines that an operator switched off are listed with their state.
        "disabled": [name for name in engines.disabled if name not in engines.switched_off],
        "merged": state.membership.current().capabilities,
        "windowSeconds": SLOT_SECONDS * SLOTS,
    }


def engine_view(
    engine: RemoteEngine, windows: RollingStatistics, off: bool, fault_injection: FaultInjection | None
) -> Json:
    """One engine as this process knows it."""
    entry, advertisement = engine.entry, engine.advertisement
    return {
        "id": engine.id,
        "kind": entry.kind,
        "state": "off" if off else "up" if engine.up else "unreached" if advertisement is None else "down",
        "reason": engine.down_reason,
        "server": advertisement.server["name"] if advertisement else None,
        "version": advertisement.server["version"] if advertisement else None,
        "advertisement": advertisement.capabilities if advertisement else None,
        "weight": entry.weight,
        "priority": entry.priority,
        "required": entry.required,
        "timeoutMs": entry.timeout_ms,
        "latencyMs": None if engine.last_latency_ms is None else round(engine.last_latency_ms, 2),
        **policies_view(engine),
        "window": window_view(engine.id, windows),
        "lastFault": _last_fault(engine.id, windows),
        "stderr": engine.stderr_tail,
        "drill": _fault_injection(fault_injection)
        if fault_injection is not None and fault_injection.on and fault_injection.engine is engine
        else None,
    }


def policies_view(engine: RemoteEngine) -> Json:
    """The state of limits, breaker and replicas, which can keep calls from the engine."""
    standing, retry_in = engine.state(), engine.retry_in()
    return {
        "inFlight": standing.in_flight,
        "waiting": standing.waiting,
        "limit": standing.limit,
        "breaker": standing.breaker,
        "retryInMs": None if retry_in is None else round(retry_in * 1000),
        "replicas": [{"id": one.label, "up": one.up, "inFlight": one.in_flight} for one in standing.replicas],
    }


def window_view(engine_id: str, windows: RollingStatistics) -> Json:
    """Recent statistics of one engine: of the whole window, and of each slot."""
    window, now = windows.of(engine_id), windows.clock()
    return {**_stretch(window.whole(now)), "slots": [_stretch(slot) for slot in window.slots(now)]}


def overlap_view(agreement: Agreement) -> Json:
    """How much of recent answers each engine returned, alone and together with others."""
    return {
        "answers": agreement.answers,
        "hits": agreement.hits,
        "engines": [
            {
                "id": engine,
                "answered": place.answered,
                "given": place.given,
                "alone": place.alone,
                "share": round(place.share, 4),
            }
            for engine, place in agreement.places.items()
        ],
        "pairs": [[first, second, shared] for (first, second), shared in sorted(agreement.shared.items())],
    }


def calibration_view(state: GatewayState) -> Json:
    """Learned calibration: claimed confidence, its measured value, and the number of observations, by engine."""
    fusion = state.settings.fusion
    scopes = state.pages.learning.view()
    return {"learning": fusion.learning, "learningScope": fusion.learning_scope, "scopes": scopes}


def sources_view(state: GatewayState, reload: Reload | None) -> Json:
    """Each engine source with its files, faults and engines; `origins`: engine -> its source and file."""
    return {
        "sources": [
            {
                "name": one.name,
                "origin": one.origin,
                "up": one.up,
                "engines": list(one.engines),
                "lastSuccess": one.last_success,
                "faults": list(one.faults),
                "tenants": None if one.tenants is None else list(one.tenants),
                "documents": [
                    {"name": name, "engines": engines, "faults": list(faults)}
                    for name, engines, faults in one.documents
                ],
            }
            for one in (() if reload is None else reload.sources.states)
        ],
        "origins": {
            engine: {"source": origin.source, "file": origin.file} for engine, origin in state.engines.origins.items()
        },
        "warming": sorted(state.engines.warming),
        "scope": "process",
    }


def settings_view(state: GatewayState, environ: Mapping[str, str], reload: Reload | None) -> Json:
    """All settings with their sources, the tenants, and whether the last reload failed."""
    return {
        "settings": [one._asdict() for one in effective(state.settings, environ)],
        "readiness": state.readiness.reason(),
        "reload": None if reload is None else {"failure": reload.failure},
        "auth": state.settings.auth.mode,
        "tenants": [] if state.authenticator is None else _tenants(state, state.authenticator),
    }


def _tenants(state: GatewayState, authenticator: Authenticator) -> Sequence[Json]:
    """The tenants with roles, engines and limits. Of keys, only ids and expiry."""
    ids = sorted(engine.id for engine in state.engines.engines)
    tenants = []
    for name, entry in authenticator.declared.by_id.items():
        tenant = tenant_of(name, entry, state.settings.fusion)
        tenants.append(
            {
                "id": name,
                "roles": list(entry.roles),
                "patterns": list(tenant.engines),
                "sees": [engine for engine in ids if state.membership.sees(tenant, engine)],
                "weights": dict(entry.weights),
                "limits": list(entry.limits.model_dump(exclude_none=True).items()),
                "keys": [{"id": key.id, "expires": key.expires} for key in entry.keys],
            }
        )
    return tenants


def _stretch(stretch: RollingSummary) -> Json:
    return {
        "calls": stretch.calls,
        "failed": stretch.failed,
        "skipped": dict(stretch.skipped),
        "p50Ms": stretch.p50_ms,
        "p95Ms": stretch.p95_ms,
    }


def _last_fault(engine_id: str, windows: RollingStatistics) -> Json | None:
    fault = windows.of(engine_id).fault
    if fault is None:
        return None
    return {"kind": fault.kind, "detail": fault.detail, "agoMs": round((windows.clock() - fault.at) * 1000)}


def _fault_injection(fault_injection: FaultInjection) -> Json:
    # Never negative: the timer that ends a drill may be late.
    left = max(0.0, fault_injection.ends - asyncio.get_running_loop().time())
    return {"kind": fault_injection.kind, "delayMs": round(fault_injection.delay * 1000), "leftMs": round(left * 1000)}


async def shadows_view(state: GatewayState) -> Json:
    """Every shadow engine, and whether answers would be better with it, as far as feedback shows."""
    shadows = state.shadows
    if shadows is None:
        return {"shadows": []}
    views: list[Json] = []
    for engine in shadows.engines:
        shadow = engine.entry.shadow
        view = shadows.comparisons.state(engine.id)
        for metric in ("reciprocalRank", "nDCG@10"):
            differences = view["feedback"][metric].pop("differences")
            # Resampling takes tens of milliseconds, so it runs in a thread.
            view["feedback"][metric] |= await asyncio.to_thread(verdict_on, differences)
        compared = {} if shadow is None else {"share": shadow.share, "compared": shadow.of}
        views.append({"id": engine.id, **compared, **view})
    return {"shadows": views, "test": TEST}


def verdict_on(differences: Sequence[float]) -> Json:
    """Whether paired differences (would-be minus live) show a better or a worse engine."""
    if len(differences) < MIN_PAIRS:
        return {"verdict": "too few", "p": None}
    try:
        p = p_value(differences)
    except ModuleNotFoundError:
        return {"verdict": "unknown", "p": None, "remedy": "install the extra 'eval' for the paired test"}
    if p >= SIGNIFICANT:
        return {"verdict": "no difference", "p": p}
    return {"verdict": "better" if sum(differences) > 0 else "worse", "p": p}
