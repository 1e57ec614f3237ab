"""Addresses of engines that somebody else named: looked at once more in the moment of connecting.

Engines room. A host that is allowed by name may still lead to this machine or to what a cloud offers only to those on
it; whoever writes the registry may mean that, a listing may not. It refuses to know who named the host.
"""

import ipaddress

from app.engines.resolver import Addresses, Resolver
from app.protocol.errors import ConnectFailed


class WaryResolver(Resolver):
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
    """Link-local, multicast and unspecified addresses never; this machine only if the name says so."""
    ip = _plain(address)
    if ip.is_link_local or ip.is_multicast or ip.is_unspecified:
        return False
    return not ip.is_loopback or host == "localhost" or host == address


def _plain(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Without the scope, and IPv4 where it only wears the form of IPv6."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return ip if mapped is None else mapped
