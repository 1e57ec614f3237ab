"""The numbers on a port of their own: `/metrics` and nothing else there, open to whoever reaches that port.

It decides by the port at which a request came in. It refuses to know what the numbers mean.
"""

from app.api.probes import exposition
from app.api.responses import Asgi, Receive, Scope, not_found
from app.api.streaming import Send
from app.telemetry.metrics import Metrics


class MetricsPort:
    """Stands before `door`, which gets every request that came in elsewhere."""

    def __init__(self, door: Asgi, metrics: Metrics, port: int) -> None:
        self._door = door
        self._metrics = metrics
        self._port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope.get("server") or (None, None))[1] != self._port:
            await self._door(scope, receive, send)
        elif scope["path"] == "/metrics" and scope["method"] in ("GET", "HEAD"):
            accept = dict(scope["headers"]).get(b"accept", b"").decode("latin-1")
            await exposition(self._metrics, accept)(scope, receive, send)
        else:
            await not_found(scope, receive, send)

    def __repr__(self) -> str:
        return f"<MetricsPort {self._port}>"
