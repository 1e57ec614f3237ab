"""Addresses of engines that somebody else named: looked at once more in the moment of connecting.

Engines room. A host that is allowed by name may still lead to this machine or to what a cloud offers only to those on
it; whoever writes the registry may mean that, a listing may not. It refuses to know who named the host.
"""

import ipaddress

from app.engines.http.resolver import Addresses, Resolver
from app.protocol.errors import ConnectFailed

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

METADATA = frozenset(
    map(ipaddress.ip_address, ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"))
)
"""Where clouds tell a machine its secrets outside 169.254.0.0/16: Alibaba, Azure, Oracle, AWS and Google over IPv6."""

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
