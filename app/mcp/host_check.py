"""Under which names the door is served, and from which web pages: Host and Origin headers (DNS rebinding).

Decides who is turned away, and says which setting would let them in. It refuses to know what is asked, and who asks.
"""

from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from app.protocol.errors import InvalidRequest
from app.settings.mcp import McpSettings

ANY_PORT = ":*"

Headers = Iterable[tuple[bytes, bytes]]

_NAMED = frozenset({b"host", b"origin"})


class McpHostPolicy:
    """The lists of one door."""

    __slots__ = ("_hosts", "_origins", "hosts", "origins")

    def __init__(
        self,
        settings: McpSettings,
        public_url: str | None = None,
        everywhere: Sequence[str] = (),
        pages: Sequence[str] = (),
    ) -> None:
        """Served is also where callers reach this gateway (`public_url`), names that it has `everywhere`, and web
        `pages` whose scripts may ask it at every door."""
        public = () if public_url is None else (urlsplit(public_url).netloc,)
        named = [name for host in everywhere for name in _with_ports(host)]
        self.hosts = tuple(name.lower() for name in (*settings.allowed_hosts, *public, *named))
        self.origins = tuple(name.lower() for name in (*settings.allowed_origins, *pages))
        self._hosts = _HostNames(self.hosts)
        self._origins = _HostNames(self.origins)

    def refusal(self, headers: Headers) -> tuple[int, InvalidRequest] | None:
        """(HTTP status, why) for a request that is not served here; None if it is."""
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

    @staticmethod
    def lowered(headers: Sequence[tuple[bytes, bytes]]) -> Sequence[tuple[bytes, bytes]]:
        """The same headers with both names in lower case, as they are compared; the SDK compares letter by letter."""
        if all(value.islower() for name, value in headers if name in _NAMED):
            return headers
        return [(name, value.lower() if name in _NAMED else value) for name, value in headers]

    def __repr__(self) -> str:
        return f"<Hosts {self._hosts!r}, origins {self._origins!r}>"


class _HostNames:
    """Names as they are written, and beginnings of names with any port."""

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
    """A name of `server.allowed_hosts`, where one without a port means any, as the lists here say it."""
    if host.count(":") > 1 and not host.startswith("["):
        host = f"[{host}]"
    return (host,) if host.rpartition(":")[2].isdigit() else (host, host + ANY_PORT)


def _fault(header: str, value: str, setting: str) -> InvalidRequest:
    said = f"{header} {value[:100]!r} is not served here" if value else f"a {header} header is needed"
    return InvalidRequest(f"{said}: the gateway's setting {setting} lists those that are", field=header)
