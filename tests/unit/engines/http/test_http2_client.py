"""HTTP/2 to engines: one connection for many calls, of which none can hurt another."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("h2", reason="needs the extra http2")

from h2.errors import ErrorCodes

from app.engines.http.http2_client import Http2Transport
from app.engines.http.resolver import Resolver
from app.protocol.errors import ConnectFailed, ProtocolViolation, ResponseTooLarge
from app.settings.schema import EngineEntry, EnginesSettings
from app.telemetry.tracing import OUTGOING, Trace
from tests.support.authority import Authority
from tests.support.http2_peer import Http2Peer, PeerStream, Script
from tests.support.raw_peer import RawPeer, echo, rpc_answer
from tests.support.running_gateway import given_up, until

Serve = Callable[..., Awaitable[Http2Peer]]
Reach = Callable[..., Http2Transport]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def serve(stack: Any, authority: Authority) -> Serve:
    """Start an HTTP/2 peer with a script."""

    async def serve(script: Script, **kwargs: Any) -> Http2Peer:
        return await stack.enter_async_context(Http2Peer(authority, script, **kwargs))

    return serve


@pytest.fixture
async def reach(authority: Authority, clock: Clock) -> AsyncIterator[Reach]:
    """A transport to an URL, closed at the end."""
    made: list[Http2Transport] = []

    def reach(url: str, *, resolver: Resolver | None = None, **settings: Any) -> Http2Transport:
        entry = EngineEntry(id="docs", url=url, client="httpx", tls=authority.trusted, timeout_ms=20_000)
        made.append(Http2Transport(entry, EnginesSettings(**settings), resolver=resolver, clock=clock))
        return made[-1]

    yield reach
    for transport in made:
        await transport.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def answers(stream: PeerStream) -> None:
    """Echo the params."""
    await stream.answer(rpc_answer(stream.id, stream.message["params"]))


def _streams(peer: Http2Peer) -> list[tuple[int, int]]:
    """(number of the connection, number of the stream) of each request."""
    return [(peer.connections.index(stream.connection), stream.number) for stream in peer.requests]


async def test_request_and_connection(serve: Serve, reach: Reach) -> None:
    """Path, headers and trace context are those of HTTP/1.1; calls share one connection."""
    peer = await serve(answers)
    transport = reach(peer.url)
    OUTGOING.set(Trace(b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"))
    replies = await asyncio.gather(*(transport.call("x-acme/rank it?", {"n": n}) for n in range(20)))
    assert [(reply.result, reply.attempts) for reply in replies] == [({"n": n}, 1) for n in range(20)]
    assert len(peer.connections) == 1
    request = peer.requests[0]
    assert request.headers == {
        ":method": "POST",
        ":scheme": "https",
        ":authority": f"localhost:{peer.port}",
        ":path": "/rcp/x-acme/rank%20it%3F",
        "content-type": "application/json",
        "accept": "application/json",
        "content-length": str(len(request.body)),
        "traceparent": f"00-{'a' * 32}-{'b' * 16}-01",
    }
    assert "HTTP/2" in repr(transport)


async def test_engine_without_http2(serve: Serve, reach: Reach, authority: Authority) -> None:
    """An engine that chooses HTTP/1.1 is asked over the connection that was opened to find out."""
    context = authority.server("localhost")
    context.set_alpn_protocols(["http/1.1"])
    async with RawPeer(echo, tls=context) as peer:
        transport = reach(peer.address("localhost"))
        for n in range(3):
            assert (await transport.call("retrieve", {"n": n})).result == {"n": n}
        assert len(peer.lines) == 1
        assert transport.send("retrieve", {}) is not None
        assert "HTTP/1.1" in repr(transport)
        await transport.close()


# ── one call cannot hurt another ──────────────────────────────────────────────────────────────────────────────────────


async def test_cancelled_call_resets_its_stream_alone(serve: Serve, reach: Reach) -> None:
    """The engine hears of it (RST_STREAM CANCEL) and can stop; the connection goes on."""

    async def script(stream: PeerStream) -> None:
        if stream.message["params"].get("slow"):
            await asyncio.Event().wait()
        await answers(stream)

    peer = await serve(script)
    transport = reach(peer.url)
    other = asyncio.create_task(transport.call("retrieve", {"slow": True}))
    await until(lambda: len(peer.requests) == 1)
    await given_up(transport.call("retrieve", {"slow": True}), lambda: len(peer.requests) == 2)
    await until(lambda: peer.requests[1].reset_by_client is not None)
    assert [stream.reset_by_client for stream in peer.requests] == [None, int(ErrorCodes.CANCEL)]
    assert (await transport.call("retrieve", {"n": 1})).attempts == 1
    assert len(peer.connections) == 1
    other.cancel()


async def test_windows_of_cancelled_answers_are_given_back(serve: Serve, reach: Reach) -> None:
    """After 20 answers of 1 MB that were given up half-way, later ones arrive over the same connection."""
    large, begun = 1_000_000, 0

    async def script(stream: PeerStream) -> None:
        nonlocal begun
        if stream.message["params"].get("hangs"):
            stream.head()
            await stream.data(bytes(large), end=False)
            begun += 1
            await asyncio.Event().wait()
        await stream.answer(rpc_answer(stream.id, {"text": "x" * 3 * large}))

    peer = await serve(script)
    transport = reach(peer.url)
    for n in range(1, 21):
        await given_up(transport.call("retrieve", {"hangs": True}), lambda n=n: begun == n)  # type: ignore[misc]
    for _ in range(3):
        assert len((await transport.call("retrieve", {})).result["text"]) == 3 * large
    assert len(peer.connections) == 1


async def test_cancels_next_to_innocent_calls(serve: Serve, reach: Reach) -> None:
    """500 calls succeed next to as many that are cancelled at odd moments, all over one connection."""

    async def script(stream: PeerStream) -> None:
        await stream.answer(rpc_answer(stream.id, {"text": "x" * stream.message["params"]["size"]}))

    peer = await serve(script)
    transport = reach(peer.url)
    await transport.call("ping", {"size": 1})

    async def innocent(n: int) -> bool:
        reply = await transport.call("retrieve", {"size": n * 40, "padding": "x" * 20_000})
        return reply.attempts == 1 and len(reply.result["text"]) == n * 40

    async def cancelled(n: int) -> None:
        call = asyncio.create_task(transport.call("retrieve", {"size": 200_000, "padding": "x" * 100_000}))
        for _ in range(n % 13):
            await asyncio.sleep(0)
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call

    for start in range(0, 500, 20):
        batch = range(start, start + 20)
        outcomes = await asyncio.gather(*map(innocent, batch), *map(cancelled, batch))
        assert all(outcomes[:20])
    assert len(peer.connections) == 1


async def test_too_large_answer_costs_its_stream_alone(serve: Serve, reach: Reach) -> None:
    """An answer above the limit is reset; the connection is kept."""

    async def script(stream: PeerStream) -> None:
        await stream.answer(rpc_answer(stream.id, {"text": "x" * stream.message["params"]["size"]}))

    peer = await serve(script)
    transport = reach(peer.url, max_response_bytes=50_000)
    with pytest.raises(ResponseTooLarge):
        await transport.call("retrieve", {"size": 100_000})
    await transport.call("retrieve", {"size": 1})
    assert len(peer.connections) == 1


async def test_engine_that_resets_a_stream(serve: Serve, reach: Reach) -> None:
    """A stream that the engine resets fails with the name of its error; the next call is answered."""

    async def script(stream: PeerStream) -> None:
        if stream.number == 1:
            stream.refuse(ErrorCodes.INTERNAL_ERROR)
        else:
            await answers(stream)

    peer = await serve(script)
    transport = reach(peer.url)
    with pytest.raises(ProtocolViolation, match="INTERNAL_ERROR"):
        await transport.call("retrieve", {})
    await transport.call("retrieve", {})
    assert len(peer.connections) == 1


async def test_limit_of_streams(serve: Serve, reach: Reach) -> None:
    """No more streams are opened than the engine allows; a call that waits for one can be cancelled."""
    most, now = 0, 0
    go = asyncio.Event()

    async def script(stream: PeerStream) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await go.wait()
        now -= 1
        await answers(stream)

    peer = await serve(script, max_streams=2)
    transport = reach(peer.url)
    calls = [asyncio.create_task(transport.call("retrieve", {"n": n})) for n in range(20)]
    await until(lambda: len(peer.requests) == 2)
    calls[-1].cancel()
    go.set()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [outcome.result["n"] for outcome in outcomes[:-1]] == list(range(19))  # type: ignore[union-attr]
    assert (most, len(peer.connections)) == (2, 1)


async def test_large_request(serve: Serve, reach: Reach) -> None:
    """A request far beyond the engine's windows is sent as they open."""
    peer = await serve(answers)
    text = "é" * 700_000
    assert (await reach(peer.url).call("retrieve", {"text": text})).result == {"text": text}


# ── how a connection ends ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_goaway_lets_streams_finish_and_repeats_the_others(serve: Serve, reach: Reach) -> None:
    """Streams up to the last one of a GOAWAY are answered; those above it are asked again over another connection."""
    finish = asyncio.Event()

    async def script(stream: PeerStream) -> None:
        if stream.connection is peer.connections[0]:
            if stream.number <= 3:
                await finish.wait()
            else:
                return  # never answered
        await answers(stream)

    peer = await serve(script)
    transport = reach(peer.url)
    calls = []
    for n in range(4):
        calls.append(asyncio.create_task(transport.call("retrieve", {"n": n})))
        await until(lambda n=n: len(peer.requests) == n + 1)  # type: ignore[misc]
    peer.connections[0].go_away(3)
    for call in calls[2:]:
        assert (await call).attempts == 2
    assert (await transport.call("retrieve", {"n": 9})).attempts == 1
    finish.set()
    assert [(await call).attempts for call in calls] == [1, 1, 2, 2]
    await until(lambda: peer.connections[0].closed)
    assert [connection for connection, _ in _streams(peer)] == [0, 0, 0, 0, 1, 1, 1]


async def test_goaway_in_two_steps(serve: Serve, reach: Reach) -> None:
    """The graceful way of proxies: first "no more", then the real last stream; no question in flight is lost."""
    finish = asyncio.Event()

    async def script(stream: PeerStream) -> None:
        if stream.connection is peer.connections[0]:
            await finish.wait()
        await answers(stream)

    peer = await serve(script)
    transport = reach(peer.url)
    calls = [asyncio.create_task(transport.call("retrieve", {"n": n})) for n in range(5)]
    await until(lambda: len(peer.requests) == 5)
    peer.connections[0].go_away(2**31 - 1)
    later = asyncio.create_task(transport.call("retrieve", {"n": 5}))  # it may still begin over the first connection
    peer.connections[0].go_away(9)
    assert (await later).result == {"n": 5}
    finish.set()
    assert [(await call).attempts for call in calls] == [1] * 5
    assert len(peer.connections) == 2


async def test_refused_stream_is_repeated(serve: Serve, reach: Reach) -> None:
    """REFUSED_STREAM: asked once more over a fresh connection, even what must not run twice."""

    async def script(stream: PeerStream) -> None:
        if stream.connection is peer.connections[0]:
            stream.refuse()
        else:
            await answers(stream)

    peer = await serve(script)
    transport = reach(peer.url)
    assert (await transport.call("index/add", {}, idempotent=False)).attempts == 2
    assert len(peer.connections) == 2


async def test_engine_that_always_refuses(serve: Serve, reach: Reach) -> None:
    """It is repeated once and no more."""

    async def script(stream: PeerStream) -> None:
        stream.refuse()

    peer = await serve(script)
    with pytest.raises(ProtocolViolation, match="refused the stream") as caught:
        await reach(peer.url).call("retrieve", {})
    assert (caught.value.attempts, len(peer.requests)) == (2, 2)


async def test_dead_connection_is_replaced_once(serve: Serve, reach: Reach) -> None:
    """A kept connection that dies without an answer: idempotent calls are asked again, others were never sent on it."""

    async def script(stream: PeerStream) -> None:
        if stream.number > 1:
            stream.connection.hang_up()
        else:
            await answers(stream)

    peer = await serve(script)
    transport = reach(peer.url)
    await transport.call("retrieve", {})
    assert (await transport.call("retrieve", {})).attempts == 2
    assert (await transport.call("index/add", {}, idempotent=False)).attempts == 1
    assert _streams(peer) == [(0, 1), (0, 3), (1, 1), (2, 1)]


async def test_connection_that_breaks_off(serve: Serve, reach: Reach) -> None:
    """After the first byte of an answer there is no retry."""

    async def script(stream: PeerStream) -> None:
        if stream.number == 1:
            await answers(stream)
            return
        stream.head()
        await stream.data(b"{", end=False)
        stream.connection.transport.close()

    peer = await serve(script)
    transport = reach(peer.url)
    await transport.call("retrieve", {})
    with pytest.raises(ProtocolViolation, match="broke off in the middle"):
        await transport.call("retrieve", {})
    assert len(peer.requests) == 2


async def test_connection_that_went_silent(serve: Serve, reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    """When nothing came back on it while a call waited, and not even a PING is answered, it is left."""
    monkeypatch.setattr("app.engines.http.http2_connection.PING_SECONDS", 0.02)
    peer = await serve(answers)
    transport = reach(peer.url)
    await transport.call("retrieve", {})
    peer.mute = True
    received = peer.connections[0].received
    await given_up(transport.call("retrieve", {}), lambda: peer.connections[0].received > received)
    await until(lambda: peer.connections[0].closed)
    peer.mute = False
    assert (await transport.call("retrieve", {})).attempts == 1
    assert len(peer.connections) == 2


async def test_nonsense_instead_of_http2(serve: Serve, reach: Reach) -> None:
    """Bytes that are not HTTP/2 end the connection and every call on it."""

    async def script(stream: PeerStream) -> None:
        stream.connection.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    peer = await serve(script)
    transport = reach(peer.url)
    with pytest.raises(ProtocolViolation):
        await transport.call("retrieve", {})
    await until(lambda: peer.open_connections == 0)


async def test_age_and_idle_limits(serve: Serve, reach: Reach, clock: Clock) -> None:
    """A connection too old takes no new call, and lets those under way finish; an idle one is closed."""
    finish = asyncio.Event()

    async def script(stream: PeerStream) -> None:
        if stream.message["method"] == "ping":
            await finish.wait()
        await answers(stream)

    peer = await serve(script)
    transport = reach(peer.url, max_connection_age_seconds=100.0, idle_seconds=0.02)
    old = asyncio.create_task(transport.call("ping", {}))
    await until(lambda: len(peer.requests) == 1)
    clock.now += 100
    await transport.call("retrieve", {})
    finish.set()
    assert (await old).attempts == 1
    assert [connection for connection, _ in _streams(peer)] == [0, 1]
    await until(lambda: peer.open_connections == 0)
    await transport.call("retrieve", {})
    assert len(peer.connections) == 3


async def test_renewing(serve: Serve, reach: Reach) -> None:
    """A renewed transport asks over a fresh connection."""
    peer = await serve(answers)
    transport = reach(peer.url)
    await transport.call("retrieve", {})
    transport.renew()
    await transport.call("retrieve", {})
    assert len(peer.connections) == 2
    await until(lambda: peer.open_connections == 1)


async def test_unreachable(reach: Reach) -> None:
    """Calls that wait for the same connection all end with why there is none."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        transport = reach(f"https://127.0.0.1:{port}/rcp?key=SECRET")
        outcomes = await asyncio.gather(*(transport.call("retrieve", {}) for _ in range(3)), return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == [f"127.0.0.1:{port}: Connection refused"] * 3
    assert all(isinstance(outcome, ConnectFailed) for outcome in outcomes)
    assert "SECRET" not in repr(transport)
