"""The client address of a request, taking X-Forwarded-For into account where a trusted proxy sent it.

The client is the right-most address of X-Forwarded-For that is not a trusted proxy. Everything to the left of it was
written by the client and can be forged.
"""

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

Address = IPv4Address | IPv6Address

UNKNOWN = "unknown"
"""The address of a peer without one, for example on a Unix socket."""

MAX_HOPS = 20
"""How many addresses of X-Forwarded-For are examined, from the right. It bounds the work that a long header causes."""


class ClientAddress:
    """Finds the client address of requests, given the trusted proxies."""

    __slots__ = ("_networks",)

    def __init__(self, trusted: Iterable[str]) -> None:
        """`trusted`: addresses and networks of proxies, as in `server.trusted_proxies`."""
        self._networks: Sequence[IPv4Network | IPv6Network] = tuple(ip_network(each) for each in trusted)

    def address(self, scope: Mapping[str, Any]) -> str:
        """The client address; for IPv6 its /64 network."""
        client = scope.get("client")
        peer = _parsed(client[0]) if client else None
        if peer is None:
            return UNKNOWN
        if self._networks and self._trusts(peer):
            peer = self._behind(peer, scope["headers"])
        return _grouped(peer)

    def counted_address(self, host: str) -> str | None:
        """The address under which connections of the peer `host` are counted.

        None for a trusted proxy, which has connections of many clients.
        """
        peer = _parsed(host)
        if peer is None:
            return UNKNOWN
        return None if self._trusts(peer) else _grouped(peer)

    def _behind(self, peer: Address, headers: Iterable[tuple[bytes, bytes]]) -> Address:
        """Walk X-Forwarded-For from the right while the addresses are trusted proxies."""
        chain = ",".join(value.decode("latin-1") for name, value in headers if name == b"x-forwarded-for")
        for hop in reversed(chain.split(",")[-MAX_HOPS:]):
            address = _parsed(hop.strip())
            if address is None:
                # Not an address: the proxy that sent it is the last hop that is known for certain.
                return peer
            peer = address
            if not self._trusts(address):
                return peer
        return peer

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._networks)

    def __repr__(self) -> str:
        return f"<ClientAddress behind {', '.join(map(str, self._networks)) or 'no proxy'}>"


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
    # An IPv4 client of a dual-stack socket appears as ::ffff:1.2.3.4 and must count as the same client.
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _grouped(address: Address) -> str:
    if isinstance(address, IPv4Address):
        return str(address)
    # A client usually controls a whole /64 network, and could otherwise use a new address for each request.
    return str(IPv6Address(int(address) >> 64 << 64))
