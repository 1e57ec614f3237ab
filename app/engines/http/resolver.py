"""Resolves engine host names, with a cache and one lookup at a time for each name.

The event loop resolves names in a small shared thread pool, which a few hanging names would fill. Here each name has
its own thread, which nobody waits for at exit. `GuardedResolver` refuses addresses that discovery must not reach.
"""

import asyncio
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import zip_longest
from typing import Any

from app.protocol.errors import ConnectFailed

BELIEVED_SECONDS = 30.0
"""How long the addresses of a name are used before it is looked up again."""

Addresses = tuple[str, ...]
Lookup = Callable[..., list[tuple[Any, ...]]]
"""The signature of socket.getaddrinfo."""


class Resolver:
    """Looks names up once for all who ask at the same time, and remembers the answer for `ttl` seconds.

    Belongs to one event loop. Failures are not remembered.
    """

    __slots__ = ("_clock", "_doubted", "_known", "_lookup", "_lookups", "_ttl")

    def __init__(
        self,
        *,
        ttl: float = BELIEVED_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        lookup: Lookup = socket.getaddrinfo,
    ) -> None:
        self._ttl = ttl
        self._clock = clock
        self._lookup = lookup
        self._known: dict[str, tuple[float, Addresses]] = {}
        self._doubted: dict[str, dict[str, None]] = {}
        # A lookup lands on addresses, or on the words for why there are none: an exception that no one is left to
        # collect would be reported as lost.
        self._lookups: dict[str, asyncio.Future[Addresses | str]] = {}

    async def addresses(self, host: str) -> Addresses:
        """Numeric addresses of `host` in the order to try them, at least one. Raises ConnectFailed."""
        if is_numeric(host):
            return (host,)
        known = self._known.get(host)
        if known is not None and self._clock() < known[0]:
            return self._ordered(host, known[1])
        found = await asyncio.shield(self._lookups.get(host) or self._start_lookup(host))
        if isinstance(found, str):
            raise ConnectFailed(found)
        return self._ordered(host, found)

    def doubt(self, host: str, address: str) -> None:
        """`address` refused or hung: look the name up again, and try this address after its others."""
        doubted = self._doubted.setdefault(host, {})
        doubted.pop(address, None)
        doubted[address] = None  # the one doubted last is tried last
        self.forget(host)

    def trust(self, host: str, address: str) -> None:
        """`address` accepted a connection: it takes its usual place again."""
        doubted = self._doubted.get(host)
        if doubted is not None:
            doubted.pop(address, None)
            if not doubted:
                del self._doubted[host]

    def forget(self, host: str) -> None:
        """Believe the name's last answer no longer."""
        self._known.pop(host, None)

    def _ordered(self, host: str, addresses: Addresses) -> Addresses:
        doubted = self._doubted.get(host)
        if doubted is None:
            return addresses
        for gone in set(doubted).difference(addresses):
            del doubted[gone]  # else the addresses of a name that changes often would pile up
        return (*(one for one in addresses if one not in doubted), *doubted)

    def _start_lookup(self, host: str) -> asyncio.Future[Addresses | str]:
        loop = asyncio.get_running_loop()
        lookup: asyncio.Future[Addresses | str] = loop.create_future()

        def look_up() -> None:
            found = self._look_up(host)
            with suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(self._finish_lookup, host, lookup, found)

        try:
            threading.Thread(target=look_up, name=f"resolve {host}", daemon=True).start()
        except RuntimeError:
            raise ConnectFailed(f"{host}: no thread is left to look the name up") from None
        self._lookups[host] = lookup
        return lookup

    def _look_up(self, host: str) -> Addresses | str:
        """In the thread: everything that can go wrong becomes words."""
        try:
            found = self._lookup(host, None, type=socket.SOCK_STREAM)
        except OSError as fault:
            return f"{host}: {fault.strerror or 'the name is not known'}"
        except ValueError:
            return f"{host}: not a host name"
        # dict.fromkeys: once each, in the order of preference that the system gave them.
        return _interleaved(dict.fromkeys(entry[4][0] for entry in found)) or f"{host}: the name has no address"

    def _finish_lookup(self, host: str, lookup: asyncio.Future[Addresses | str], found: Addresses | str) -> None:
        self._lookups.pop(host, None)
        if not isinstance(found, str):
            self._known[host] = (self._clock() + self._ttl, found)
        if not lookup.done():
            lookup.set_result(found)

    def __repr__(self) -> str:
        return f"<Resolver knows {sorted(self._known)}, looking up {sorted(self._lookups)}>"


def _interleaved(addresses: Iterable[str]) -> Addresses:
    """IPv6 and IPv4 in turn (RFC 8305 §4), so that a family without a route delays the other by one address only."""
    families: dict[bool, list[str]] = {}  # the family preferred by the system comes first
    for address in addresses:
        families.setdefault(":" in address, []).append(address)
    return tuple(one for pair in zip_longest(*families.values()) for one in pair if one is not None)


def is_numeric(host: str) -> bool:
    """Whether `host` is an IPv4 or IPv6 address already."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


Address = ipaddress.IPv4Address | ipaddress.IPv6Address

METADATA = frozenset(
    map(ipaddress.ip_address, ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"))
)
"""Metadata services of clouds outside 169.254.0.0/16: Alibaba, Azure, Oracle, AWS and Google over IPv6."""

THIS_NETWORK = ipaddress.ip_network("0.0.0.0/8")
TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
"""IPv4 behind a translator (RFC 6052)."""


class GuardedResolver(Resolver):
    """A Resolver that leaves out addresses which no name that is followed may lead to."""

    __slots__ = ()

    async def addresses(self, host: str) -> Addresses:
        """As Resolver.addresses. Raises ConnectFailed also where none of its addresses is left."""
        found = await super().addresses(host)
        left = tuple(address for address in found if _may_lead_to(host, address))
        if not left:
            raise ConnectFailed(f"{host}: its address is not one that a discovered engine may have")
        return left


def _may_lead_to(host: str, address: str) -> bool:
    """This machine only if the name says so; link-local, multicast, reserved and metadata addresses never."""
    ip = _plain(address)
    if ip.is_loopback:
        return host in ("localhost", address)
    nobody = ip.is_link_local or ip.is_multicast or ip.is_reserved or ip.is_unspecified
    return not (nobody or ip in METADATA or ip in THIS_NETWORK)


def _plain(address: str) -> Address:
    """Without the scope, and IPv4 where it only wears the form of IPv6: mapped, compatible, 6to4, translated."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv4Address):
        return ip
    worn = ip.ipv4_mapped or ip.sixtofour
    if worn is None and (ip in TRANSLATED or int(ip) >> 32 == 0) and int(ip) > 1:
        worn = ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)
    return ip if worn is None else worn
