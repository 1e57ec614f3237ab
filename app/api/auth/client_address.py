"""The address a request comes from, behind the proxies that the operator trusts and no others.

Decides whose X-Forwarded-For is believed: the right-most address that is no trusted proxy is the client's, whatever is
written left of it. It refuses to know what the address is used for.
"""

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

Address = IPv4Address | IPv6Address

UNKNOWN = "unknown"
"""The address of a peer that has none, as on a Unix socket."""

MAX_HOPS = 20
"""Addresses that are looked at from the right; more is no chain of proxies."""


class ClientAddress:
    """Finds the client's address of a request."""

    __slots__ = ("_networks",)

    def __init__(self, trusted: Iterable[str]) -> None:
        """`trusted`: addresses and networks of proxies."""
        self._networks: Sequence[IPv4Network | IPv6Network] = tuple(ip_network(each) for each in trusted)

    def address(self, scope: Mapping[str, Any]) -> str:
        """The client's address; one for a whole IPv6 network of 64 bits, which is what one client is given."""
        client = scope.get("client")
        peer = _parsed(client[0]) if client else None
        if peer is None:
            return UNKNOWN
        if self._networks and self._trusts(peer):
            peer = self._behind(peer, scope["headers"])
        return _grouped(peer)

    def counted_address(self, host: str) -> str | None:
        """What the connections of the peer `host` are counted under; None for a trusted proxy, which has many."""
        peer = _parsed(host)
        if peer is None:
            return UNKNOWN
        return None if self._trusts(peer) else _grouped(peer)

    def _behind(self, peer: Address, headers: Iterable[tuple[bytes, bytes]]) -> Address:
        """Walk from the right while proxies are trusted; what is no address ends the walk at the proxy that sent it."""
        chain = ",".join(value.decode("latin-1") for name, value in headers if name == b"x-forwarded-for")
        for hop in reversed(chain.split(",")[-MAX_HOPS:]):
            address = _parsed(hop.strip())
            if address is None:
                return peer
            peer = address
            if not self._trusts(address):
                return peer
        return peer

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._networks)

    def __repr__(self) -> str:
        return f"<Origin behind {', '.join(map(str, self._networks)) or 'no proxy'}>"


def _parsed(text: str) -> Address | None:
    """The address of `1.2.3.4`, `1.2.3.4:567`, `::1` or `[::1]:567`; None for anything else."""
    if len(text) > 64:
        return None
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _grouped(address: Address) -> str:
    if isinstance(address, IPv4Address):
        return str(address)
    return str(IPv6Address(int(address) >> 64 << 64))
