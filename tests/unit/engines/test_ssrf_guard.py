"""Addresses that no listing may lead to."""

from typing import Any

import pytest

from app.engines.http.resolver import GuardedResolver
from app.protocol.errors import ConnectFailed


def resolver(*found: str) -> GuardedResolver:
    def look_up(host: str, *_: Any, **__: Any) -> list[Any]:
        return [(0, 0, 0, "", (address, 0)) for address in found]

    return GuardedResolver(lookup=look_up)


@pytest.mark.parametrize(
    ("host", "address", "allowed"),
    [
        ("e.example", "192.0.2.1", True),
        ("e.example", "10.0.0.1", True),
        ("e.example", "fd00::1", True),
        ("e.example", "127.0.0.1", False),
        ("e.example", "::1", False),
        ("e.example", "::ffff:127.0.0.1", False),
        ("e.example", "169.254.169.254", False),
        ("e.example", "::ffff:169.254.169.254", False),
        ("e.example", "fe80::1%1", False),
        ("e.example", "0.0.0.0", False),
        ("e.example", "0.0.0.1", False),
        ("e.example", "255.255.255.255", False),
        ("e.example", "100.100.100.200", False),
        ("e.example", "168.63.129.16", False),
        ("e.example", "192.0.0.192", False),
        ("e.example", "fd00:ec2::254", False),
        ("e.example", "64:ff9b::a9fe:a9fe", False),
        ("e.example", "64:ff9b::7f00:1", False),
        ("e.example", "64:ff9b::c000:201", True),
        ("e.example", "2002:a9fe:a9fe::1", False),
        ("e.example", "2002:7f00:1::", False),
        ("e.example", "::169.254.169.254", False),
        ("e.example", "::127.0.0.1", False),
        ("e.example", "2001:db8::1", True),
        ("e.example", "::", False),
        ("e.example", "224.0.0.1", False),
        ("localhost", "127.0.0.1", True),
        ("localhost", "::1", True),
        ("localhost", "169.254.169.254", False),
    ],
)
async def test_what_a_name_may_lead_to(host: str, address: str, allowed: bool) -> None:
    """Private networks yes; this machine only by its own name; link-local, multicast and unspecified never."""
    if allowed:
        assert await resolver(address).addresses(host) == (address,)
    else:
        with pytest.raises(ConnectFailed, match="not one that a discovered engine may have"):
            await resolver(address).addresses(host)


async def test_addresses_written_as_such() -> None:
    """A host that is an address is looked at as well; loopback that says so is meant."""
    assert await resolver().addresses("127.0.0.1") == ("127.0.0.1",)
    for host in ("169.254.169.254", "0.0.0.0", "fe80::1"):
        with pytest.raises(ConnectFailed):
            await resolver().addresses(host)


async def test_what_is_left_is_used() -> None:
    """Of several addresses those that are allowed are kept, in their order."""
    assert await resolver("127.0.0.1", "192.0.2.2", "192.0.2.1").addresses("e") == ("192.0.2.2", "192.0.2.1")
