"""/livez, /readyz and /metrics: for the orchestrator and Prometheus. No I/O, no engine is asked.

It decides the HTTP status and format of each: liveness says that the loop turns, readiness what `Readiness` says; both
are open to all, the numbers to whom `metrics.access` says. It refuses to know when a gateway is ready, and what the
numbers mean.
"""

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder

from app.api.admin import refusal
from app.api.state import GatewayState
from app.api.visit import TurnedAway
from app.protocol import envelope


def probes(state: GatewayState) -> APIRouter:
    """The routes of one gateway's probes."""
    router = APIRouter()

    @router.get("/livez")
    async def livez() -> Response:
        return _json(200, {"status": "alive"})

    @router.get("/readyz")
    async def readyz() -> Response:
        reason = state.readiness.reason()
        if reason is not None:
            return _json(503, {"status": "not ready", "reason": reason})
        return _json(200, {"status": "ready", "degraded": state.readiness.degraded})

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        if state.guard is not None and state.settings.metrics.access != "open":
            try:
                await state.guard.admin(request.scope)
            except TurnedAway as away:
                return refusal(away)
        try:
            encode, content_type = choose_encoder(request.headers.get("accept", ""))
        except (ValueError, TypeError):  # a version that is none
            encode, content_type = choose_encoder("")
        return Response(encode(state.metrics.scraped()), headers={"content-type": content_type})

    return router


def _json(status: int, body: dict[str, object]) -> Response:
    return Response(envelope.dumps(body), status, media_type="application/json")
