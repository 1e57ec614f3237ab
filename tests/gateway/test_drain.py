"""Told to stop: not ready at once, serving for a while, then nothing new, and nothing under way is lost."""

import asyncio
import json
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from app.server.lifecycle import GatewayServer
from app.server.shutdown_stage import ShutdownStage
from tests.support.gateway_process import gateway_process
from tests.support.listening_gateway import PATIENCE, asking, listening, question
from tests.support.running_gateway import entry, http_client, until
from tests.support.scripted_engine import ScriptedEngine, hang, hits

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
QUICK = {"server": {"drain_seconds": 3}}


class Gate:
    """An engine's answer that is held back until it is let go."""

    def __init__(self) -> None:
        self.free = asyncio.Event()

    async def __call__(self, asked: Any) -> Any:
        await self.free.wait()
        return {"hits": hits("late")}


async def test_sigterm_drains(engines: Any, tmp_path: Path) -> None:
    """Not ready at once but serving for as long as it was told to, then no longer; exit code 0 (B118, B119)."""
    async with gateway_process(tmp_path, [entry("e", await engines())], QUICK) as gateway:
        before = await gateway.retrieve()
        gateway.signal(signal.SIGTERM)
        await gateway.until_told("draining")
        assert await gateway.ready() == 503
        during = await gateway.retrieve()
        assert await gateway.ended() == 0
    assert before.status_code == during.status_code == 200
    assert "connection" not in before.headers
    assert [line["event"] for line in gateway.log if line["event"] in ("draining", "drained", "stopped")] == [
        "draining",
        "drained",
        "stopped",
    ]
    assert "Traceback" not in gateway.text


async def test_it_parts_from_its_callers_before_it_accepts_no_more(
    engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the end every answer says `Connection: close`, on connections that were there and on new ones (B118)."""
    monkeypatch.setattr("app.server.lifecycle.PARTING_SECONDS", PATIENCE)
    made: list[GatewayServer] = []

    def kept(*of: Any) -> GatewayServer:
        made.append(GatewayServer(*of))
        return made[0]

    monkeypatch.setattr("tests.support.listening_gateway.GatewayServer", kept)
    settings = {"server": {"drain_seconds": PATIENCE}}
    async with (
        listening([entry("e", await engines())], settings) as (state, port),
        http_client(f"http://127.0.0.1:{port}") as client,
    ):
        (keeper,) = made
        assert "connection" not in (await client.post("/rcp", json=PING)).headers
        keeper.advance(ShutdownStage.DRAINING)
        assert state.readiness.reason() == "draining"
        assert "connection" not in (await client.post("/rcp", json=PING)).headers
        keeper._part()
        for _ in range(2):
            answer = await client.post("/rcp", json=PING)
            assert (answer.status_code, answer.headers["connection"]) == (200, "close")


async def test_what_is_under_way_is_finished(engines: Any, tmp_path: Path) -> None:
    """A request that began before the end is answered, though nothing new is accepted any more."""
    engine = await engines()
    engine.answers["retrieve"] = held = Gate()
    entries = [entry("e", engine, timeoutMs=60_000)]
    async with gateway_process(tmp_path, entries, {"server": {"drain_seconds": 0}}) as gateway:
        asked = asyncio.create_task(gateway.retrieve())
        await until(lambda: len(engine.requests()) == 1)
        gateway.signal(signal.SIGTERM)
        await gateway.until_told("finishing")
        await until_refused(gateway.port)
        held.free.set()
        answer = await asked
        assert await gateway.ended() == 0
    assert [hit["id"] for hit in answer.json()["result"]["hits"]] == ["late"]
    assert answer.headers["connection"] == "close"


async def until_refused(port: int) -> None:
    """Wait until nobody accepts on this port any more."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                return
            writer.close()
            await asyncio.sleep(0.02)


async def test_what_never_ends_is_cut_off(engines: Any, tmp_path: Path) -> None:
    """After the grace a plain request is answered 503 and a stream ends with a last frame; the engines' processes are
    stopped, nothing is logged as broken (B63, B64)."""
    engine = await engines()
    engine.answers["retrieve"] = hang
    child = {"id": "child", "command": ["sh", "-c", f"echo $$ > {tmp_path}/pid; cat > /dev/null"]}
    entries = [entry("e", engine, timeoutMs=60_000), child]
    settings = {"server": {"drain_seconds": 0, "grace_seconds": 0.3}, "retrieve": {"deadline_ms": 60_000}}
    async with gateway_process(tmp_path, entries, settings) as gateway:
        plain = asyncio.create_task(gateway.retrieve())
        async with asking(gateway.port, question()) as reader:
            await reader.head()
            await until(lambda: len(engine.requests()) == 2)
            await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"))
            gateway.signal(signal.SIGTERM)
            frames = [message async for message in all_messages(reader)]
            answer = await plain
            assert await gateway.ended() == 0
    assert frames[-1]["id"] == 1
    assert frames[-1]["error"]["code"] == -32010
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == -32010
    assert gateway.told("cut_off")[0]["requests"] == 2
    assert "Traceback" not in gateway.text
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


async def all_messages(reader: Any) -> Any:
    """Every message of a stream until its end in good order."""
    while (message := await reader.message()) is not None:
        yield message


@pytest.mark.parametrize(
    ("signals", "skipped"),
    [([signal.SIGINT], "draining"), ([signal.SIGTERM, signal.SIGTERM], "nothing"), ([signal.SIGQUIT], "draining")],
    ids=["SIGINT", "SIGTERM twice", "SIGQUIT"],
)
async def test_impatient_signals(engines: Any, tmp_path: Path, signals: Any, skipped: str) -> None:
    """SIGINT and a second SIGTERM do not wait for a balancer; SIGQUIT waits for nobody. The exit code is 0."""
    settings = {"server": {"drain_seconds": 3600, "grace_seconds": 5}}
    async with gateway_process(tmp_path, [entry("e", await engines())], settings) as gateway:
        *before, last = signals
        for number in before:
            gateway.signal(number)
            await gateway.until_told("draining")  # two of a kind at the same time are one to the system
        gateway.signal(last)
        assert await gateway.ended() == 0
    assert not gateway.told(skipped)
    assert gateway.told("stopped")


async def test_a_signal_while_it_starts_ends_it(tmp_path: Path) -> None:
    """SIGTERM that comes before anything serves ends the process at once, with exit code 0."""
    async with gateway_process(tmp_path, [entry("e", await dead_engine())], reach=False) as gateway:
        gateway.signal(signal.SIGTERM)
        assert await gateway.ended() == 0


async def dead_engine() -> str:
    """The address of an engine that is not there."""
    engine = await ScriptedEngine().start()
    await engine.stop()
    return engine.url


async def test_who_has_just_connected_may_still_ask(
    engines: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that was made in the last moment is not closed under its first request (B118)."""
    monkeypatch.setattr("app.server.http_protocol.FIRST_REQUEST_SECONDS", PATIENCE)
    async with AsyncExitStack() as stack:
        _, port = await stack.enter_async_context(listening([entry("e", await engines())]))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        ending = asyncio.create_task(stack.aclose())
        await until_refused(port)
        body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "ping"}).encode()
        writer.write(b"POST /rcp HTTP/1.1\r\nhost: g\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        answer = await reader.read()
        writer.close()
        await ending
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"jsonrpc": "2.0", "id": 7, "result": {}}


async def test_idle_keep_alive_connections_do_not_hold_it_up(engines: Any, tmp_path: Path) -> None:
    """Connections without a request are closed at the end, and one with half a request may still send the rest."""
    async with gateway_process(tmp_path, [entry("e", await engines())], {"server": {"drain_seconds": 0.2}}) as gateway:
        idle, idle_writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        half, half_writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "ping"}).encode()
        half_writer.write(b"POST /rcp HTTP/1.1\r\nhost: g\r\ncontent-length: %d\r\n" % len(body))
        await half_writer.drain()
        gateway.signal(signal.SIGTERM)
        await gateway.until_told("finishing")
        assert await idle.read() == b""
        half_writer.write(b"\r\n" + body)
        answer = await half.read()
        assert b"connection: close" in answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"jsonrpc": "2.0", "id": 7, "result": {}}
        assert await gateway.ended() == 0
        idle_writer.close()
        half_writer.close()
