"""/livez, /readyz and /metrics: for the orchestrator and Prometheus. No I/O, no engine is asked.

It decides the HTTP status and format of each: liveness says that the loop turns, readiness what `Readiness` says; both
are open to all, the numbers to whom `metrics.access` says, unless they have a port of their own (scrape.py). It refuses
to know when a gateway is ready, and what the numbers mean.
"""

from collections.abc import Callable

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder

from app.api.admin import refusal
from app.api.auth.principal import AuthError
from app.api.gateway_state import GatewayState, Readiness
from app.api.operator_access import LOOKING
from app.protocol import envelope
from app.telemetry.metrics import Metrics

PROBES = frozenset({"/livez", "/readyz", "/metrics"})
"""What must get through however much there is to do."""

Verdict = tuple[int, bytes]
"""HTTP's status, and a JSON body."""


def probes(state: GatewayState) -> APIRouter:
    """The routes of one gateway's probes."""
    router = APIRouter()

    @router.api_route("/livez", methods=LOOKING)
    async def livez() -> Response:
        return _response(liveness())

    @router.api_route("/readyz", methods=LOOKING)
    async def readyz() -> Response:
        return _response(readiness(state.readiness))

    if state.settings.metrics.port:
        return router  # then it is at that port alone

    @router.api_route("/metrics", methods=LOOKING)
    async def metrics(request: Request) -> Response:
        if state.guard is not None and state.settings.metrics.access != "open":
            try:
                await state.guard.admin(request.scope)
            except AuthError as away:
                return refusal(away)
        return exposition(state.metrics, request.headers.get("accept", ""))

    return router


def exposition(metrics: Metrics, accept: str) -> Response:
    """The numbers as they are now, in the format that `accept` wishes for."""
    try:
        encode, content_type = choose_encoder(accept)
    except (ValueError, TypeError):  # a version that is none
        encode, content_type = choose_encoder("")
    return Response(encode(metrics.scraped()), headers={"content-type": content_type})


def liveness() -> Verdict:
    """The loop turns, or nobody would be answered."""
    return 200, envelope.dumps({"status": "alive"})


def readiness(found: Readiness) -> Verdict:
    """Whether traffic should come here."""
    reason = found.reason()
    if reason is not None:
        return 503, envelope.dumps({"status": "not ready", "reason": reason})
    return 200, envelope.dumps({"status": "ready", "degraded": found.degraded})


def quick_probes(state: GatewayState) -> Callable[[bytes], Verdict | None]:
    """Tells by a request's target what is answered to it without waiting for a turn of the loop; None: nothing is."""
    probes: dict[bytes, Callable[[], Verdict]] = {b"/livez": liveness, b"/readyz": lambda: readiness(state.readiness)}

    def verdict(target: bytes) -> Verdict | None:
        probe = probes.get(target)
        return None if probe is None else probe()

    return verdict


def _response(verdict: Verdict) -> Response:
    status, body = verdict
    return Response(body, status, media_type="application/json")
