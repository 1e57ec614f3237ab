"""`/livez` and `/readyz`, for orchestrators and load balancers.

Neither performs I/O. Under load the HTTP server answers them without the application, see `quick_probes`.
"""

from collections.abc import Callable

from fastapi import APIRouter, Response

from app.api.gateway_state import GatewayState, Readiness
from app.api.operator_access import READ_METHODS
from app.protocol import envelope

PROBES = frozenset({"/livez", "/readyz", "/metrics"})
"""Paths that are answered even at the limit of connections."""

ProbeResult = tuple[int, bytes]
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


def liveness() -> ProbeResult:
    """Always 200: a blocked event loop could not answer."""
    return 200, envelope.dumps({"status": "alive"})


def readiness(found: Readiness) -> ProbeResult:
    """200 if this gateway should get traffic, else 503."""
    reason = found.reason()
    if reason is not None:
        return 503, envelope.dumps({"status": "not ready", "reason": reason})
    return 200, envelope.dumps({"status": "ready", "degraded": found.degraded})


def quick_probes(state: GatewayState) -> Callable[[bytes], ProbeResult | None]:
    """A function that answers probes without a turn of the event loop: request target -> result, or None."""
    # Without query strings: such a target is left to the application.
    probes: dict[bytes, Callable[[], ProbeResult]] = {
        b"/livez": liveness,
        b"/readyz": lambda: readiness(state.readiness),
    }

    def result(target: bytes) -> ProbeResult | None:
        probe = probes.get(target)
        return None if probe is None else probe()

    return result


def _response(result: ProbeResult) -> Response:
    status, body = result
    return Response(body, status, media_type="application/json")
