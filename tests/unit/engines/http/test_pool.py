"""The pool: which connection is used next, which no more, and how a new one comes about."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.engines.http.dialer import Dialer
from app.engines.http.endpoint import Endpoint
from app.engines.http.pool import ConnectionPool
from app.engines.http.resolver import Resolver
from app.protocol.errors import ConnectFailed
from app.settings.schema import EnginesSettings
from tests.support.raw_peer import Line, RawPeer, echo, http_answer
from tests.support.running_gateway import given_up, until
from tests.support.transport_kinds import Listen


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Resolves(Resolver):
    """A resolver by table, which notes what it is told."""

    def __init__(self, *addresses: str) -> None:
        super().__init__(lookup=self._find)
        self.table = list(addresses)
        self.asked = 0

    def _find(self, host: str, port: Any, **hints: Any) -> list[tuple[Any, ...]]:
        self.asked += 1
        return [(2, 1, 6, "", (address, 0)) for address in self.table]


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Pools:
    """Makes pools and closes them at the end."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.made: list[ConnectionPool] = []

    def __call__(self, url: str, resolver: Resolver | None = None, **settings: Any) -> ConnectionPool:
        endpoint = Endpoint.of(url)
        dialer = Dialer(endpoint, resolver or Resolver(), 2000)
        pool = ConnectionPool(endpoint, EnginesSettings(**settings), lambda: None, dialer, self.clock)
        self.made.append(pool)
        return pool


@pytest.fixture
async def pools(clock: Clock) -> AsyncIterator[Pools]:
    pools = Pools(clock)
    yield pools
    for pool in pools.made:
        await pool.close()


async def test_newest_is_used_first(listen: Listen, pools: Pools) -> None:
    """Idle connections are a stack, so that those too many grow old and go."""
    pool = pools((await listen(echo)).url)
    first, second = await pool.dial(), await pool.dial()
    assert pool.take() is None
    pool.give(first)
    pool.give(second)
    assert [pool.take(), pool.take(), pool.take()] == [second, first, None]


async def test_idle_expiry_at_the_next_use(listen: Listen, pools: Pools, clock: Clock) -> None:
    """A connection that was idle for too long is closed instead of used."""
    peer = await listen(echo)
    pool = pools(peer.url, idle_seconds=30.0)
    pool.give(await pool.dial())
    clock.now += 29.9
    connection = pool.take()
    assert connection is not None
    pool.give(connection)
    clock.now += 30
    assert pool.take() is None
    await until(lambda: peer.open_lines == 0)


async def test_idle_expiry_without_any_use(listen: Listen, pools: Pools, clock: Clock) -> None:
    """One timer per pool closes idle connections when nobody comes; those used since then stay."""
    peer = await listen(echo)
    pool = pools(peer.url, idle_seconds=0.02)
    old, young = await pool.dial(), await pool.dial()
    pool.give(old)
    clock.now += 0.015
    pool.give(young)
    clock.now += 0.01
    await until(lambda: old.closed)
    assert not young.closed
    clock.now += 0.02
    await until(lambda: peer.open_lines == 0)
    await until(lambda: repr(pool) == f"<ConnectionPool 127.0.0.1:{peer.port} 0 idle of 0, 0 dialling, epoch 0>")


async def test_age_limit(listen: Listen, pools: Pools, clock: Clock) -> None:
    """A connection older than the limit is not used again, however busy it was."""
    peer = await listen(echo)
    pool = pools(peer.url, idle_seconds=50.0, max_connection_age_seconds=100.0)
    connection = await pool.dial()
    for _ in range(3):
        pool.give(connection)
        clock.now += 33
        assert pool.take() is connection
    clock.now += 1
    pool.give(connection)
    assert pool.take() is None
    await until(lambda: peer.open_lines == 0)


async def test_fin_on_an_idle_connection(listen: Listen, pools: Pools) -> None:
    """A connection that the peer closes while idle is dropped at once."""

    async def script(line: Line) -> None:
        await hang_up.wait()

    hang_up = asyncio.Event()
    pool = pools((await listen(script)).url)
    pool.give(await pool.dial())
    assert "1 idle of 1" in repr(pool)
    hang_up.set()
    await until(lambda: "0 idle of 0" in repr(pool))


async def test_bytes_on_an_idle_connection(listen: Listen, pools: Pools) -> None:
    """A connection on which something arrives unasked is closed at once."""

    async def script(line: Line) -> None:
        await speak.wait()
        line.send(http_answer(b"bye", 408))
        await line.until_ended()

    speak = asyncio.Event()
    peer = await listen(script)
    pool = pools(peer.url)
    pool.give(await pool.dial())
    speak.set()
    await until(lambda: "0 idle of 0" in repr(pool))
    await until(lambda: peer.open_lines == 0)


async def test_addresses_are_tried_in_order(listen: Listen, pools: Pools) -> None:
    """When the first address refuses, the next is taken, and from then on it is the first to be tried."""
    peer = await listen(echo)
    resolver = Resolves("::1", "127.0.0.1")
    pool = pools(peer.address("engine.test"), resolver)
    await pool.dial()
    assert await resolver.addresses("engine.test") == ("127.0.0.1", "::1")


async def test_engine_that_moved(listen: Listen, pools: Pools, clock: Clock) -> None:
    """After a failed connection the name is looked up again and connections to the old place are not used any more."""
    peer = await listen(echo)
    resolver = Resolves("127.0.0.1")
    pool = pools(peer.address("engine.test"), resolver)
    idle, busy = await pool.dial(), await pool.dial()
    pool.give(idle)
    resolver.forget("engine.test")
    resolver.table = ["::1"]
    with pytest.raises(ConnectFailed, match="Connection refused"):
        await pool.dial()
    assert idle.closed
    assert not busy.closed
    pool.give(busy)
    assert busy.closed
    resolver.table = ["127.0.0.1"]
    await pool.dial()
    assert resolver.asked == 3


async def test_unresolved_name_costs_no_connection(listen: Listen, pools: Pools) -> None:
    """A name server that fails says nothing about the connections that are open."""
    peer = await listen(echo)
    resolver = Resolves("127.0.0.1")
    pool = pools(peer.address("engine.test"), resolver)
    idle = await pool.dial()
    pool.give(idle)
    resolver.forget("engine.test")
    resolver.table = []
    with pytest.raises(ConnectFailed, match="no address"):
        await pool.dial()
    assert pool.take() is idle


async def test_address_that_hangs_is_tried_last(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that gives up on a connection that hangs makes the next one try another address first."""
    tried: list[str] = []

    async def hang(loop: Any, sock: Any, address: tuple[str, int]) -> None:
        tried.append(address[0])
        await asyncio.Event().wait()

    monkeypatch.setattr(type(asyncio.get_running_loop()), "sock_connect", hang)
    pool = pools("http://engine.test/rcp", Resolves("10.0.0.1", "10.0.0.2"))
    for times in (1, 2):
        await given_up(pool.dial(), lambda times=times: len(tried) == times)  # type: ignore[misc]
    assert tried == ["10.0.0.1", "10.0.0.2"]


async def test_closed_pool_connects_no_more(listen: Listen, pools: Pools) -> None:
    """After close, what is given back is closed and nothing new is opened."""
    peer = await listen(echo)
    pool = pools(peer.url)
    busy = await pool.dial()
    await pool.close()
    pool.give(busy)
    assert pool.take() is None
    with pytest.raises(ConnectFailed, match="closed"):
        await pool.dial()
    await until(lambda: peer.open_lines == 0)
    assert repr(pool) == f"<ConnectionPool 127.0.0.1:{peer.port} closed, 0 dialling, epoch 0>"


async def test_close_ends_a_lookup_that_hangs(pools: Pools) -> None:
    """Closing does not wait for a name server."""

    class Hangs(Resolver):
        async def addresses(self, host: str) -> tuple[str, ...]:
            await asyncio.Event().wait()
            return ()

    pool = pools("http://engine.test/rcp", Hangs())
    dialling = asyncio.create_task(pool.dial())
    await until(lambda: "1 dialling" in repr(pool))
    await pool.close()
    with pytest.raises(ConnectFailed, match="closed"):
        await dialling


async def test_cancelled_dial_stays_cancelled(pools: Pools) -> None:
    """A caller that is cancelled while the pool closes is cancelled, not failed."""

    class Hangs(Resolver):
        async def addresses(self, host: str) -> tuple[str, ...]:
            await asyncio.Event().wait()
            return ()

    pool = pools("http://engine.test/rcp", Hangs())
    dialling = asyncio.create_task(pool.dial())
    await until(lambda: "1 dialling" in repr(pool))
    dialling.cancel()
    await pool.close()
    with pytest.raises(asyncio.CancelledError):
        await dialling


async def test_trust_that_cannot_be_had(listen: Listen, clock: Clock) -> None:
    """A TLS context that cannot be built fails the dial before any connection is opened."""
    peer: RawPeer = await listen(echo)

    def tls() -> ssl.SSLContext:
        raise ConnectFailed("no context")

    endpoint = Endpoint.of(peer.url)
    pool = ConnectionPool(endpoint, EnginesSettings(), tls, Dialer(endpoint, Resolver(), 2000), clock)
    with pytest.raises(ConnectFailed):
        await pool.dial()
    await pool.close()
    assert not peer.lines
