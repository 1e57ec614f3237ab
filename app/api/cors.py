"""Cross-origin rules for browsers: which web pages may call RCP and MCP here, and what the gateway's own pages may do.

They protect users of browsers only; other clients ignore them. Starlette's middleware implements CORS.
"""

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware

from app.api.caller import ANSWER_AT_ONCE
from app.api.responses import Asgi, Receive, Scope
from app.api.rpc_path import BASE, ENGINES, MCP_METADATA, MCP_PATHS
from app.api.streaming import Send

REQUEST_HEADERS = ("Authorization", "X-API-Key", "RCP-Session", "X-Request-ID", "traceparent", "tracestate")
"""Headers that scripts may send beside those that every script may."""

RESPONSE_HEADERS = ("X-Request-ID", "Retry-After", "WWW-Authenticate")
"""Headers of answers that scripts may read beside those that every script may."""

MCP_SESSION = "Mcp-Session-Id"
MCP_REQUEST_HEADERS = ("MCP-Protocol-Version", "Mcp-Method", "Mcp-Name", MCP_SESSION, "Last-Event-ID")
MCP_METHODS = ("GET", "POST", "DELETE")
"""Clients of MCP try the other two as well; that they are 405 is for them to read."""

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
"""Of every HTML page and of what it loads: only from here, in nobody's frame, no script written into the page."""


class CorsPolicy:
    """Middleware that opens the RCP and MCP endpoints, and nothing else, to scripts of web pages of these `origins`."""

    __slots__ = ("_app", "_mcp", "_origins", "_rcp")

    def __init__(self, app: Asgi, origins: Sequence[str]) -> None:
        self._app = app
        self._origins = tuple(origins)
        self._rcp = self._opened(("POST",), REQUEST_HEADERS, RESPONSE_HEADERS)
        self._mcp = self._opened(
            MCP_METHODS, (*REQUEST_HEADERS, *MCP_REQUEST_HEADERS), (*RESPONSE_HEADERS, MCP_SESSION)
        )

    def _opened(self, methods: Sequence[str], request_headers: Sequence[str], response_headers: Sequence[str]) -> Asgi:
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
        if app is not self._app:  # its headers are added as the response is sent
            scope.get("extensions", {}).pop(ANSWER_AT_ONCE, None)
        await app(scope, receive, send)

    def __repr__(self) -> str:
        return f"<CorsPolicy {', '.join(self._origins)}>"


def _speaks_rcp(path: str) -> bool:
    return f"{path}/".startswith(f"{BASE}/") or (path.startswith(ENGINES) and f"{BASE}/" in f"{path}/")
