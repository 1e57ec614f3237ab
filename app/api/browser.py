"""What browsers are told: which other sites' scripts may speak RCP here, and what a page of ours may do.

Decides what they hear; browsers themselves hold others to it, so none of it keeps out anybody who is no browser. It
refuses to know requests. Starlette's middleware speaks CORS; it stands before the RCP endpoints alone.
"""

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware

from app.api.place import BASE, ENGINES
from app.api.sending import Asgi, Receive, Scope
from app.api.stream import Send

ASKING = ("Authorization", "X-API-Key", "RCP-Session", "X-Request-ID", "traceparent", "tracestate")
"""Headers that scripts may send beside those that every script may."""

TOLD = ("X-Request-ID", "Retry-After", "WWW-Authenticate")
"""Headers of answers that scripts may read beside those that every script may."""

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


class OtherSites:
    """Opens the RCP endpoints of `app` to scripts of these `origins`, and nothing else of it to anybody."""

    __slots__ = ("_app", "_opened", "_origins")

    def __init__(self, app: Asgi, origins: Sequence[str]) -> None:
        self._app = app
        self._origins = tuple(origins)
        self._opened: Asgi = CORSMiddleware(
            app, allow_origins=self._origins, allow_methods=("POST",), allow_headers=ASKING, expose_headers=TOLD
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        opened = scope["type"] == "http" and _speaks_rcp(scope["path"])
        await (self._opened if opened else self._app)(scope, receive, send)

    def __repr__(self) -> str:
        return f"<OtherSites {', '.join(self._origins)}>"


def _speaks_rcp(path: str) -> bool:
    return f"{path}/".startswith(f"{BASE}/") or (path.startswith(ENGINES) and f"{BASE}/" in f"{path}/")
