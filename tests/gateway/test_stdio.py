"""The gateway at the end of a pipe: lines, sessions, order, progress, backpressure, and how it ends."""

import asyncio
import json
from typing import Any

import pytest

from app.api.send_queue import FULL_BYTES
from app.api.stdio import MAX_UNDER_WAY
from tests.gateway.conftest import Starter
from tests.support.log_lines import own_log
from tests.support.piped_gateway import PATIENCE, PipedGateway, piped
from tests.support.running_gateway import Json, entry, made_state, until
from tests.support.scripted_engine import hang, hit, hits

ASK: Json = {"query": "q"}


def code(answer: Json) -> int | None:
    """The code of an answer, None if it is a result."""
    return answer["error"]["code"] if "error" in answer else None


async def test_the_handshake_is_required(engines: Starter) -> None:
    """Over a pipe `initialize` comes first whatever the settings say, and once."""
    async with piped([entry("e", await engines())], hello=False) as gateway:
        for method in ("retrieve", "nonsense", "catalog/list"):
            assert code(await gateway.call(method, ASK)) == -32001
        assert code(await gateway.call("ping")) is None
        assert code(await gateway.call("info")) is None
        assert code(await gateway.call("initialize", {"protocolVersion": 0})) == -32002
        assert code(await gateway.call("retrieve", ASK)) == -32001
        result = await gateway.hello()
        assert result["capabilities"]["retrieve"]
        assert "session" not in result["_meta"]
        assert code(await gateway.call("initialize")) == -32600
        assert len((await gateway.call("retrieve", ASK))["result"]["hits"]) == 3


async def test_the_deadline_counts_from_the_line(engines: Starter) -> None:
    """A line that was read and had to wait for others is late when its turn comes: -32014; no engine hears of it."""
    engine, release = await engines(), asyncio.Event()

    async def held(asked: Any) -> Json:
        await release.wait()
        return {"hits": hits("a")}

    engine.answers["retrieve"] = held
    async with piped([entry("e", engine, maxConcurrency=MAX_UNDER_WAY, timeoutMs=60_000)]) as gateway:
        for number in range(MAX_UNDER_WAY):
            gateway.ask("retrieve", ASK, number)
        gateway.ask("retrieve", {"query": "late", "_meta": {"deadlineMs": 50}}, "late")
        await until(lambda: len(engine.requests()) == MAX_UNDER_WAY)
        loop = asyncio.get_running_loop()
        over = loop.time() + 0.1
        await until(lambda: loop.time() >= over)
        release.set()
        answers = [await gateway.message() for _ in range(MAX_UNDER_WAY + 1)]
    assert [code(answer) for answer in answers if answer["id"] == "late"] == [-32014]
    assert "late" not in [request.params["query"] for request in engine.requests()]


async def test_requests_are_pipelined_and_answered_as_they_end(engines: Starter) -> None:
    """A quick answer does not wait for a slow one that was asked for before; each comes once."""
    slow, release = await engines(), asyncio.Event()

    async def held(asked: Any) -> Json:
        if asked.params["query"] == "slow":
            await release.wait()
        return {"hits": hits("a")}

    slow.answers["retrieve"] = held
    async with piped([entry("e", slow, timeoutMs=60_000)], {"retrieve": {"deadline_ms": 60_000}}) as gateway:
        gateway.ask("retrieve", {"query": "slow"}, "first")
        for number in range(50):
            gateway.ask("retrieve", {"query": "quick"}, number)
        quick = {(await gateway.message())["id"] for _ in range(50)}
        assert quick == set(range(50))
        release.set()
        assert (await gateway.message())["id"] == "first"


async def test_a_handshake_and_what_follows_it_in_one_write(engines: Starter) -> None:
    """Lines that come together are taken in their order: what follows `initialize` is initialized."""
    async with piped([entry("e", await engines())], hello=False) as gateway:
        lines = [
            {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": ASK},
            {"jsonrpc": "2.0", "id": 2, "method": "initialize"},
            {"jsonrpc": "2.0", "id": 3, "method": "retrieve", "params": ASK},
        ]
        gateway.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        assert {answer["id"]: code(answer) for answer in [await gateway.message() for _ in lines]} == {
            1: -32001,
            2: None,
            3: None,
        }


async def test_lines_are_cut_at_newlines_and_nowhere_else(engines: Starter) -> None:
    """Blank lines count for nothing, CR LF is a newline, U+2028 is none, and a line may come byte by byte."""
    async with piped([entry("e", await engines())]) as gateway:
        gateway.write(b"\n \r\n\t\n\n")
        nonce = "a\u2028b\u2029c\u0085d"
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"nonce": nonce}}, ensure_ascii=False)
        gateway.write(line.encode() + b"\r\n")
        assert (await gateway.message())["result"] == {"nonce": nonce}
        for byte in line.encode() + b"\n":
            gateway.write(bytes([byte]))
        assert (await gateway.message())["result"] == {"nonce": nonce}


@pytest.mark.parametrize(
    ("line", "codes"),
    [
        (b"garbage", [-32700]),
        (b"\xff\xfe{}", [-32700]),
        (b"\xef\xbb\xbf{}", [-32700]),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"', [-32700]),
        (b"[" * 200 + b"]" * 200, [-32602]),
        (b"[" + b"{}," * 60_000 + b"{}]", [-32013]),
        (b"7", [-32600]),
        (b"null", [-32600]),
        (b'"ping"', [-32600]),
        (b"{}", [-32600]),
        (b"[]", [-32600]),
    ],
)
async def test_what_is_no_message(engines: Starter, line: bytes, codes: list[int]) -> None:
    """What is no JSON is -32700 and what is no request -32600, with id null; the next line is answered."""
    async with piped([entry("e", await engines())]) as gateway:
        gateway.send(line)
        answer = await gateway.message()
        assert ([code(answer)], answer["id"]) == (codes, None)
        assert (await gateway.call("ping"))["result"] == {}


async def test_half_a_surrogate_pair(engines: Starter) -> None:
    """-32602 by its id and after gating; large ids come back digit for digit."""
    async with piped([entry("e", await engines())]) as gateway:
        lines = [
            b'{"jsonrpc":"2.0","id":%d,"method":"%b","params":{"query":"\\ud800"}}\n' % (2**100 + place, method)
            for place, method in enumerate((b"retrieve", b"no/such", b"graph", b"ping"))
        ]
        gateway.write(b"".join(lines))
        codes = {answer["id"]: code(answer) for answer in [await gateway.message() for _ in lines]}
    assert [codes[2**100 + place] for place in range(4)] == [-32602, -32004, -32003, -32602]


async def test_batches_and_notifications(engines: Starter) -> None:
    """A batch is answered by one line; notifications, known or not, and batches of them, by none."""
    async with piped([entry("e", await engines())]) as gateway:
        said = {"jsonrpc": "2.0", "method": "notifications/unknown"}
        gateway.send(said, [said, said], {"jsonrpc": "2.0", "method": "retrieve", "params": ASK})
        gateway.send([{"jsonrpc": "2.0", "id": 1, "method": "ping"}, said, 7])
        answers = await gateway.message()
        assert [(answer["id"], code(answer)) for answer in answers] == [(1, None), (None, -32600)]
        assert (await gateway.call("ping"))["result"] == {}


async def test_five_megabytes_a_line_both_ways(engines: Starter) -> None:
    """A line of 5 MB is read, and one of 5 MB is written (B80)."""
    text = "x" * 5_000_000
    big = await engines(results=[hit("a", text=text)])
    async with piped([entry("e", big)]) as gateway:
        answer = await gateway.call("retrieve", {"query": "q" * 5_000_000})
        assert answer["result"]["hits"][0]["text"] == text
    assert len(big.requests()[0].params["query"]) == 5_000_000


@pytest.mark.parametrize(
    ("head", "echoed"),
    [
        ('{"jsonrpc":"2.0","id":7,"method":"ping","params":{"nonce":"', 7),
        ('{"jsonrpc":"2.0","id":"seven","method":"ping","params":{"nonce":"', "seven"),
        ('{"jsonrpc":"2.0","method":"ping","params":{"id":3,"nonce":"', None),
        ('{"jsonrpc":"2.0","id":{"a":1},"method":"ping","params":{"nonce":"', None),
        ('[{"jsonrpc":"2.0","id":7,"method":"ping","params":{"nonce":"', None),
    ],
)
async def test_a_line_that_is_too_long(engines: Starter, head: str, echoed: Any) -> None:
    """It is answered once with -32013, by its id where its head shows one, its rest is dropped, the next line works."""
    async with piped([entry("e", await engines())], {"server": {"max_line_bytes": 5000}}) as gateway:
        gateway.write(head.encode() + b"x" * 4000)
        for _ in range(50):
            gateway.write(b"y" * 1000)
        gateway.write(b'"}}\n')
        answer = await gateway.message()
        assert (code(answer), answer["id"]) == (-32013, echoed)
        assert (await gateway.call("ping"))["result"] == {}


async def test_cancel_aborts_the_engine_calls_at_once(engines: Starter) -> None:
    """What is called off is answered once, with -32006, and its legs are gone; an unknown id calls off nothing."""
    stuck = await engines()
    stuck.answers["retrieve"] = hang
    async with piped([entry("e", stuck, timeoutMs=60_000)], {"retrieve": {"deadline_ms": 60_000}}) as gateway:
        gateway.ask("retrieve", ASK, "first")
        gateway.ask("retrieve", ASK, "second")
        await until(lambda: len(stuck.requests()) == 2)
        for message_id in ("nobody", "first", "first"):
            gateway.send({"jsonrpc": "2.0", "method": "notifications/cancel", "params": {"id": message_id}})
        answer = await gateway.message()
        assert (answer["id"], code(answer)) == ("first", -32006)
        (engine,) = gateway.state.engines.engines
        await until(lambda: engine.semaphore.in_flight == 1)
        gateway.send({"jsonrpc": "2.0", "method": "notifications/cancel", "params": {"id": "second"}})
        assert (await gateway.message())["id"] == "second"
        assert (await gateway.call("ping"))["result"] == {}


async def test_progress_and_log_lines(engines: Starter) -> None:
    """Progress comes to whoever gave a token, log lines to whoever asked for them, each before the answer."""
    async with piped([entry("a", await engines()), entry("b", await engines())]) as gateway:

        async def heard(meta: Json) -> list[str]:
            gateway.ask("retrieve", {**ASK, "_meta": meta}, "asked")
            methods: list[str] = []
            while "id" not in (message := await gateway.message()):
                methods.append(message["method"].removeprefix("notifications/"))
                assert message["params"].get("progressToken", "t") == "t"
            assert message["id"] == "asked"
            return methods

        assert await heard({}) == []
        assert await heard({"progressToken": "t"}) == ["progress"] * 3
        assert await heard({"logLevel": "debug"}) == ["log"] * 2
        assert sorted(await heard({"progressToken": "t", "logLevel": "debug"})) == ["log"] * 2 + ["progress"] * 3
        assert await heard({"logLevel": "warning"}) == []


async def test_a_caller_that_does_not_read_is_not_read_either(engines: Starter) -> None:
    """Unread answers stop the endpoint from reading requests; when the caller reads again, all are answered."""
    big = await engines(results=[hit("a", text="x" * 100_000)])
    async with piped([entry("e", big)]) as gateway:
        gateway.reading.clear()
        for number in range(400):
            gateway.ask("retrieve", {**ASK, "_meta": {"progressToken": number}}, number)
        send_queue: Any = gateway.endpoint._send_queue
        await until(lambda: send_queue.unsent > FULL_BYTES and not gateway.endpoint._under_way)
        assert gateway.taken < 400
        taken = gateway.taken
        await asyncio.sleep(0.05)
        assert gateway.taken == taken
        assert send_queue.unsent < FULL_BYTES + (MAX_UNDER_WAY + 1) * 250_000
        gateway.reading.set()
        answered: list[int] = []
        while len(answered) < 400:
            message = await gateway.message()
            if "id" in message:
                answered.append(message["id"])
        assert sorted(answered) == list(range(400))


async def test_only_so_many_are_under_way(engines: Starter) -> None:
    """Of more requests than may be under way the rest waits in the pipe."""
    stuck, release = await engines(), asyncio.Event()

    async def held(asked: Any) -> Json:
        await release.wait()
        return {"hits": []}

    stuck.answers["retrieve"] = held
    settings = {"retrieve": {"deadline_ms": 60_000}}
    async with piped([entry("e", stuck, timeoutMs=60_000, maxConcurrency=1000)], settings) as gateway:
        for number in range(MAX_UNDER_WAY + 10):
            gateway.ask("retrieve", ASK, number)
        await until(lambda: len(gateway.endpoint._under_way) == MAX_UNDER_WAY)
        assert repr(gateway.endpoint).startswith(
            f"<StdioEndpoint reading, {MAX_UNDER_WAY} under way, <SendQueue 0 bytes unread>"
        )
        release.set()
        answered = {(await gateway.message())["id"] for _ in range(MAX_UNDER_WAY + 10)}
        assert answered == set(range(MAX_UNDER_WAY + 10))


async def test_the_end_of_the_pipe_finishes_what_is_under_way(engines: Starter) -> None:
    """When the caller has said all it wants, everything it asked is answered, a last line without newline too."""
    slow = await engines()

    async def later(asked: Any) -> Json:
        await asyncio.sleep(0.05)
        return {"hits": hits("a")}

    slow.answers["retrieve"] = later
    async with piped([entry("e", slow)]) as gateway:
        for number in range(5):
            gateway.ask("retrieve", ASK, number)
        gateway.write(json.dumps({"jsonrpc": "2.0", "id": 5, "method": "retrieve", "params": ASK}).encode())
    assert sorted(answer["id"] for answer in gateway.unread()) == list(range(6))


async def test_shutdown_ends_the_session_after_what_is_under_way(engines: Starter) -> None:
    """After `shutdown` no further line is read; what was asked before is answered, and so is `shutdown`."""
    state = made_state([entry("e", await engines())])
    gateway = PipedGateway(state)
    state.engines.start()
    await until(lambda: state.engines.engines[0].up)
    serving = asyncio.create_task(gateway.endpoint.serve())
    await gateway.hello()
    gateway.ask("retrieve", ASK, "before")
    gateway.ask("shutdown", {}, "bye")
    gateway.ask("retrieve", ASK, "after")
    await asyncio.wait_for(serving, PATIENCE)
    await state.engines.close()
    answers = {answer["id"]: answer for answer in gateway.unread()}
    assert answers["bye"]["result"] == {}
    assert answers["before"]["result"]["hits"]
    assert code(answers.get("after", {"error": {"code": "not read"}})) in ("not read", None)


async def test_told_to_stop_it_says_so(engines: Starter) -> None:
    """When it must stop, each request under way is answered with -32010, members of a batch too."""
    stuck = await engines()
    stuck.answers["retrieve"] = hang
    state = made_state([entry("e", stuck, timeoutMs=60_000)], {"retrieve": {"deadline_ms": 60_000}})
    gateway = PipedGateway(state)
    state.engines.start()
    await until(lambda: state.engines.engines[0].up)
    serving = asyncio.create_task(gateway.endpoint.serve())
    await gateway.hello()
    gateway.ask("retrieve", ASK, "one")
    asking = {"jsonrpc": "2.0", "id": "two", "method": "retrieve", "params": ASK}
    gateway.send([asking, {"jsonrpc": "2.0", "method": "ping"}])
    await until(lambda: len(stuck.requests()) == 2)
    gateway.endpoint.stop()
    assert repr(gateway.endpoint).startswith("<StdioEndpoint stopping")
    await asyncio.wait_for(serving, PATIENCE)
    await state.engines.close()
    told = [answer[0] if isinstance(answer, list) else answer for answer in gateway.unread()]
    assert {answer["id"]: code(answer) for answer in told} == {"one": -32010, "two": -32010}


async def test_a_caller_that_is_gone_ends_it(engines: Starter) -> None:
    """When nobody reads any more the endpoint ends, whatever is under way."""
    stuck = await engines()
    stuck.answers["retrieve"] = hang
    state = made_state([entry("e", stuck, timeoutMs=60_000)], {"retrieve": {"deadline_ms": 60_000}})
    gateway = PipedGateway(state)
    state.engines.start()
    await until(lambda: state.engines.engines[0].up)
    serving = asyncio.create_task(gateway.endpoint.serve())
    await gateway.hello()
    gateway.ask("retrieve", ASK)
    await until(lambda: bool(stuck.requests()))
    gateway.broken = True
    gateway.ask("ping")
    await asyncio.wait_for(serving, PATIENCE)
    await state.engines.close()


async def test_the_first_answers_wait_for_the_engines(engines: Starter) -> None:
    """What engines there are is told once each had its chance to be reached; a ping does not wait for that."""
    reach_engines = asyncio.Event()

    async def wait_for_engines() -> None:
        await reach_engines.wait()

    state = made_state([entry("e", await engines())])
    gateway = PipedGateway(state, wait_for_engines)
    serving = asyncio.create_task(gateway.endpoint.serve())
    gateway.ask("initialize", {}, "hello")
    assert (await gateway.call("ping"))["result"] == {}
    state.engines.start()
    await until(lambda: state.engines.engines[0].up)
    reach_engines.set()
    assert "retrieve" in (await gateway.message())["result"]["capabilities"]
    gateway.leave()
    await asyncio.wait_for(serving, PATIENCE)
    await state.engines.close()


async def test_requests_are_counted_and_logged_as_over_http(engines: Starter) -> None:
    """One line and one count per request; what is no request is a line too, without a status of HTTP."""
    with own_log() as log:
        async with piped([entry("e", await engines())]) as gateway:
            await gateway.call("retrieve", ASK)
            gateway.send(b"garbage")
            await gateway.message()
            value = gateway.state.metrics.registry.get_sample_value(
                "rcp_gateway_requests_total", {"method": "retrieve", "outcome": "ok"}
            )
        assert value == 1
    events = [(line["event"], line.get("code"), line.get("status")) for line in log.lines if "request_id" in line]
    assert events == [("request", None, None), ("request", None, None), ("refused", -32700, None)]
