"""Host and Origin checks, against DNS rebinding: a web page must not reach a gateway through its visitor's browser.

`AllowedHosts` is middleware for `server.allowed_hosts`, which is empty by default. Probes are exempt: orchestrators and
Prometheus address a gateway by its IP address. `McpHostPolicy` protects the MCP endpoint by default, because MCP
clients are often on the same machine as a browser.
"""

import re
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from app.api.responses import Asgi, Receive, Scope
from app.api.streaming import Send
from app.protocol import envelope
from app.protocol.errors import InvalidRequest
from app.settings.mcp import McpSettings

EXEMPT = frozenset({"/livez", "/readyz", "/metrics"})

SHOWN = 100
"""Characters of a refused name that the error repeats."""

_WRITTEN = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+?)\.?(?::(\d{1,5}))?")
"""A Host header in lower case: a name, optionally with the trailing dot of the root, or an address; and a port."""


class AllowedHosts:
    """Passes requests to `app` whose Host is one of `allowed`: `host` (any port) or `host:port`."""

    __slots__ = ("_allowed", "_app")

    def __init__(self, app: Asgi, allowed: Iterable[str]) -> None:
        self._app = app
        self._allowed = frozenset(map(_bracketed, allowed))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in EXEMPT or self.allows(scope["headers"]):
            await self._app(scope, receive, send)
        else:
            await _refuse(scope["headers"], send)

    def allows(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether there is exactly one Host header, and it is listed."""
        # With two of them, a proxy in front could have checked the other one.
        named = [value for name, value in headers if name == b"host"]
        read = _WRITTEN.fullmatch(named[0].decode("latin-1").lower()) if len(named) == 1 else None
        return read is not None and (read[1] in self._allowed or f"{read[1]}:{read[2]}" in self._allowed)

    def __repr__(self) -> str:
        return f"<AllowedHosts of {', '.join(sorted(self._allowed))}>"


def _bracketed(host: str) -> str:
    """The host as a Host header contains it: IPv6 addresses are in brackets."""
    return f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host


async def _refuse(headers: Iterable[tuple[bytes, bytes]], send: Send) -> None:
    named = [value.decode("latin-1") for name, value in headers if name == b"host"]
    said = (
        f"the host {named[0][:SHOWN]!a} is not served here"
        if len(named) == 1
        else "exactly one Host header is required"
    )
    fault = InvalidRequest(f"{said}; see the setting server.allowed_hosts", field="Host")
    body = envelope.failure(None, fault)
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 421, "headers": head})
    await send({"type": "http.response.body", "body": body})


# --- The MCP endpoint ---

ANY_PORT = ":*"

Headers = Iterable[tuple[bytes, bytes]]


class McpHostPolicy:
    """Checks Host and Origin of requests to the MCP endpoint (`mcp.allowed_hosts`, `mcp.allowed_origins`)."""

    __slots__ = ("_hosts", "_origins")

    def __init__(
        self,
        settings: McpSettings,
        public_url: str | None = None,
        everywhere: Sequence[str] = (),
        pages: Sequence[str] = (),
    ) -> None:
        """Accepted besides those of `settings`: the host of `public_url`, the hosts in `everywhere`
        (`server.allowed_hosts`) and the origins in `pages` (`server.cors_origins`)."""
        public = () if public_url is None else (urlsplit(public_url).netloc,)
        named = [name for host in everywhere for name in _with_ports(host)]
        self._hosts = _HostNames([name.lower() for name in (*settings.allowed_hosts, *public, *named)])
        self._origins = _HostNames([name.lower() for name in (*settings.allowed_origins, *pages)])

    def refusal(self, headers: Headers) -> tuple[int, InvalidRequest] | None:
        """(HTTP status, error) of a request to refuse; None if it is allowed."""
        host = origin = ""
        for name, value in headers:
            if name == b"host":
                host = value.decode("latin-1")
            elif name == b"origin":
                origin = value.decode("latin-1")
        if not self._hosts.hold(host):
            return 421, _fault("Host", host, "mcp.allowed_hosts")
        # Only browsers send an Origin, so other clients pass.
        if origin and not self._origins.hold(origin):
            return 403, _fault("Origin", origin, "mcp.allowed_origins")
        return None

    def __repr__(self) -> str:
        return f"<McpHostPolicy {self._hosts!r}, origins {self._origins!r}>"


class _HostNames:
    """A set of names, each with its port or with any port (`name:*`)."""

    __slots__ = ("_beginnings", "_whole")

    def __init__(self, written: Sequence[str]) -> None:
        self._whole = frozenset(name for name in written if not name.endswith(ANY_PORT))
        self._beginnings = frozenset(name.removesuffix(ANY_PORT) for name in written if name.endswith(ANY_PORT))

    def hold(self, name: str) -> bool:
        lowered = name.lower()
        if lowered in self._whole:
            return True
        beginning, colon, port = lowered.rpartition(":")
        return bool(colon) and port.isdigit() and beginning in self._beginnings

    def __repr__(self) -> str:
        return ", ".join([*sorted(self._whole), *(name + ANY_PORT for name in sorted(self._beginnings))]) or "none"


def _with_ports(host: str) -> Sequence[str]:
    """A name of `server.allowed_hosts`, where no port means any port, in the form of the MCP lists."""
    if host.count(":") > 1 and not host.startswith("["):
        host = f"[{host}]"
    return (host,) if host.rpartition(":")[2].isdigit() else (host, host + ANY_PORT)


def _fault(header: str, value: str, setting: str) -> InvalidRequest:
    problem = f"{header} {value[:100]!r} is not served here" if value else f"a {header} header is required"
    return InvalidRequest(f"{problem}; see the setting {setting}", field=header)
