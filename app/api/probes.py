"""/livez, /readyz and /metrics, for orchestrators and Prometheus. No engine is asked.

Liveness says that the event loop runs; readiness is decided by `Readiness`. Both are open to everybody; access to the
metrics follows `metrics.access`, unless they have a port of their own (`metrics.port`).
"""

from collections.abc import Callable

from fastapi import APIRouter, Request, Response

from app.api.admin import refusal
from app.api.auth.principal import AuthError
from app.api.gateway_state import GatewayState, Readiness
from app.api.operator_access import LOOKING
from app.protocol import envelope
from app.telemetry.metrics import Metrics

PROBES = frozenset({"/livez", "/readyz", "/metrics"})
"""Paths that are answered however busy the gateway is."""

Verdict = tuple[int, bytes]
"""HTTP status and JSON body."""


def probes(state: GatewayState) -> APIRouter:
    """The routes of the probes."""
    router = APIRouter()

    @router.api_route("/livez", methods=LOOKING)
    async def livez() -> Response:
        return _response(liveness())

    @router.api_route("/readyz", methods=LOOKING)
    async def readyz() -> Response:
        return _response(readiness(state.readiness))

    if state.settings.metrics.port:
        return router  # served by MetricsPort

    @router.api_route("/metrics", methods=LOOKING)
    async def metrics(request: Request) -> Response:
        if state.guard is not None and state.settings.metrics.access != "open":
            try:
                await state.guard.admin(request.scope)
            except AuthError as away:
                return refusal(away)
        return await exposition(state.metrics, request.headers.get("accept", ""))

    return router


async def exposition(metrics: Metrics, accept: str) -> Response:
    """The metrics as they are now, in the format that the header `accept` asks for."""
    text, content_type = await metrics.exposition.text(accept)
    return Response(text, headers={"content-type": content_type})


def liveness() -> Verdict:
    """Always 200: a blocked event loop could not answer."""
    return 200, envelope.dumps({"status": "alive"})


def readiness(found: Readiness) -> Verdict:
    """200 if traffic should be sent here, else 503."""
    reason = found.reason()
    if reason is not None:
        return 503, envelope.dumps({"status": "not ready", "reason": reason})
    return 200, envelope.dumps({"status": "ready", "degraded": found.degraded})


def quick_probes(state: GatewayState) -> Callable[[bytes], Verdict | None]:
    """A function that answers a request target at once, without a turn of the event loop; None for other targets."""
    probes: dict[bytes, Callable[[], Verdict]] = {b"/livez": liveness, b"/readyz": lambda: readiness(state.readiness)}

    def verdict(target: bytes) -> Verdict | None:
        probe = probes.get(target)
        return None if probe is None else probe()

    return verdict


def _response(verdict: Verdict) -> Response:
    status, body = verdict
    return Response(body, status, media_type="application/json")
