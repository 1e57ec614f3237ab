"""An engine's URL in parts, its TLS context, and error messages for failed connections.

URLs may contain keys: messages show the host and the port, never a path or a query.
"""

import errno
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import quote, urlsplit

from app.protocol.errors import ConnectFailed, LegError, Overloaded, Refused, TlsFailed, UnknownMethod
from app.settings.engine_parts import EngineTls
from app.settings.schema import EngineEntry

_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Errors of a connection attempt that are due to this machine."""

_SHORTAGE_REMEDY = "raise its limits, such as ulimit -n, or lower server.max_connections"

_IN_PATHS = "/!$&'()*+,;=:@-._~"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One engine's URL. `authority` is the Host header, `host` goes to the resolver and to TLS."""

    secure: bool
    host: str
    port: int
    authority: str
    path: str = field(repr=False)
    query: str = field(repr=False)

    @classmethod
    def of(cls, url: str) -> Self:
        """Take a URL of the registry apart; `http://h/rcp/?key=x` and `http://h/rcp?key=x` are the same."""
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        host = parts.hostname or ""
        shown = f"[{host}]" if ":" in host else host
        usual = 443 if secure else 80
        port = parts.port or usual
        return cls(
            secure=secure,
            host=host,
            port=port,
            authority=shown if port == usual else f"{shown}:{port}",
            # The method is appended with a slash of its own.
            path=parts.path.rstrip("/"),
            query=f"?{parts.query}" if parts.query else "",
        )

    @property
    def label(self) -> str:
        """`host:port`, fit for notes and logs."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def origin(self) -> str:
        """`scheme://host[:port]`."""
        return f"{'https' if self.secure else 'http'}://{self.authority}"

    def target(self, method: str) -> str:
        """The request target of an RCP method: `<path>/<method>[?query]` (RCP §5.2).

        Raises Refused (-32004) for a name that would climb out of the path.
        """
        if any(step in ("", ".", "..") for step in method.split("/")):
            raise Refused("a method of that name has no address over HTTP", code=UnknownMethod.code)
        return f"{self.path}/{quote(method, safe=_IN_PATHS)}{self.query}"

    def unreachable(self, fault: BaseException) -> LegError:
        """Why no TCP connection came about: `overloaded` where it is this process that can have no more of them."""
        return _own_shortage(fault) or ConnectFailed(f"{self.label}: {reason_of(fault)}")

    def rejected(self) -> LegError:
        """The error of an engine that hung up right after the TLS handshake and has never answered.

        In TLS 1.3 a missing client certificate is refused only then, and the alert that says so may get lost.
        """
        return TlsFailed(
            f"{self.label}: closed without an answer after the TLS handshake; it may require a client certificate "
            "(tls.certFile)"
        )

    def distrusted(self, fault: BaseException) -> LegError:
        """Why there was a TCP connection but no TLS over it."""
        return _own_shortage(fault) or TlsFailed(f"{self.label}: {reason_of(fault)}")


def request_headers(endpoint: Endpoint, entry: EngineEntry) -> list[tuple[bytes, bytes]]:
    """All header fields of a request except its length. A caller's headers are never forwarded."""
    lines = [("Host", endpoint.authority), ("Content-Type", "application/json"), ("Accept", "application/json")]
    return [(name.encode("ascii"), value.encode("ascii")) for name, value in (*lines, *entry.headers.items())]


def tls_context(tls: EngineTls | None) -> ssl.SSLContext:
    """A verifying client context with the entry's own authority and certificate. Raises TlsFailed; reads files."""
    tls = tls or EngineTls()
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
    except OSError as fault:
        raise TlsFailed(f"tls.caFile: {reason_of(fault)}") from None
    if tls.cert_file:
        try:
            # An empty password: a key that wants one must fail, not ask at the terminal.
            context.load_cert_chain(tls.cert_file, tls.key_file, password="")
        except (OSError, ValueError) as fault:
            raise TlsFailed(f"tls.certFile or tls.keyFile: {reason_of(fault)}") from None
    return context


def reason_of(fault: BaseException) -> str:
    """The plainest message in a chain of socket and TLS errors: outer ones quote addresses and module names."""
    for cause in _causes(fault):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            # Only errors that come from OpenSSL itself carry a reason.
            return f"TLS: {(getattr(cause, 'reason', None) or 'broken off').lower().replace('_', ' ')}"
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno)
    return "the connection was broken off" if isinstance(fault, OSError) else type(fault).__name__


def _own_shortage(fault: BaseException) -> Overloaded | None:
    """The error of a shortage on this machine, for which no breaker may open."""
    for cause in _causes(fault):
        if isinstance(cause, OSError) and cause.errno in _SHORTAGES:
            return Overloaded(f"this gateway can open no connection ({os.strerror(cause.errno)}): {_SHORTAGE_REMEDY}")
    return None


def _causes(fault: BaseException | None) -> Iterator[BaseException]:
    while fault is not None:
        yield fault
        fault = fault.__cause__ or fault.__context__
