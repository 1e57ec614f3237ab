"""`/metrics`, for Prometheus: a route of the gateway, or the only path of a port of its own (`metrics.port`).

Separate from the probes, which are open to everyone and do no work.
"""

from fastapi import APIRouter, Request, Response

from app.api.admin import refusal
from app.api.auth.principal import AuthError
from app.api.gateway_state import GatewayState
from app.api.operator_access import READ_METHODS
from app.api.responses import Asgi, Receive, Scope, not_found
from app.api.streaming import Send
from app.telemetry.metrics import Metrics

PATH = "/metrics"


def metrics_route(state: GatewayState) -> APIRouter:
    """The route `/metrics`, open to callers as `metrics.access` says."""
    router = APIRouter()

    @router.api_route(PATH, methods=READ_METHODS)
    async def metrics(request: Request) -> Response:
        """All metrics in the Prometheus or OpenMetrics text format."""
        if state.authenticator is not None and state.settings.metrics.access != "open":
            try:
                await state.authenticator.admin(request.scope)
            except AuthError as away:
                return refusal(away)
        return await exposition(state.metrics, request.headers.get("accept", ""))

    return router


async def exposition(metrics: Metrics, accept: str) -> Response:
    """The current values in the format that the Accept header asks for."""
    text, content_type = await metrics.exposition.text(accept)
    return Response(text, headers={"content-type": content_type})


class MetricsPort:
    """Middleware for `metrics.port`: requests that arrive on that port get `/metrics`, without credentials, or 404."""

    def __init__(self, app: Asgi, metrics: Metrics, port: int) -> None:
        self._app = app
        self._metrics = metrics
        self._port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope.get("server") or (None, None))[1] != self._port:
            await self._app(scope, receive, send)
        elif scope["path"] == PATH and scope["method"] in READ_METHODS:
            accept = dict(scope["headers"]).get(b"accept", b"").decode("latin-1")
            response = await exposition(self._metrics, accept)
            await response(scope, receive, send)
        else:
            await not_found(scope, receive, send)

    def __repr__(self) -> str:
        return f"<MetricsPort {self._port}>"
