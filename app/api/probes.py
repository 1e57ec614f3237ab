"""`/livez` and `/readyz`, for orchestrators and load balancers: is the process alive, should it be sent traffic.

Neither does I/O or asks an engine. The server answers them by itself under load, see `quick_probes`.
"""

from collections.abc import Callable

from fastapi import APIRouter, Response

from app.api.gateway_state import GatewayState, Readiness
from app.api.operator_access import READ_METHODS
from app.protocol import envelope

PROBES = frozenset({"/livez", "/readyz", "/metrics"})
"""Paths that are answered however busy the gateway is."""

Verdict = tuple[int, bytes]
"""HTTP status and JSON body."""


def probes(state: GatewayState) -> APIRouter:
    """The routes `/livez` and `/readyz` of one gateway."""
    router = APIRouter()

    @router.api_route("/livez", methods=READ_METHODS)
    async def livez() -> Response:
        return _response(liveness())

    @router.api_route("/readyz", methods=READ_METHODS)
    async def readyz() -> Response:
        return _response(readiness(state.readiness))

    return router


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
