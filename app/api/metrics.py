"""The port that serves `/metrics` and nothing else (`metrics.port`).

Separate from the probes: it wraps the whole application, since it decides by the port of the connection.
"""

from app.api.probes import exposition
from app.api.responses import Asgi, Receive, Scope, not_found
from app.api.streaming import Send
from app.telemetry.metrics import Metrics


class MetricsPort:
    """Answers what comes in at `port`, without authentication; `app` gets every other request."""

    def __init__(self, app: Asgi, metrics: Metrics, port: int) -> None:
        self._app = app
        self._metrics = metrics
        self._port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope.get("server") or (None, None))[1] != self._port:
            await self._app(scope, receive, send)
        elif scope["path"] == "/metrics" and scope["method"] in ("GET", "HEAD"):
            accept = dict(scope["headers"]).get(b"accept", b"").decode("latin-1")
            response = await exposition(self._metrics, accept)
            await response(scope, receive, send)
        else:
            await not_found(scope, receive, send)

    def __repr__(self) -> str:
        return f"<MetricsPort {self._port}>"
