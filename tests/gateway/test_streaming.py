"""A retrieve as an event stream: frames while engines answer, what stays plain, callers that are slow or leave."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.listening_gateway import EVENTS, PATIENCE, Reader, asking, listening, question
from tests.support.running_gateway import RunningGateway, entry, running, until
from tests.support.scripted_engine import Asked, RpcFault, ScriptedEngine, hang, hit, hits

PROJECT = Path(__file__).parents[2]


class Held:
    """An engine's answer that is held back until it is let go."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self._free = asyncio.Event()

    def let_go(self) -> None:
        self._free.set()

    async def __call__(self, asked: Asked) -> Any:
        await self._free.wait()
        return self._answer


async def held_engines(engines: Any, **answers: Any) -> tuple[dict[str, Held], list[Any]]:
    """Engines that each hold their answer back: (id -> hold, registry entries)."""
    holds = {name: Held(answer) for name, answer in answers.items()}
    entries = []
    for name, hold in holds.items():
        engine = await engines(name=name)
        engine.answers["retrieve"] = hold
        entries.append(entry(name, engine, timeoutMs=60_000))
    return holds, entries


def ids(progress: Any) -> list[Any]:
    """The ids of the list so far."""
    return [found["id"] for found in progress["partial"]["hits"]]


async def hear_one_by_one(reader: Reader, holds: dict[str, Held]) -> None:
    """Engines b, c and a are let go one after the other, each once the frame of the one before is there."""
    await reader.head()
    assert reader.status == 200
    holds["b"].let_go()
    first = await reader.progress()
    assert first == {**first, "progressToken": "t", "stage": "recall", "progress": pytest.approx(1 / 3)}
    assert first["message"].startswith("b: 2 hits after ")
    assert ids(first) == ["y", "z"]
    holds["c"].let_go()
    second = await reader.progress()
    assert second == {**second, "progressToken": "t", "stage": "recall", "progress": pytest.approx(2 / 3)}
    assert second["message"].startswith("c: refused after ")
    assert "partial" not in second  # the list is that of the frame before
    holds["a"].let_go()
    third = await reader.progress()
    assert (third["progress"], third["stage"]) == (1.0, "recall")
    assert "partial" not in third  # the response is next
    assert await reader.progress() == {
        "progressToken": "t",
        "progress": 1.0,
        "stage": "fuse",
        "message": "2 of 3 engines answered",
    }
    final = await reader.message()
    assert (final["jsonrpc"], final["id"]) == ("2.0", 1)
    assert [found["id"] for found in final["result"]["hits"]] == ["y", "x", "z"]
    assert final["result"]["_meta"]["degraded"] == ["c"]
    assert await reader.message() is None


THREE = {"a": {"hits": hits("x", "y")}, "b": {"hits": hits("y", "z")}, "c": RpcFault(-32602, "no")}


async def test_frames_arrive_while_engines_answer(engines: Any) -> None:
    """The head comes before any engine has answered, then each engine's frame before the next one answers."""
    holds, entries = await held_engines(engines, **THREE)
    async with listening(entries) as (state, port), asking(port, question()) as reader:
        await hear_one_by_one(reader, holds)
        requests = state.metrics.registry.get_sample_value(
            "rcp_gateway_requests_total", {"method": "retrieve", "outcome": "degraded"}
        )
        assert requests == 1


async def test_frames_arrive_from_a_served_gateway(engines: Any, tmp_path: Path) -> None:
    """The same from a gateway as an operator starts it, in a process and on a loop of its own."""
    holds, entries = await held_engines(engines, **THREE)
    registry = tmp_path / "rcp.json"
    registry.write_text(json.dumps({"engines": entries}))
    command = [sys.executable, "-m", "app", "serve", "--registry", str(registry), "--port", "0"]
    process = await asyncio.create_subprocess_exec(*command, cwd=PROJECT, stderr=asyncio.subprocess.PIPE)
    try:
        port = await port_of(process, engines=3)
        async with asking(port, question()) as reader:
            await hear_one_by_one(reader, holds)
    finally:
        process.send_signal(signal.SIGINT)
        await process.communicate()
    assert process.returncode == 0


async def port_of(process: asyncio.subprocess.Process, engines: int) -> int:
    """Where a starting gateway listens, once it has reached so many engines, as its log says."""
    assert process.stderr is not None
    port = 0
    async with asyncio.timeout(PATIENCE):
        while engines:
            line = json.loads(await process.stderr.readline())
            port = line["port"] if line["event"] == "listening" else port
            engines -= line["event"] == "engine_up"
    return port


async def test_headers_of_a_stream(engines: Any) -> None:
    """No length, no cache, no buffering, no compression, and the request id (B71)."""
    headers = {"accept_encoding": "gzip, br", "x_request_id": "mine-1"}
    async with listening([entry("e", await engines())]) as (_, port), asking(port, question(), **headers) as reader:
        await reader.head()
    for name in ("date", "server", "connection"):
        reader.headers.pop(name, None)
    assert reader.headers == {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
        "x-request-id": "mine-1",
        "transfer-encoding": "chunked",
    }


async def test_connection_serves_on_after_a_stream(engines: Any) -> None:
    """A stream ends its answer, not its connection."""
    async with listening([entry("e", await engines())]) as (_, port), asking(port, question()) as reader:
        await reader.head()
        while await reader.message() is not None:
            pass
        ping = b'{"jsonrpc":"2.0","id":2,"method":"ping"}'
        reader.writer.write(b"POST /rcp HTTP/1.1\r\nhost: g\r\ncontent-length: %d\r\n\r\n%b" % (len(ping), ping))
        reader.headers.clear()
        assert await (await reader.head()).plain() == {"jsonrpc": "2.0", "id": 2, "result": {}}


async def test_quiet_stream_carries_comments(engines: Any) -> None:
    """While nobody answers comments keep the stream alive (B71)."""
    holds, entries = await held_engines(engines, a={"hits": []})
    settings = {"server": {"sse_comment_seconds": 0.01}}
    async with listening(entries, settings) as (_, port), asking(port, question()) as reader:
        await reader.head()
        assert [await reader.frame() for _ in range(3)] == [b": keep-alive"] * 3
        holds["a"].let_go()
        frames = []
        while (frame := await reader.frame()) is not None:
            frames.append(frame)
    assert json.loads(frames[-1].removeprefix(b"data: "))["result"]["hits"] == []


# What is a stream and what is not, and what both say. Without sockets at the front.


def events_of(response: Any) -> list[Any]:
    """The messages of a whole stream."""
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *frames, end = response.text.split("\n\n")
    assert end == ""
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


async def ask(gateway: RunningGateway, message: Any, accept: str = EVENTS) -> Any:
    """One request of a caller that takes events."""
    return await gateway.post(message, headers={"Accept": accept})


def timeless(message: Any) -> Any:
    """A response without what depends on time, or on chance as cursors do."""
    message["result"]["nextCursor"] = "nextCursor" in message["result"]
    del message["result"]["usage"]["latencyMs"]
    for engine in message["result"]["_meta"]["x-gateway"]["engines"]:
        del engine["tookMs"]
    return message


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"k": 2},
        {"k": 50, "minScore": 0.5},
        {"tokenBudget": 5},
        {"includeText": False},
        {"fusion": {"method": "weighted"}},
        {"x-gateway": {"identity": "content", "mmr": {"lambda": 0.2}}},
        {"sessionId": "s"},
        {"_meta": {"progressToken": "t", "federation": {"depth": 0}}},
    ],
)
async def test_last_frame_is_the_plain_answer(engines: Any, params: Any) -> None:
    """Whatever is asked, the last frame is what the plain answer is; its hits are not sent twice (B131)."""
    one = await engines(results=hits(*range(12)))
    two = await engines(results=[hit(number, 1 - number / 50, text="t" * number) for number in range(6, 18)])
    entries = [entry("one", one), entry("two", two)]
    async with running(entries) as gateway:
        plain = await gateway.post(question(**params))
    async with running(entries) as gateway:
        *told, final = events_of(await ask(gateway, question(**params)))
    assert plain.headers["content-type"] == "application/json"
    assert timeless(final) == timeless(plain.json())
    assert all("partial" not in message["params"] for message in told if message["params"]["progress"] == 1)


async def test_page_that_was_kept_is_a_stream_of_its_own_response(engines: Any) -> None:
    """A page for which nobody is asked has nothing to tell; one for which engines are asked again has."""
    engine = await engines()

    async def as_deep_as_asked(asked: Asked) -> Any:
        return {"hits": hits(*range(100))[: asked.params["k"]]}

    engine.answers["retrieve"] = as_deep_as_asked
    async with running([entry("e", engine)]) as gateway:
        *told, first = events_of(await ask(gateway, question(k=5)))
        assert len(told) == 2
        (second,) = events_of(await ask(gateway, question(k=5, cursor=first["result"]["nextCursor"])))
        assert [found["id"] for found in second["result"]["hits"]] == [5, 6, 7, 8, 9]
        *told, third = events_of(await ask(gateway, question(k=50, cursor=second["result"]["nextCursor"])))
        assert [found["id"] for found in third["result"]["hits"]] == list(range(10, 60))
        assert [message["params"]["stage"] for message in told] == ["recall", "fuse"]


async def test_simultaneous_answers_are_all_reported(engines: Any) -> None:
    """Engines that end in one moment have a frame each."""
    entries = [entry(f"e{number}", await engines(results=hits(number))) for number in range(5)]
    async with running(entries) as gateway:
        *told, _ = events_of(await ask(gateway, question(7)))
    assert sorted(message["params"]["message"].split(":")[0] for message in told[:-1]) == [f"e{n}" for n in range(5)]
    assert [message["params"]["progress"] for message in told] == [
        *(pytest.approx(n / 5) for n in range(1, 6)),
        1.0,
    ]
    assert {message["params"]["progressToken"] for message in told} == {7}
    assert "partial" not in told[-2]["params"]


@pytest.mark.parametrize(
    ("message", "accept"),
    [
        (question(None), EVENTS),
        (question(), "application/json"),
        (question(), "*/*"),
        (question(), "text/event-stream;q=0, application/json"),
        ([question()], EVENTS),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"_meta": {"progressToken": "t"}}}, EVENTS),
        ({"jsonrpc": "2.0", "id": 1, "method": "graph", "params": {"_meta": {"progressToken": "t"}}}, EVENTS),
        (question(k=0), EVENTS),
        (question(True), EVENTS),
        (question(unit="page"), EVENTS),
        (question(filter={"field": "x", "op": "eq", "value": 1}), EVENTS),
        ({**question(), "jsonrpc": "1.0"}, EVENTS),
        ({**question(), "id": None}, EVENTS),
    ],
)
async def test_plain_answers_stay_plain(engines: Any, message: Any, accept: str) -> None:
    """No token, no wish, a batch, another method, or an error before anything ran: one JSON answer, HTTP 200."""
    async with running([entry("e", await engines())]) as gateway:
        response = await ask(gateway, message, accept)
        assert response.content == (await gateway.post(message)).content or "result" in response.text
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.headers["content-length"] == str(len(response.content))


async def test_notification_is_not_answered_with_a_stream(engines: Any) -> None:
    """A retrieve without an id is a notification, whatever it accepts: 204."""
    message = question()
    del message["id"]
    async with running([entry("e", await engines())]) as gateway:
        assert (await ask(gateway, message)).status_code == 204


async def test_compact_request_may_stream(engines: Any) -> None:
    """The compact envelope is answered, so it may be told of its progress too; the id is null."""
    message = question()
    del message["id"], message["jsonrpc"]
    async with running([entry("e", await engines())]) as gateway:
        told = events_of(await ask(gateway, message))
    assert [message["params"]["stage"] for message in told[:-1]] == ["recall", "fuse"]
    assert told[-1]["id"] is None


async def test_error_after_the_stream_began_is_its_last_frame(engines: Any) -> None:
    """Nobody answered: each failure is told, then -32010 as the last frame, HTTP 200."""
    sick = await engines()
    sick.answers["retrieve"] = RpcFault(-32603, "boom")
    async with running([entry("a", sick), entry("b", sick)]) as gateway:
        response = await ask(gateway, question())
        assert await gateway.metric("rcp_gateway_requests_total", method="retrieve", outcome="error") == 1
        assert await gateway.metric("rcp_gateway_errors_total", code="-32010") == 1
    assert response.status_code == 200
    *told, final = events_of(response)
    assert [message["params"]["stage"] for message in told] == ["recall", "recall"]
    assert all("partial" not in message["params"] for message in told)
    assert (final["id"], final["error"]["code"]) == (1, -32010)


async def test_required_failure_ends_the_stream(engines: Any) -> None:
    """A required engine that fails ends the stream with its code while another still thinks."""
    must, slow = await engines(), await engines()
    must.answers["retrieve"], slow.answers["retrieve"] = RpcFault(-32015, "gone"), hang
    async with running([entry("must", must, required=True), entry("slow", slow)]) as gateway:
        *told, final = events_of(await ask(gateway, question()))
    assert [message["params"]["message"].split(":")[0] for message in told] == ["must"]
    assert final["error"]["code"] == -32015


async def test_streaming_is_advertised_where_something_can_stream(engines: Any) -> None:
    """`streaming` is ours whatever the engines say, once one of them retrieves; it alone proves no higher level."""
    full = await engines(capabilities={**ScriptedEngine().capabilities, "filter": {"fields": ["f"]}})
    embeds = await engines(capabilities={"embed": {"dimension": 3, "identity": "m"}, "streaming": {}})
    async with running([entry("full", full)]) as gateway:
        info = await gateway.result("info")
    assert info["capabilities"]["streaming"] == {}
    assert info["_meta"]["conformance"] == "L1"
    async with running([entry("embeds", embeds)]) as gateway:
        assert "streaming" not in (await gateway.result("info"))["capabilities"]


# Callers that leave, and callers that do not read


def large(count: int = 50) -> list[Any]:
    """More than small sockets and the server's own buffer hold together."""
    return [hit(number, 1 - number / 1000, text="x" * 20_000) for number in range(count)]


def outcomes(state: Any, outcome: str) -> Any:
    return state.metrics.registry.get_sample_value(
        "rcp_gateway_requests_total", {"method": "retrieve", "outcome": outcome}
    )


async def test_caller_that_leaves_takes_its_engine_calls_along(engines: Any) -> None:
    """A caller that closes its stream ends the request: no leg goes on, no task is left (B36, B65)."""
    quick, slow = await engines(), await engines()
    slow.answers["retrieve"] = hang
    async with listening([entry("quick", quick), entry("slow", slow, timeoutMs=60_000)]) as (state, port):
        async with asking(port, question()) as reader:
            await reader.head()
            assert (await reader.progress())["progress"] == 0.5
        await until(lambda: outcomes(state, "cancelled") == 1)
        assert all(engine.semaphore.in_flight == 0 for engine in state.engines.engines)


UNREAD = {"receive_buffer": 4096, "limit": 4096}
"""A caller that holds little of what it does not read."""


async def test_caller_that_does_not_read_is_cut_off(engines: Any) -> None:
    """A caller that stops reading loses its request after `send_timeout_seconds`, though it stays connected (B67)."""
    quick, slow = await engines(results=large()), await engines()
    slow.answers["retrieve"] = hang
    settings = {"server": {"send_timeout_seconds": 0.3}, "retrieve": {"deadline_ms": 60_000}}
    entries = [entry("quick", quick), entry("slow", slow, timeoutMs=60_000)]
    async with (
        listening(entries, settings, send_buffer=4096) as (state, port),
        asking(port, question(k=50), **UNREAD) as reader,
    ):
        await until(lambda: outcomes(state, "cancelled") == 1)
        assert all(engine.semaphore.in_flight == 0 for engine in state.engines.engines)
        received = await reader.until_closed()
    assert received.count(b"data: ") == 1
    assert not received.endswith(b"0\r\n\r\n")


async def test_caller_that_does_not_read_the_response_is_cut_off(engines: Any) -> None:
    """Once all is told, a caller that does not take the response is cut off as well; others are served (B67)."""
    engine = await engines(results=large())
    settings = {"server": {"send_timeout_seconds": 0.3}}
    async with (
        listening([entry("e", engine)], settings, send_buffer=4096) as (state, port),
        asking(port, question(k=50), **UNREAD) as reader,
        asking(port, question(k=1)) as other,
    ):
        await other.head()
        while (message := await other.message()) is not None:
            last = message
        assert len(last["result"]["hits"]) == 1
        await until(lambda: outcomes(state, "ok") == 2)
        await until(lambda: not serving_tasks())
        received = await reader.until_closed()
    assert received.count(b"data: ") == 3  # two of progress, and the response, which it never took as a whole
    assert not received.endswith(b"0\r\n\r\n")


def serving_tasks() -> list[Any]:
    """The tasks that answer requests."""
    return [task for task in asyncio.all_tasks() if "run_asgi" in repr(task.get_coro())]


async def test_slow_reader_gets_the_response(engines: Any) -> None:
    """A caller that pauses within the time allowed misses progress at most, never the response."""
    entries = [entry(f"e{number}", await engines(results=large(30 + number))) for number in range(4)]
    async with (
        listening(entries, send_buffer=4096) as (state, port),
        asking(port, question(k=50), receive_buffer=4096) as reader,
    ):
        await until(lambda: outcomes(state, "ok") == 1)
        await reader.head()
        messages = []
        while (message := await reader.message()) is not None:
            messages.append(message)
    assert messages[-2]["params"]["stage"] == "fuse"
    assert len(messages) <= 6
    assert len(messages[-1]["result"]["hits"]) == 33


async def test_a_caller_that_opts_in_gets_a_log_of_its_engines(engines: Any) -> None:
    """`_meta.logLevel` brings `notifications/log` for engines that fail, and at debug for those that answer too."""
    well, sick = await engines(), await engines()
    sick.answers["retrieve"] = RpcFault(-32010, "down")
    async with listening([entry("well", well), entry("sick", sick)]) as (_, port):
        heard = {}
        for level in (None, "warning", "debug"):
            meta = {"progressToken": "t"} if level is None else {"progressToken": "t", "logLevel": level}
            message = {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": {"query": "q", "_meta": meta}}
            frames = []
            async with asking(port, message, accept=EVENTS) as reader:
                await reader.head()
                while (frame := await reader.message()) is not None:
                    frames.append(frame)
            heard[level] = sorted(
                (frame["params"]["level"], frame["params"]["data"]["engine"])
                for frame in frames
                if frame.get("method") == "notifications/log"
            )
    assert heard == {
        None: [],
        "warning": [("warning", "sick")],
        "debug": [("debug", "well"), ("warning", "sick")],
    }


async def test_an_unknown_log_level_is_refused(engines: Any) -> None:
    """A level that RCP does not know is -32602 and names the field."""
    async with running([entry("e", await engines())]) as gateway:
        error = await gateway.error("retrieve", {"query": "q", "_meta": {"logLevel": "loud"}})
    assert (error["code"], error["data"]["field"]) == (-32602, "_meta.logLevel")
