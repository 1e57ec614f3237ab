"""Cross-origin rules for browsers: which web pages may call RCP and MCP, and what the gateway's own pages may do.

They protect users of browsers only; other clients ignore them. Starlette's middleware implements CORS.
"""

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware

from app.api.caller import ANSWER_AT_ONCE
from app.api.responses import Asgi, Receive, Scope
from app.api.rpc_path import BASE, ENGINES, MCP_METADATA, MCP_PATHS
from app.api.streaming import Send

REQUEST_HEADERS = ("Authorization", "X-API-Key", "RCP-Session", "X-Request-ID", "traceparent", "tracestate")
"""Request headers that scripts may set, besides those that CORS always allows."""

RESPONSE_HEADERS = ("X-Request-ID", "Retry-After", "WWW-Authenticate")
"""Response headers that scripts may read, besides those that CORS always allows."""

MCP_SESSION = "Mcp-Session-Id"
MCP_REQUEST_HEADERS = ("MCP-Protocol-Version", "Mcp-Method", "Mcp-Name", MCP_SESSION, "Last-Event-ID")
MCP_METHODS = ("GET", "POST", "DELETE")
"""MCP clients try GET and DELETE, too, and must be able to read the status 405."""

PAGE_HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
"""Headers of HTML pages and their files: resources of this origin only, no framing, no inline scripts."""


class CorsPolicy:
    """Middleware that allows scripts of these `origins` to call the RCP and MCP endpoints, and nothing else."""

    __slots__ = ("_app", "_mcp", "_origins", "_rcp")

    def __init__(self, app: Asgi, origins: Sequence[str]) -> None:
        self._app = app
        self._origins = tuple(origins)
        self._rcp = self._cors(("POST",), REQUEST_HEADERS, RESPONSE_HEADERS)
        self._mcp = self._cors(MCP_METHODS, (*REQUEST_HEADERS, *MCP_REQUEST_HEADERS), (*RESPONSE_HEADERS, MCP_SESSION))

    def _cors(self, methods: Sequence[str], request_headers: Sequence[str], response_headers: Sequence[str]) -> Asgi:
        return CORSMiddleware(
            self._app,
            allow_origins=self._origins,
            allow_methods=methods,
            allow_headers=request_headers,
            expose_headers=response_headers,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http":
            path = scope["path"]
            app = self._mcp if path in MCP_PATHS or path == MCP_METADATA else self._rcp if _speaks_rcp(path) else app
        if app is not self._app:
            # The middleware adds headers while the response is sent, so the server must not take a shortcut.
            scope.get("extensions", {}).pop(ANSWER_AT_ONCE, None)
        await app(scope, receive, send)

    def __repr__(self) -> str:
        return f"<CorsPolicy {', '.join(self._origins)}>"


def _speaks_rcp(path: str) -> bool:
    return f"{path}/".startswith(f"{BASE}/") or (path.startswith(ENGINES) and f"{BASE}/" in f"{path}/")
