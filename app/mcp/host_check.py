"""Host and Origin headers that the MCP endpoint accepts, against DNS rebinding.

A web page must not reach a gateway on loopback through its visitor's browser. A refusal names the setting that would
allow the request. Separate from `server.allowed_hosts`, which is empty by default and applies to every endpoint.
"""

from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from app.protocol.errors import InvalidRequest
from app.settings.mcp import McpSettings

ANY_PORT = ":*"

Headers = Iterable[tuple[bytes, bytes]]


class McpHostPolicy:
    """Which requests are served."""

    __slots__ = ("_hosts", "_origins")

    def __init__(
        self,
        settings: McpSettings,
        public_url: str | None = None,
        everywhere: Sequence[str] = (),
        pages: Sequence[str] = (),
    ) -> None:
        """Besides those of `settings`, the host of `public_url` and the hosts in `everywhere` are accepted, and the
        origins in `pages`, whose scripts may call every endpoint."""
        public = () if public_url is None else (urlsplit(public_url).netloc,)
        named = [name for host in everywhere for name in _with_ports(host)]
        self._hosts = _HostNames([name.lower() for name in (*settings.allowed_hosts, *public, *named)])
        self._origins = _HostNames([name.lower() for name in (*settings.allowed_origins, *pages)])

    def refusal(self, headers: Headers) -> tuple[int, InvalidRequest] | None:
        """(HTTP status, error) for a request that is not served; None if it is."""
        host = origin = ""
        for name, value in headers:
            if name == b"host":
                host = value.decode("latin-1")
            elif name == b"origin":
                origin = value.decode("latin-1")
        if not self._hosts.hold(host):
            return 421, _fault("Host", host, "mcp.allowed_hosts")
        if origin and not self._origins.hold(origin):
            return 403, _fault("Origin", origin, "mcp.allowed_origins")
        return None

    def __repr__(self) -> str:
        return f"<Hosts {self._hosts!r}, origins {self._origins!r}>"


class _HostNames:
    """Names with their ports, and names for which any port is accepted."""

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
    """A name of `server.allowed_hosts` as the lists here write it. There, a name without a port means any port."""
    if host.count(":") > 1 and not host.startswith("["):
        host = f"[{host}]"
    return (host,) if host.rpartition(":")[2].isdigit() else (host, host + ANY_PORT)


def _fault(header: str, value: str, setting: str) -> InvalidRequest:
    problem = f"{header} {value[:100]!r} is not served here" if value else f"a {header} header is needed"
    return InvalidRequest(f"{problem}: the gateway's setting {setting} lists those that are", field=header)
