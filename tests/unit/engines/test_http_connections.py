"""What goes over the wire, which connections are kept, replaced, left and closed: for every HTTP client."""

import asyncio
import gc
import socket
from contextlib import AsyncExitStack, suppress

import pytest

from app.protocol.errors import (
    BadStatus,
    ConnectFailed,
    ProtocolViolation,
    Refused,
)
from tests.support.raw_peer import (
    Line,
    MutePeer,
    RawRequest,
    answering,
    echo,
    http_answer,
    rpc_answer,
    rpc_error,
)
from tests.support.running_gateway import given_up, until
from tests.support.transport_kinds import HttpKind, Listen, Reach


async def test_request_holds_what_it_should_and_nothing_else(
    listen: Listen, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Path, query, body and headers are those of the registry entry; nothing comes from the environment."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    peer = await listen(echo)
    transport = reach(peer.address(path="/a/rcp/?key=x"), headers={"Authorization": "Bearer t"})
    await transport.call("x-acme/rank it?", {"q": 1})
    [request] = peer.requests
    assert request.head.startswith(b"POST /a/rcp/x-acme/rank%20it%3F?key=x HTTP/1.1\r\n")
    assert request.message == {"jsonrpc": "2.0", "id": 1, "method": "x-acme/rank it?", "params": {"q": 1}}
    assert request.headers == {
        "host": f"127.0.0.1:{peer.port}",
        "content-type": "application/json",
        "accept": "application/json",
        "content-length": str(len(request.body)),
        "authorization": "Bearer t",
    }


@pytest.mark.parametrize("method", ["../admin", "x/../../y", "", "a//b", "."])
async def test_method_that_climbs_out_of_the_path(listen: Listen, reach: Reach, method: str) -> None:
    """A method name that would lead elsewhere on the engine's host is refused, and nothing is sent."""
    peer = await listen(echo)
    with pytest.raises(Refused):
        await reach(peer).call(method, {})
    assert not peer.lines


async def test_cookies_are_not_kept(listen: Listen, reach: Reach) -> None:
    """A cookie that an engine sets does not come back to it, by host name either."""

    def bake(request: RawRequest) -> bytes:
        return http_answer(rpc_answer(request.id, {}), headers=[("Set-Cookie", "tenant=a; Path=/")])

    peer = await listen(answering(bake))
    transport = reach(peer.address("localhost"))
    for _ in range(2):
        await transport.call("retrieve", {})
    assert len(peer.requests) == 2
    assert not any("cookie" in request.headers for request in peer.requests)


async def test_redirect_is_not_followed(listen: Listen, reach: Reach) -> None:
    """The address that a redirect names is never asked."""
    elsewhere = await listen(echo)
    peer = await listen(answering(lambda request: http_answer(b"", 307, [("Location", elsewhere.url)])))
    with pytest.raises(BadStatus):
        await reach(peer).call("retrieve", {})
    assert not elsewhere.lines


async def test_connection_is_kept(listen: Listen, reach: Reach) -> None:
    """Calls one after the other share a connection, also after an error of the engine."""
    peer = await listen(
        answering(
            lambda request: http_answer(
                rpc_error(request.id, -32602, "no") if request.id % 2 else rpc_answer(request.id, {})
            )
        )
    )
    transport = reach(peer)
    for _ in range(6):
        with suppress(Refused):
            await transport.call("retrieve", {})
    assert len(peer.lines) == 1


async def test_ids_are_unique(listen: Listen, reach: Reach) -> None:
    """Every request has an integer id of its own."""
    peer = await listen(echo)
    transport = reach(peer)
    await asyncio.gather(*(transport.call("retrieve", {}) for _ in range(10)))
    ids = [request.id for request in peer.requests]
    assert len(set(ids)) == 10
    assert all(type(one) is int for one in ids)


async def _serves_one(line: Line) -> None:
    """One answer per connection; hangs up when asked again."""
    if request := await line.request():
        line.send(http_answer(rpc_answer(request.id, request.message["params"])))
        await line.request()


async def test_dead_connection_is_replaced_once(listen: Listen, reach: Reach) -> None:
    """A kept connection that dies before any byte of the answer: asked again on a fresh one, attempts 2."""
    peer = await listen(_serves_one)
    transport = reach(peer)
    assert (await transport.call("retrieve", {"n": 1})).attempts == 1
    reply = await transport.call("retrieve", {"n": 2})
    assert (reply.result, reply.attempts) == ({"n": 2}, 2)
    assert [line.number for line in peer.lines] == [1, 2]


async def test_reset_connection_is_replaced_once(listen: Listen, reach: Reach) -> None:
    """The same when it dies by a TCP reset."""

    async def script(line: Line) -> None:
        await _serves_one(line)
        line.reset()

    transport = reach(await listen(script))
    await transport.call("retrieve", {})
    assert (await transport.call("retrieve", {})).attempts == 2


async def test_replacement_that_dies_is_the_end(listen: Listen, reach: Reach) -> None:
    """There is exactly one retry, and the error counts both attempts."""

    async def script(line: Line) -> None:
        if line.number == 1:
            await _serves_one(line)
        else:
            await line.request()

    peer = await listen(script)
    transport = reach(peer)
    await transport.call("retrieve", {})
    with pytest.raises(ProtocolViolation) as caught:
        await transport.call("retrieve", {})
    assert caught.value.attempts == 2
    assert len(peer.requests) == 3


async def test_several_dead_connections_need_one_retry(listen: Listen, reach: Reach) -> None:
    """With several dead connections in the pool the retry does not pick another of them."""
    gathered = asyncio.Event()

    async def script(line: Line) -> None:
        if request := await line.request():
            if len(line.peer.lines) >= 4:
                gathered.set()
            await gathered.wait()
            line.send(http_answer(rpc_answer(request.id, {})))
            await line.request()

    peer = await listen(script)
    transport = reach(peer)
    await asyncio.gather(*(transport.call("retrieve", {}) for _ in range(4)))
    assert (await transport.call("retrieve", {})).attempts == 2


async def test_what_must_not_run_twice_gets_a_fresh_connection(listen: Listen, reach: Reach) -> None:
    """A kept connection may be dead unknown to us, so a call that is not idempotent never goes over one."""
    peer = await listen(_serves_one)
    transport = reach(peer)
    await transport.call("retrieve", {})
    assert (await transport.call("index/add", {}, idempotent=False)).attempts == 1
    assert len(peer.requests) == len(peer.lines) == 2


async def test_no_retry_of_what_must_not_run_twice(listen: Listen, reach: Reach) -> None:
    """A call that is not idempotent is not sent again."""

    async def script(line: Line) -> None:
        if line.number == 1:
            await _serves_one(line)
        else:
            await line.request()

    peer = await listen(script)
    transport = reach(peer)
    await transport.call("retrieve", {})
    with pytest.raises(ProtocolViolation) as caught:
        await transport.call("index/add", {}, idempotent=False)
    assert caught.value.attempts == 1
    assert len(peer.requests) == 2


@pytest.mark.parametrize(
    "part", [b"H", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"]
)
async def test_no_retry_after_the_first_byte(listen: Listen, reach: Reach, part: bytes) -> None:
    """A connection that dies after some byte of the answer is a failure, not a reason to ask again."""

    async def script(line: Line) -> None:
        if request := await line.request():
            line.send(http_answer(rpc_answer(request.id, {})))
        if await line.request():
            line.send(part)

    peer = await listen(script)
    transport = reach(peer)
    await transport.call("retrieve", {})
    with pytest.raises(ProtocolViolation):
        await transport.call("retrieve", {})
    assert len(peer.requests) == 2


async def test_no_retry_on_a_first_connection(listen: Listen, reach: Reach) -> None:
    """A fresh connection that dies is the engine's failure."""

    async def script(line: Line) -> None:
        await line.request()

    peer = await listen(script)
    with pytest.raises(ProtocolViolation):
        await reach(peer).call("retrieve", {})
    assert len(peer.requests) == 1


async def test_dripping_peer_is_left(listen: Listen, reach: Reach) -> None:
    """A peer that drips bytes is left when the caller gives up; its connection is closed and not used again."""

    async def script(line: Line) -> None:
        request = await line.request()
        if request is None or line.number > 1:
            line.send(http_answer(rpc_answer(request.id if request else 0, {})))
            return
        ended = asyncio.create_task(line.until_ended())
        line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while not ended.done():
            line.send(b"x")
            await asyncio.sleep(0.01)

    peer = await listen(script)
    transport = reach(peer)
    await given_up(transport.call("retrieve", {}), lambda: len(peer.requests) == 1)
    await until(lambda: peer.open_lines == 0)
    assert (await transport.call("retrieve", {})).result == {}
    assert len(peer.lines) == 2


async def test_thousands_of_cancelled_calls(reach: Reach, stack: AsyncExitStack) -> None:
    """3,600 calls cancelled at odd moments through a gate of 4: no connection is left, ten good calls follow."""
    peer = await stack.enter_async_context(MutePeer())
    transport = reach(peer.url)
    gate = asyncio.Semaphore(4)

    async def one(n: int) -> None:
        async with gate:
            call = asyncio.create_task(transport.call("retrieve", {}))
            for _ in range(n % 9):
                await asyncio.sleep(0)
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call

    await asyncio.gather(*(one(n) for n in range(3600)))
    await until(lambda: peer.open_lines == 0)
    assert peer.taken > 300  # many had got as far as the wire
    peer.awake = True
    for n in range(10):
        reply = await transport.call("retrieve", {"n": n})
        assert (reply.result, reply.attempts) == ({"n": n}, 1)
    assert peer.open_lines == 1


async def test_close_in_the_middle_leaves_nothing(client: HttpKind, listen: Listen) -> None:
    """Closing with calls mid-body and connecting: each ends as closed, and nothing is left to complain later."""

    async def script(line: Line) -> None:
        await line.request()
        line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nx")
        await line.until_ended()

    peer = await listen(script)
    transport = client.to(peer.url)
    calls = [asyncio.create_task(transport.call("retrieve", {})) for _ in range(5)]
    await until(lambda: len(peer.requests) == 5)
    calls += [asyncio.create_task(transport.call("retrieve", {})) for _ in range(2)]
    await asyncio.sleep(0)
    await transport.close()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [(type(outcome), str(outcome)) for outcome in outcomes] == [(ConnectFailed, "closed")] * 7
    await until(lambda: peer.open_lines == 0)
    del transport, calls, outcomes
    gc.collect()


async def test_close_releases_idle_connections(client: HttpKind, listen: Listen) -> None:
    """Closing hangs up on the idle connections at once."""
    peer = await listen(echo)
    transport = client.to(peer.url)
    await asyncio.gather(*(transport.call("retrieve", {}) for _ in range(3)))
    await transport.close()
    await until(lambda: peer.open_lines == 0)


async def test_ipv6(listen: Listen, reach: Reach) -> None:
    """An engine at [::1] is reached, and named so in the Host header."""
    peer = await listen(echo, host="::1")
    assert (await reach(peer).call("retrieve", {"n": 6})).result == {"n": 6}
    assert peer.requests[0].headers["host"] == f"[::1]:{peer.port}"


async def test_refused_connection(reach: Reach) -> None:
    """Nobody listens: class connect, with host and port and nothing else of the URL."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        with pytest.raises(ConnectFailed) as caught:
            await reach(f"http://127.0.0.1:{port}/secret/path?key=SECRET").call("retrieve", {})
    assert caught.value.message == f"127.0.0.1:{port}: Connection refused"


async def test_unknown_name(reach: Reach) -> None:
    """A name that does not exist: class connect, with the name."""
    with pytest.raises(ConnectFailed, match=r"no-such-engine\.invalid"):
        await reach("http://no-such-engine.invalid:80/rcp?key=SECRET").call("retrieve", {})
