"""Opens connections to one engine.

Its addresses are tried in parallel (RFC 8305), and TLS is set up on the first one that accepts.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final, TypeVar

from app.engines.http.endpoint import Endpoint
from app.engines.http.resolver import Addresses, Resolver
from app.protocol.errors import ConnectFailed, LegError

STAGGER_SECONDS: Final = 0.25
"""Head start of each address over the next one; RFC 8305 §5 recommends this value."""

MAX_CONNECT_SECONDS: Final = 5.0

CONNECT_SHARE: Final = 0.75
"""Share of the engine's `timeoutMs` for connecting, so that it fails as `connect` before the call times out."""

P = TypeVar("P", bound=asyncio.Protocol)


class Dialer:
    """Opens connections to one endpoint. An address that refuses or hangs is tried after its others from then on."""

    __slots__ = ("_bound", "_endpoint", "_resolver")

    def __init__(self, endpoint: Endpoint, resolver: Resolver, timeout_ms: int) -> None:
        """`timeout_ms`: the engine's timeout for a whole call."""
        self._endpoint = endpoint
        self._resolver = resolver
        self._bound = min(MAX_CONNECT_SECONDS, CONNECT_SHARE * timeout_ms / 1000)

    async def addresses(self) -> Addresses:
        """The addresses of the engine's name, in the order to try them. Raises ConnectFailed."""
        return await self._resolver.addresses(self._endpoint.host)

    async def connect(self, addresses: Addresses, make: Callable[[], P], tls: ssl.SSLContext | None) -> P:
        """A connected protocol of `make`. Raises ConnectFailed, TlsFailed, Overloaded."""
        loop = asyncio.get_running_loop()
        host = self._endpoint.host
        try:
            async with asyncio.timeout(self._bound) as bound:
                address, sock = await self._first_connected(addresses)
        except TimeoutError:
            if not bound.expired():
                raise
            raise ConnectFailed(f"{self._endpoint.label}: no connection within {self._bound:g} s") from None
        # From here on the socket belongs to the loop, which closes it on failure and on cancellation.
        try:
            if tls is None:
                _, protocol = await loop.create_connection(make, sock=sock)
            else:
                _, protocol = await loop.create_connection(
                    make, sock=sock, ssl=tls, server_hostname=host, ssl_handshake_timeout=self._bound
                )
        except OSError as fault:
            self._resolver.doubt(host, address)
            raise (self._endpoint.unreachable(fault) if tls is None else self._endpoint.distrusted(fault)) from None
        except BaseException:
            self._resolver.doubt(host, address)  # it hung in the TLS handshake until the caller gave up
            raise
        self._resolver.trust(host, address)
        return protocol

    def forget(self) -> None:
        """Look the name up again for the next connection."""
        self._resolver.forget(self._endpoint.host)

    async def _first_connected(self, addresses: Addresses) -> tuple[str, socket.socket]:
        """The first address that accepts a TCP connection. Raises LegError."""
        host = self._endpoint.host
        waiting = list(addresses)
        attempts: dict[str, asyncio.Task[socket.socket]] = {}
        fault: LegError = ConnectFailed("no address")
        # Addresses that have hung: all that were started, or with a winner those that had a head start over it.
        hung: tuple[str, ...] = addresses
        try:
            while waiting or attempts:
                if waiting:
                    address = waiting.pop(0)
                    attempts[address] = asyncio.create_task(self._tcp(address))
                stagger = STAGGER_SECONDS if waiting else None
                await asyncio.wait(attempts.values(), timeout=stagger, return_when=asyncio.FIRST_COMPLETED)
                for address in [address for address, attempt in attempts.items() if attempt.done()]:
                    try:
                        sock = attempts[address].result()
                    except ConnectFailed as failed:
                        self._resolver.doubt(host, address)
                        fault = failed
                        del attempts[address]
                    else:
                        del attempts[address]
                        hung = addresses[: addresses.index(address)]
                        return address, sock
            raise fault
        finally:
            for address, attempt in attempts.items():
                if address in hung and not attempt.done():
                    self._resolver.doubt(host, address)
                attempt.cancel()
                attempt.add_done_callback(_close_unused)

    async def _tcp(self, address: str) -> socket.socket:
        """A connected socket; the loop would not close one that is half open when the caller goes away."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        except OSError as fault:
            raise self._endpoint.unreachable(fault) from None
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(sock, (address, self._endpoint.port))
        except OSError as fault:
            sock.close()
            raise self._endpoint.unreachable(fault) from None
        except BaseException:
            sock.close()
            raise
        return sock

    def __repr__(self) -> str:
        return f"<Dialer {self._endpoint.label} by {self._resolver!r}>"


def _close_unused(attempt: "asyncio.Task[socket.socket]") -> None:
    """Close the socket of an attempt that connected when nobody needed it any more."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()
