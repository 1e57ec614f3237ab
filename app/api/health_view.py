"""The state of the federation for the console: how many engines are up, slow and down, and what is wrong with them."""

import time
from typing import Any, Final

from app.api.gateway_state import GatewayState
from app.engines.engine import RemoteEngine
from app.resilience.yield_limiter import in_slices
from app.settings.effective_settings import masked_url
from app.telemetry.rolling import RollingStatistics, RollingSummary

Json = dict[str, Any]

MIN_CALLS: Final = 5
"""With fewer calls in five minutes, nothing is said about speed."""

MIN_HOUR_CALLS: Final = 50
"""With fewer calls in the hour before, there is nothing to compare with."""

NEAR_TIMEOUT: Final = 0.8
"""An engine is slow if its p95 is at least this share of its timeout."""

FAR_ABOVE: Final = 3.0
"""An engine is slow if its p95 is this many times that of the hour before."""

MIN_SLOW_MS: Final = 100.0
"""Below this p95, an engine is not called slow for being slower than before."""

MAX_TROUBLE: Final = 100
"""Engines listed; the counts are complete."""


async def health_view(state: GatewayState) -> Json:
    """Counts of engines by state, the engines in trouble (worst first), recent partial answers, and links."""
    statistics = state.instrumentation.windows
    counts = dict.fromkeys(("down", "slow", "unreached", "off", "up"), 0)
    trouble: list[Json] = []
    # Every open page asks every few seconds, and hundreds of engines take tens of milliseconds.
    async for engine in in_slices(state.engines.engines):
        if engine.entry.shadow is not None:
            continue  # no answer depends on it
        view = engine_health(engine, statistics, off=engine.id in state.engines.switched_off)
        counts[view["state"]] += 1
        if view["state"] != "up":
            trouble.append(view)
    order = list(counts)
    trouble.sort(key=lambda one: (order.index(one["state"]), -(one["errorRate"] or 0), one["id"]))
    now, admin = time.time(), state.settings.admin
    return {
        "counts": counts,
        "trouble": trouble[:MAX_TROUBLE],
        "partial": [
            {"requestId": one.request_id, "method": one.method, "missing": one.missing, "agoMs": _ago(now, one.at)}
            for one in reversed(state.partial_answers)
        ],
        "readiness": state.readiness.reason(),
        "switch": state.switches.scope,
        "links": {"dashboard": admin.dashboard_url, "runbook": admin.runbook_url, "logs": admin.logs_url},
    }


def engine_health(engine: RemoteEngine, statistics: RollingStatistics, *, off: bool) -> Json:
    """One engine: `state` is off, unreached, down, slow or up."""
    window, now = statistics.of(engine.id), statistics.clock()
    recent, hour = window.whole(now), window.hour_before(now)
    slow = slow_reason(recent, hour, engine.entry.timeout_ms)
    retry_in, fault = engine.retry_in(), window.fault
    if off:
        state = "off"
    elif engine.advertisement is None:
        state = "unreached"
    elif not engine.up or retry_in is not None:
        state = "down"
    else:
        state = "slow" if slow else "up"
    return {
        "id": engine.id,
        "state": state,
        "sinceMs": _ago(time.time(), engine.state_since) if state in ("down", "unreached") else None,
        "reason": engine.down_reason if state != "slow" else slow,
        "address": " ".join(engine.entry.command[:1]) if engine.entry.command else masked_url(engine.entry.url or ""),
        "lastFault": None
        if fault is None
        else {"kind": fault.kind, "detail": fault.detail, "agoMs": round((now - fault.at) * 1000)},
        "nextTryMs": None if retry_in is None else round(retry_in * 1000),
        "calls": recent.calls,
        "errorRate": recent.failed / recent.calls if recent.calls else None,
        "p95Ms": recent.p95_ms,
        "hourP95Ms": hour.p95_ms,
        "timeoutMs": engine.entry.timeout_ms,
    }


def slow_reason(recent: RollingSummary, hour: RollingSummary, timeout_ms: int) -> str | None:
    """Why an engine counts as slow; None if it does not."""
    p95 = recent.p95_ms
    if p95 is None or recent.calls < MIN_CALLS:
        return None
    if p95 >= NEAR_TIMEOUT * timeout_ms:
        return f"p95 {p95:.0f} ms is near the timeout of {timeout_ms} ms"
    before = hour.p95_ms
    if before is not None and hour.calls >= MIN_HOUR_CALLS and p95 >= max(FAR_ABOVE * before, MIN_SLOW_MS):
        return f"p95 {p95:.0f} ms is {p95 / before:.0f} times that of the hour before ({before:.0f} ms)"
    return None


def _ago(now: float, at: float) -> int:
    return max(0, round((now - at) * 1000))
