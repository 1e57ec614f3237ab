"""Connecting to an engine with several addresses, some of which hang or refuse."""

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from app.engines.http.client import HttpTransport
from app.engines.http.dialer import Dialer
from app.engines.http.endpoint import Endpoint
from app.engines.http.resolver import Resolver
from app.protocol.errors import ConnectFailed
from app.settings.schema import EngineEntry, EnginesSettings
from tests.support.raw_peer import echo
from tests.support.running_gateway import given_up, until
from tests.support.transport_kinds import HTTP_KINDS, HttpKind, Listen


class Network:
    """Which addresses hang, and which were tried in which order; all others are the real loopback."""

    def __init__(self) -> None:
        self.hanging: set[str] = set()
        self.tried: list[str] = []
        self.open: set[socket.socket] = set()


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    monkeypatch.setattr("app.engines.http.dialer.STAGGER_SECONDS", 0.01)
    network = Network()
    loop_type = asyncio.SelectorEventLoop
    connect = loop_type.sock_connect

    async def sock_connect(loop: Any, sock: socket.socket, address: tuple[str, int]) -> None:
        network.tried.append(address[0])
        if address[0] in network.hanging:
            network.open.add(sock)
            await asyncio.Event().wait()
        await connect(loop, sock, address)

    monkeypatch.setattr(loop_type, "sock_connect", sock_connect)
    yield network
    assert all(sock.fileno() == -1 for sock in network.open), "a socket was left open"


def _resolver(*addresses: str) -> Resolver:
    def look_up(host: str, port: Any, **hints: Any) -> list[tuple[Any, ...]]:
        return [(0, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]

    return Resolver(lookup=look_up)


@pytest.fixture(params=HTTP_KINDS, ids=lambda kind: kind.name)
def either(request: pytest.FixtureRequest) -> HttpKind:
    return request.param


async def test_hanging_addresses_do_not_hide_the_engine(listen: Listen, network: Network, either: HttpKind) -> None:
    """Two of three addresses hang: the first call is answered, and later connections begin with the one that works."""
    network.hanging = {"10.0.0.1", "10.0.0.2"}
    peer = await listen(echo)
    resolver = _resolver("10.0.0.1", "10.0.0.2", "127.0.0.1")
    transport = either.to(peer.address("engine.test"), tuned={"resolver": resolver})
    assert (await transport.call("retrieve", {"n": 1})).result == {"n": 1}
    assert network.tried == ["10.0.0.1", "10.0.0.2", "127.0.0.1"]
    network.tried.clear()
    await transport.call("index/add", {}, idempotent=False)  # opens a connection
    assert network.tried == ["127.0.0.1"]
    await transport.close()


async def test_a_refusing_address_is_passed_over_at_once(listen: Listen, network: Network) -> None:
    """An address that refuses costs no head start of its own."""
    peer = await listen(echo)
    transport = HttpTransport(
        EngineEntry(id="docs", url=peer.address("engine.test")),
        EnginesSettings(),
        resolver=_resolver("::1", "127.0.0.1"),
    )
    assert (await transport.call("retrieve", {})).attempts == 1
    assert network.tried == ["::1", "127.0.0.1"]
    await transport.close()


async def test_families_take_turns(listen: Listen, network: Network) -> None:
    """A family without a route delays the other by one address only (RFC 8305 §4)."""
    network.hanging = {"fd00::1", "fd00::2"}
    peer = await listen(echo)
    dialer = Dialer(Endpoint.of(peer.address("engine.test")), _resolver("fd00::1", "fd00::2", "127.0.0.1"), 2000)
    assert await dialer.addresses() == ("fd00::1", "127.0.0.1", "fd00::2")
    protocol = await dialer.connect(await dialer.addresses(), asyncio.Protocol, None)
    assert type(protocol) is asyncio.Protocol
    assert network.tried == ["fd00::1", "127.0.0.1"]
    assert await dialer.addresses() == ("127.0.0.1", "fd00::2", "fd00::1")


async def test_who_gives_up_leaves_what_hung_for_last(network: Network) -> None:
    """A caller in a hurry learns for the next one; nothing stays open."""
    network.hanging = {"10.0.0.1", "10.0.0.2"}
    dialer = Dialer(Endpoint.of("http://engine.test/rcp"), _resolver("10.0.0.1", "10.0.0.2", "10.0.0.3"), 2000)
    addresses = await dialer.addresses()
    await given_up(dialer.connect(addresses[:2], asyncio.Protocol, None), lambda: len(network.tried) == 2)
    assert await dialer.addresses() == ("10.0.0.3", "10.0.0.1", "10.0.0.2")


async def test_connecting_is_bounded_below_the_timeout(network: Network) -> None:
    """When every address hangs it is a failure to connect, before the call times out."""
    network.hanging = {"10.0.0.1"}
    dialer = Dialer(Endpoint.of("http://engine.test/rcp"), _resolver("10.0.0.1"), 40)
    with pytest.raises(ConnectFailed, match=r"engine\.test:80: no connection within 0\.03 s"):
        await dialer.connect(await dialer.addresses(), asyncio.Protocol, None)
    await until(lambda: all(sock.fileno() == -1 for sock in network.open))
