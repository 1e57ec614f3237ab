"""The httpx2 transport where it has ways of its own: generations of connections, addresses, half-open TLS."""

import asyncio
import socket
from typing import Any

import pytest

from app.engines.httpx_client import HttpxTransport
from app.engines.resolver import Resolver
from app.protocol.errors import ConnectFailed, ProtocolViolation
from app.settings.schema import EngineEntry, EnginesSettings
from tests.support.raw_peer import Line, answering, echo, http_answer, rpc_answer
from tests.support.running_gateway import given_up, until
from tests.support.transport_kinds import Listen


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _transport(
    url: str, clock: Clock | None = None, resolver: Resolver | None = None, **settings: Any
) -> HttpxTransport:
    entry = EngineEntry(id="docs", url=url, client="httpx")
    return HttpxTransport(entry, EnginesSettings(**settings), resolver=resolver, clock=clock or Clock())


def _resolver(table: list[str], asked: list[str]) -> Resolver:
    def look_up(host: str, port: Any, **hints: Any) -> list[tuple[Any, ...]]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in table]

    return Resolver(lookup=look_up)


async def test_age_limit(listen: Listen) -> None:
    """Connections older than the limit are closed and replaced."""
    clock, peer = Clock(), await listen(echo)
    transport = _transport(peer.url, clock, max_connection_age_seconds=100.0)
    for now in (1000, 1099, 1100, 1199):
        clock.now = now
        await transport.call("retrieve", {})
    assert len(peer.lines) == 2
    await until(lambda: peer.open_lines == 1)
    await transport.close()
    await until(lambda: peer.open_lines == 0)


async def test_age_limit_spares_calls_under_way(listen: Listen) -> None:
    """A call that is under way when its connection grows too old is answered; then the connection goes."""
    answer = asyncio.Event()

    async def script(line: Line) -> None:
        while request := await line.request():
            if line.number == 1:
                await answer.wait()
            line.send(http_answer(rpc_answer(request.id, {"line": line.number})))

    clock, peer = Clock(), await listen(script)
    transport = _transport(peer.url, clock, max_connection_age_seconds=100.0)
    slow = asyncio.create_task(transport.call("retrieve", {}))
    await until(lambda: len(peer.requests) == 1)
    clock.now += 100
    assert (await transport.call("retrieve", {})).result == {"line": 2}
    answer.set()
    assert (await slow).result == {"line": 1}
    await until(lambda: peer.open_lines == 1)
    await transport.close()


async def test_idle_expiry(listen: Listen) -> None:
    """A connection that was idle for too long is not used again."""
    peer = await listen(echo)
    transport = _transport(peer.url, idle_seconds=0.01)
    await transport.call("retrieve", {})
    await asyncio.sleep(0.02)
    assert (await transport.call("retrieve", {})).attempts == 1
    assert len(peer.lines) == 2
    await transport.close()


async def test_nonsense_closes_its_connection(listen: Listen) -> None:
    """After another request's id nothing is asked over that connection again."""
    peer = await listen(answering(lambda request: http_answer(rpc_answer(request.id + 1, {}))))
    transport = _transport(peer.url)
    for _ in range(2):
        with pytest.raises(ProtocolViolation):
            await transport.call("retrieve", {})
    assert len(peer.lines) == 2
    await until(lambda: peer.open_lines == 0)
    await transport.close()


async def test_our_resolver_is_asked(listen: Listen) -> None:
    """Names go through the resolver that is handed in, and its addresses are tried in turn."""
    asked: list[str] = []
    peer = await listen(echo)
    transport = _transport(peer.address("engine.test"), resolver=_resolver(["::1", "127.0.0.1"], asked))
    assert (await transport.call("retrieve", {"n": 1})).result == {"n": 1}
    assert asked == ["engine.test"]
    assert peer.requests[0].headers["host"] == f"engine.test:{peer.port}"
    await transport.close()


async def test_engine_that_moved(listen: Listen) -> None:
    """When no address answers, the connections to the old one are not used again."""
    table, asked = ["127.0.0.1"], list[str]()
    held = asyncio.Event()

    async def script(line: Line) -> None:
        while request := await line.request():
            if request.message["method"] == "ping":
                await held.wait()
            line.send(http_answer(rpc_answer(request.id, {})))

    peer = await listen(script)
    resolver = _resolver(table, asked)
    transport = _transport(peer.address("engine.test"), resolver=resolver)
    held_call = asyncio.create_task(transport.call("ping", {}))
    await until(lambda: len(peer.requests) == 1)
    table[:] = ["::1"]
    resolver.forget("engine.test")
    with pytest.raises(ConnectFailed, match=r"engine\.test"):
        await transport.call("retrieve", {})
    held.set()
    await held_call
    await until(lambda: peer.open_lines == 0)
    table[:] = ["127.0.0.1"]
    assert (await transport.call("retrieve", {})).attempts == 1
    assert asked == ["engine.test"] * 3
    await transport.close()


async def test_cancelled_while_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that gives up on a connection that hangs makes the next one try another address first."""
    tried: list[str] = []

    async def hang(loop: Any, protocol: Any, host: str, port: int, **kwargs: Any) -> None:
        tried.append(host)
        await asyncio.Event().wait()

    monkeypatch.setattr(type(asyncio.get_running_loop()), "create_connection", hang)
    transport = _transport("http://engine.test/rcp", resolver=_resolver(["10.0.0.1", "10.0.0.2"], []))
    for times in (1, 2):
        await given_up(transport.call("retrieve", {}), lambda times=times: len(tried) == times)  # type: ignore[misc]
    assert tried == ["10.0.0.1", "10.0.0.2"]
    await transport.close()


async def test_state_is_readable(listen: Listen) -> None:
    """An incident shows the engine, where it is and how many calls are under way, and no more of the URL."""
    peer = await listen(echo)
    transport = _transport(peer.address(path="/SECRET?key=SECRET"))
    await transport.call("retrieve", {})
    assert repr(transport).startswith(f"<HttpxTransport docs 127.0.0.1:{peer.port} 0 calls under way, HTTP/")
    assert "0 in flight" in repr(transport._wire)
    assert "SECRET" not in repr(transport._wire)
    await transport.close()
    assert "closed" in repr(transport)
