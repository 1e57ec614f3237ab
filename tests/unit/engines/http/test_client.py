"""The fast HTTP transport: its bytes on the wire, its bounds, and its socket manners on both event loops."""

import asyncio
import gc
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from app.engines.http.client import MAX_HEADS, HttpTransport
from app.engines.http.resolver import Resolver
from app.protocol.errors import ConnectFailed, ProtocolViolation, TlsFailed
from app.settings.schema import EngineEntry, EnginesSettings
from tests.support.authority import Authority
from tests.support.raw_peer import Line, MutePeer, RawPeer, answering, echo, http_answer, rpc_answer
from tests.support.running_gateway import PATIENCE, until
from tests.support.transport_kinds import Listen

Story = Callable[[], Coroutine[Any, Any, None]]
Run = Callable[[Story], None]

OPEN = Path("/proc/self/fd")


def _transport(url: str, **kwargs: Any) -> HttpTransport:
    return HttpTransport(EngineEntry(id="docs", url=url, **kwargs), EnginesSettings())


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Run a story on one of the event loops; not a file descriptor may be left open by it."""
    with asyncio.Runner(loop_factory=request.param) as runner:
        runner.run(asyncio.sleep(0))
        before = _open_files()

        def run(story: Story) -> None:
            runner.run(story())
            gc.collect()
            ends = time.monotonic() + PATIENCE
            while not _open_files() <= before and time.monotonic() < ends:
                runner.run(asyncio.sleep(0.01))  # sockets that were closed are let go in the next rounds of the loop
            assert _open_files() <= before

        yield run


def _open_files() -> set[tuple[str, str]]:
    """The sockets that this process holds; none where the system does not list them."""
    found = set()
    for descriptor in OPEN.iterdir() if OPEN.exists() else ():
        with suppress(OSError):
            target = str(descriptor.readlink())
            if target.startswith("socket:"):
                found.add((descriptor.name, target))
    return found


def test_calls_over_a_kept_connection(run: Run) -> None:
    """Ten calls, one connection, and nothing left after close."""

    async def story() -> None:
        async with RawPeer(echo) as peer:
            transport = _transport(peer.url)
            for n in range(10):
                assert (await transport.call("retrieve", {"n": n})).result == {"n": n}
            assert (
                repr(transport)
                == f"<HttpTransport docs <ConnectionPool 127.0.0.1:{peer.port} 1 idle of 1, 0 dialling, epoch 0>>"
            )
            await transport.close()
            assert len(peer.lines) == 1

    run(story)


def test_large_bodies(run: Run) -> None:
    """Requests and answers far beyond one read or write arrive whole."""

    async def story() -> None:
        async with RawPeer(echo) as peer:
            transport = _transport(peer.url)
            text = "é" * 1_500_000
            assert (await transport.call("retrieve", {"text": text})).result == {"text": text}
            await transport.close()

    run(story)


def test_byte_by_byte(run: Run) -> None:
    """An answer whose bytes arrive one by one."""

    async def script(line: Line) -> None:
        if request := await line.request():
            await line.drip(http_answer(rpc_answer(request.id, {"n": 1})))
            await line.until_ended()

    async def story() -> None:
        async with RawPeer(script) as peer:
            transport = _transport(peer.url)
            assert (await transport.call("retrieve", {})).result == {"n": 1}
            await transport.close()

    run(story)


def test_dead_connection(run: Run) -> None:
    """A kept connection that is closed, or reset, on the second request is replaced once."""

    async def script(line: Line) -> None:
        if request := await line.request():
            line.send(http_answer(rpc_answer(request.id, {})))
        if await line.request() and line.number == 2:
            line.reset()

    async def story() -> None:
        async with RawPeer(script) as peer:
            transport = _transport(peer.url)
            assert [(await transport.call("retrieve", {})).attempts for _ in range(3)] == [1, 2, 2]
            await transport.close()

    run(story)


@pytest.mark.parametrize("last_word", [b"", http_answer(b"bye", 408)], ids=["FIN", "unasked bytes"])
def test_idle_connection(run: Run, last_word: bytes) -> None:
    """A FIN, or bytes nobody asked for, on an idle connection drops it at once."""

    async def story() -> None:
        over = asyncio.Event()

        async def script(line: Line) -> None:
            if request := await line.request():
                line.send(http_answer(rpc_answer(request.id, {})))
            await over.wait()
            line.send(last_word)
            if last_word:
                await line.until_ended()

        async with RawPeer(script) as peer:
            transport = _transport(peer.url)
            await transport.call("retrieve", {})
            assert "1 idle of 1" in repr(transport)
            over.set()
            await until(lambda: "0 idle of 0" in repr(transport))
            await transport.close()

    run(story)


def test_body_up_to_the_close(run: Run) -> None:
    """A body that ends with the connection, and one that a reset cuts off."""

    async def script(line: Line) -> None:
        if request := await line.request():
            line.send(http_answer(rpc_answer(request.id, {"n": 1}), length=False))
            if line.number == 2:
                await line.writer.drain()
                line.reset()

    async def story() -> None:
        async with RawPeer(script) as peer:
            transport = _transport(peer.url)
            assert (await transport.call("retrieve", {})).result == {"n": 1}
            with pytest.raises(ProtocolViolation):
                await transport.call("retrieve", {})
            await transport.close()

    run(story)


@pytest.mark.parametrize("steps", range(12))
def test_cancelled_at_every_step(run: Run, steps: int) -> None:
    """A call cancelled after so many turns of the loop leaves no connection, wherever it had got to."""

    async def story() -> None:
        async with MutePeer() as peer:
            transport = _transport(peer.url)
            call = asyncio.create_task(transport.call("retrieve", {}))
            for _ in range(steps):
                await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await until(lambda: peer.open_lines == 0)
            peer.awake = True
            assert (await transport.call("retrieve", {"n": 1})).result == {"n": 1}
            await transport.close()
            await until(lambda: peer.open_lines == 0)

    run(story)


def test_refused(run: Run) -> None:
    """A port that nobody listens on."""

    async def story() -> None:
        async with RawPeer(echo) as peer:
            url = peer.url
        with pytest.raises(ConnectFailed, match="Connection refused"):
            await _transport(url).call("retrieve", {})

    run(story)


def test_close_in_the_middle(run: Run) -> None:
    """Calls mid-body and calls that are connecting end as closed."""

    async def script(line: Line) -> None:
        await line.request()
        line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nx")
        await line.until_ended()

    async def story() -> None:
        async with RawPeer(script) as peer:
            transport = _transport(peer.url)
            calls = [asyncio.create_task(transport.call("retrieve", {})) for _ in range(3)]
            await until(lambda: len(peer.requests) == 3)
            calls.append(asyncio.create_task(transport.call("retrieve", {})))
            await asyncio.sleep(0)
            await asyncio.gather(transport.close(), transport.close())
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert [repr(outcome) for outcome in outcomes] == [
                "ConnectFailed(connect, 'closed', code=None, attempts=1)"
            ] * 4
            await until(lambda: peer.open_lines == 0)

    run(story)


def test_tls(run: Run, tmp_path: Path) -> None:
    """TLS with an own authority, a kept connection, and a close that leaves nothing."""
    authority = Authority(tmp_path)

    async def story() -> None:
        async with RawPeer(echo, tls=authority.server("localhost")) as peer:
            transport = _transport(peer.address("localhost"), tls=authority.trusted)
            for n in range(5):
                assert (await transport.call("retrieve", {"n": n})).result == {"n": n}
            assert len(peer.lines) == 1
            await transport.close()
            await until(lambda: peer.open_lines == 0)

    run(story)


@pytest.mark.parametrize("steps", [*range(8), None])
def test_cancelled_in_the_handshake(run: Run, steps: int | None) -> None:
    """A call cancelled anywhere in a TLS handshake that hangs closes its connection."""

    async def story() -> None:
        async with MutePeer() as peer:
            transport = _transport(peer.url.replace("http://", "https://"))
            await asyncio.sleep(0)
            call = asyncio.create_task(transport.call("retrieve", {}))
            for _ in range(steps or 0):
                await asyncio.sleep(0)
            if steps is None:
                await until(lambda: peer.taken == 1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await until(lambda: peer.open_lines == 0)
            await transport.close()

    run(story)


def test_untrusted(run: Run, tmp_path: Path) -> None:
    """A certificate of an unknown authority ends the dial; the connection is closed."""
    authority = Authority(tmp_path)

    async def story() -> None:
        async with RawPeer(echo, tls=authority.server("localhost")) as peer:
            transport = _transport(peer.address("localhost"))
            with pytest.raises(TlsFailed, match="certificate is not trusted"):
                await transport.call("retrieve", {})
            await transport.close()

    run(story)


def test_peer_without_tls(run: Run) -> None:
    """A peer that answers a handshake in plain text, or hangs up on it, is class tls."""

    async def script(line: Line) -> None:
        if line.number == 1:
            line.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def story() -> None:
        async with RawPeer(script) as peer:
            transport = _transport(peer.url.replace("http://", "https://"))
            for _ in range(2):
                with pytest.raises(TlsFailed):
                    await transport.call("retrieve", {})
            await transport.close()

    run(story)


async def test_request_bytes(listen: Listen) -> None:
    """The whole request, to the byte, and in one segment."""
    seen: list[bytes] = []

    async def script(line: Line) -> None:
        seen.append(await line.reader.read(65_536))
        line.send(http_answer(rpc_answer(1, {})))
        await line.until_ended()

    peer = await listen(script)
    transport = _transport(peer.address(path="/rcp?key=x"), headers={"X-Key": "k"})
    await transport.call("catalog/list", {})
    await transport.close()
    body = b'{"jsonrpc":"2.0","id":1,"method":"catalog/list","params":{}}'
    assert seen == [
        b"POST /rcp/catalog/list?key=x HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
        b"Accept: application/json\r\nX-Key: k\r\nContent-Length: %d\r\n\r\n%b" % (peer.port, len(body), body)
    ]


async def test_heads_are_bounded(listen: Listen) -> None:
    """Callers that invent method names do not fill the memory with request heads."""
    peer = await listen(echo)
    transport = _transport(peer.url)
    for n in range(3 * MAX_HEADS):
        await transport.call(f"x-acme/{n}", {})
    assert len(transport._heads) <= MAX_HEADS
    assert peer.requests[-1].target == f"/rcp/x-acme/{3 * MAX_HEADS - 1}"
    await transport.close()


async def test_nonsense_closes_its_connection(listen: Listen) -> None:
    """After another request's id nothing is asked over that connection again; after an orderly refusal it is."""
    peer = await listen(answering(lambda request: http_answer(rpc_answer(request.id + 1, {}))))
    transport = _transport(peer.url)
    for _ in range(2):
        with pytest.raises(ProtocolViolation, match="another request's id"):
            await transport.call("retrieve", {})
    assert len(peer.lines) == 2
    await transport.close()


async def test_loop_with_a_full_thread_pool(listen: Listen) -> None:
    """Calls by name and by number go through while every thread of the loop's own pool is taken."""
    release = asyncio.Event()
    loop = asyncio.get_running_loop()
    threads = (os.cpu_count() or 1) + 40

    def block() -> None:
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result(PATIENCE)

    blocked = [asyncio.create_task(asyncio.to_thread(block)) for _ in range(threads)]
    await asyncio.sleep(0.01)
    peer = await listen(echo)
    for url in (peer.url, peer.address("localhost")):
        transport = _transport(url)
        assert (await transport.call("retrieve", {})).result == {}
        await transport.close()
    release.set()
    await asyncio.gather(*blocked)


async def test_one_resolver_for_several_engines(listen: Listen) -> None:
    """A resolver that is handed in is used."""
    asked: list[str] = []

    def look_up(host: str, port: Any, **hints: Any) -> list[tuple[Any, ...]]:
        asked.append(host)
        return [(2, 1, 6, "", ("127.0.0.1", 0))]

    peer = await listen(echo)
    entry = EngineEntry(id="docs", url=peer.address("engine.test"))
    transport = HttpTransport(entry, EnginesSettings(), resolver=Resolver(lookup=look_up))
    assert (await transport.call("retrieve", {"n": 1})).result == {"n": 1}
    assert peer.requests[0].headers["host"] == f"engine.test:{peer.port}"
    assert asked == ["engine.test"]
    await transport.close()
