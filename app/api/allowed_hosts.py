"""Middleware that checks the Host header against `server.allowed_hosts`, against DNS rebinding.

Probes are exempt: orchestrators and Prometheus address a gateway by its IP address.
"""

import re
from collections.abc import Iterable

from app.api.responses import Asgi, Receive, Scope
from app.api.streaming import Send
from app.protocol import envelope
from app.protocol.errors import InvalidRequest

EXEMPT = frozenset({"/livez", "/readyz", "/metrics"})

SHOWN = 100
"""Characters of a refused name that the answer repeats."""

_WRITTEN = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+?)\.?(?::(\d{1,5}))?")
"""A Host header in small letters: a name, maybe with the dot of the root, or an address; maybe a port."""


class AllowedHosts:
    """Lets only requests through to `app` that name one of `allowed`: `host` (any port) or `host:port`."""

    __slots__ = ("_allowed", "_app")

    def __init__(self, app: Asgi, allowed: Iterable[str]) -> None:
        self._app = app
        self._allowed = frozenset(map(_bracketed, allowed))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in EXEMPT or self.hold(scope["headers"]):
            await self._app(scope, receive, send)
        else:
            await _turn_away(scope["headers"], send)

    def hold(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether there is exactly one Host, and it is listed."""
        named = [value for name, value in headers if name == b"host"]
        read = _WRITTEN.fullmatch(named[0].decode("latin-1").lower()) if len(named) == 1 else None
        return read is not None and (read[1] in self._allowed or f"{read[1]}:{read[2]}" in self._allowed)

    def __repr__(self) -> str:
        return f"<HostList of {', '.join(sorted(self._allowed))}>"


def _bracketed(host: str) -> str:
    """IPv6 as a Host header writes it."""
    return f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host


async def _turn_away(headers: Iterable[tuple[bytes, bytes]], send: Send) -> None:
    named = [value.decode("latin-1") for name, value in headers if name == b"host"]
    said = f"the host {named[0][:SHOWN]!a} is not served here" if len(named) == 1 else "exactly one Host is needed"
    fault = InvalidRequest(f"{said}: the gateway's setting server.allowed_hosts lists those that are", field="Host")
    body = envelope.failure(None, fault)
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 421, "headers": head})
    await send({"type": "http.response.body", "body": body})
