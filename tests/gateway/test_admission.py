"""More than the gateway takes on: refused at once and without asking anybody, while probes get through."""

import asyncio
import json
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from app.api.caller import Caller
from app.api.dispatch import Dispatcher
from tests.support.gateway_process import gateway_process
from tests.support.listening_gateway import asking, listening, question
from tests.support.log_lines import own_log
from tests.support.running_gateway import PATIENCE, Json, RunningGateway, entry, running, until
from tests.support.scripted_engine import hang, hits

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


async def taken(gateway: RunningGateway, engine: Any, count: int) -> list[asyncio.Task[Any]]:
    """So many requests under way, which end when they are cancelled."""
    engine.answers["retrieve"] = hang
    tasks = [asyncio.create_task(gateway.post(question(None))) for _ in range(count)]
    await until(lambda: gateway.state.admission.in_flight == count)
    return tasks


async def end(tasks: list[asyncio.Task[Any]]) -> None:
    """Have the callers of these requests leave."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_beyond_the_bound_requests_are_refused(engines: Any) -> None:
    """503 with Retry-After and -32011, counted; no engine hears of it, and a place that gets free is taken again."""
    engine = await engines()
    settings = {"server": {"max_in_flight": 2, "max_waiting": 0}}
    async with running([entry("e", engine, timeoutMs=60_000)], settings) as gateway:
        tasks = await taken(gateway, engine, 2)
        await until(lambda: len(engine.requests()) == 2)
        refused = await gateway.post(question(None))
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        error = refused.json()["error"]
        assert error["code"] == -32011
        assert error["data"] == {"retryable": True, "retryAfterMs": 1000}
        assert len(engine.requests()) == 2
        assert await gateway.metric("rcp_gateway_admission_refusals_total", reason="full") == 1
        assert "2/2 in flight" in repr(gateway.state.admission)
        await end(tasks)
        assert (await gateway.post(PING)).status_code == 200
        assert gateway.state.admission.in_flight == 0


async def test_a_full_gateway_refuses_before_it_looks(engines: Any) -> None:
    """Neither who calls nor what is asked is looked at; the id is not known."""
    engine = await engines()
    settings = {"server": {"max_in_flight": 1, "max_waiting": 0}}
    async with running([entry("e", engine, timeoutMs=60_000)], settings) as gateway:
        tasks = await taken(gateway, engine, 1)
        refused = await gateway.post(b"{no json")
        assert (refused.status_code, refused.json()["id"]) == (503, None)
        await end(tasks)
        assert (await gateway.post(b"{no json")).status_code == 400


def posted(message: Json) -> bytes:
    """One request on a connection that is kept."""
    body = json.dumps(message).encode()
    return b"POST /rcp HTTP/1.1\r\nhost: g\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], Json]:
    """(status, headers, JSON body) of the next answer on a connection."""
    async with asyncio.timeout(PATIENCE):
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:-2])
        body = await reader.readexactly(int(headers["content-length"]))
    return int(lines[0].split()[1]), headers, json.loads(body)


async def test_a_full_gateway_refuses_on_the_connection(engines: Any) -> None:
    """The refusal has an id, its own or the caller's, and leaves the connection to other requests; it is counted and
    logged. Nothing but RCP is refused."""
    engine = await engines()
    engine.answers["retrieve"] = hang
    settings = {"server": {"max_in_flight": 1, "max_waiting": 0}}
    with own_log() as log:
        async with listening([entry("e", engine, timeoutMs=60_000)], settings) as (state, port):
            async with asking(port, question(None)):
                await until(lambda: state.admission.in_flight == 1)
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(posted(PING).replace(b"host: g", b"host: g\r\nx-request-id: mine"))
                status, headers, body = await read_answer(reader)
                assert (status, headers["retry-after"], headers["x-request-id"]) == (503, "1", "mine")
                assert (body["id"], body["error"]["code"]) == (None, -32011)
                writer.write(b"GET /engines HTTP/1.1\r\nhost: g\r\n\r\n")
                assert (await read_answer(reader))[0] == 200
            await until(lambda: state.admission.in_flight == 0)
            writer.write(posted(PING))
            assert (await read_answer(reader))[0] == 200
            writer.close()
    assert [line["request_id"] for line in log.lines if line["event"] == "refused"] == ["mine"]


async def test_a_refused_caller_that_retries_is_served_once_there_is_capacity(engines: Any) -> None:
    """A caller that ignores `Retry-After` is not read for a while, and has its answer once there is room."""
    engine = await engines()
    engine.answers["retrieve"] = hang
    settings = {"server": {"max_in_flight": 1, "max_waiting": 0}}
    async with listening([entry("e", engine, timeoutMs=60_000)], settings) as (state, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asking(port, question(None)):
            await until(lambda: state.admission.in_flight == 1)
            for _ in range(3):
                writer.write(posted(PING))
                assert (await read_answer(reader))[0] == 503
            writer.write(posted(PING))
        await until(lambda: state.admission.in_flight == 0)
        async with asyncio.timeout(PATIENCE):
            # The request may have been read before there was room.
            while (await read_answer(reader))[0] == 503:
                writer.write(posted(PING))
        writer.close()


async def test_requests_that_busy_engines_cannot_answer_in_time_are_refused_at_once(engines: Any) -> None:
    """While all slots of the engine are taken, and it has answered once in 50 ms, a request with 100 ms is refused with
    503 before anything is sent; one with enough time is served."""
    engine = await engines()
    slots = 8

    async def slow(_: Any) -> Json:
        await asyncio.sleep(slots * 0.05)
        return {"hits": hits("a")}

    engine.answers["retrieve"] = slow
    entries = [entry("e", engine, timeoutMs=60_000, maxConcurrency=slots)]
    async with listening(entries) as (_, port):
        connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4 * slots)]
        for _, writer in connections:
            writer.write(posted(question(None)))
        served = [await read_answer(reader) for reader, _ in connections[: 2 * slots]]
        assert {status for status, _, _ in served} == {200}
        before = len(engine.requests())
        hasty, writer = await asyncio.open_connection("127.0.0.1", port)
        short = question(None)
        short["params"] = {**short["params"], "_meta": {"deadlineMs": 100}}
        writer.write(posted(short))
        status, headers, body = await read_answer(hasty)
        assert (status, headers["retry-after"]) == (503, "1")
        assert (body["id"], body["error"]["code"]) == (short["id"], -32011)
        assert len(engine.requests()) - before <= 2 * slots
        rest = [await read_answer(reader) for reader, _ in connections[2 * slots :]]
        assert {status for status, _, _ in rest} == {200}
        for _, each in (*connections, (hasty, writer)):
            each.close()


async def test_the_deadline_counts_from_the_arrival(engines: Any) -> None:
    """A request that came a while before it was begun has less time, and the log counts that while."""
    engine = await engines()
    engine.answers["retrieve"] = {"hits": hits("a")}
    settings = {"retrieve": {"deadline_ms": 60_000, "reserve_ms": 0}}
    with own_log() as log:
        async with running([entry("e", engine, timeoutMs=600_000)], settings) as gateway:
            caller = Caller("r", since=asyncio.get_running_loop().time() - 50)
            message = json.loads((await Dispatcher(gateway.state).message(question(None), caller, None)) or b"")
            assert message["result"]["usage"]["latencyMs"] >= 50_000
            assert engine.requests()[-1].params["_meta"]["deadlineMs"] <= 10_000
            late = Caller("late", since=asyncio.get_running_loop().time() - 70)
            answer = json.loads((await Dispatcher(gateway.state).message(question(None), late, None)) or b"")
            assert answer["error"]["code"] == -32014
    assert [line["ms"] >= 50_000 for line in log.lines if line.get("method") == "retrieve"] == [True, True]


async def test_who_cannot_be_served_in_time_is_refused(engines: Any) -> None:
    """Of many requests at once those that the event loop cannot begin in time are -32014 before any engine hears of
    them and before their deadline; the others are served."""
    engine = await engines()
    engine.answers["retrieve"] = {"hits": hits("a")}
    with own_log() as log:
        async with running([entry("e", engine)], {"server": {"max_in_flight": 1000}}) as gateway:
            dispatcher = Dispatcher(gateway.state)
            dispatcher._load._queue._turning = True  # the loop is busy with something else

            async def ask(number: int) -> Json:
                message = {**question(None), "id": number}
                message["params"] = {**message["params"], "_meta": {"deadlineMs": 500 if number % 2 else 60_000}}
                now = asyncio.get_running_loop().time()
                answer = json.loads(await dispatcher.message(message, Caller(f"r{number}", since=now), None) or b"")
                if "error" in answer:
                    dispatcher._load._queue._turn()  # the loop has time again
                return answer

            answers = await asyncio.gather(*(ask(number) for number in range(20)))
    refused = [answer for answer in answers if "error" in answer]
    assert {answer["error"]["code"] for answer in refused} == {-32014}
    assert all(answer["error"]["data"]["retryAfterMs"] >= 1 for answer in refused)
    assert {answer["id"] % 2 for answer in refused} == {1}
    assert len(engine.requests()) == 20 - len(refused)
    assert max(line["ms"] for line in log.lines if line.get("code") == -32014) <= 500


async def test_some_wait_for_a_moment(engines: Any) -> None:
    """A request waits up to `max_wait_ms` for a place: it is served if one gets free, and refused if none does."""
    engine = await engines()
    settings = {"server": {"max_in_flight": 1, "max_waiting": 1, "max_wait_ms": 60_000}}
    async with running([entry("e", engine, timeoutMs=60_000)], settings) as gateway:
        tasks = await taken(gateway, engine, 1)
        waiting = asyncio.create_task(gateway.post(PING))
        await until(lambda: gateway.state.admission.waiting == 1)
        assert (await gateway.post(PING)).status_code == 503
        await end(tasks)
        assert (await waiting).status_code == 200
        assert await gateway.metric("rcp_gateway_admission_wait_seconds_count") == 1
    settings["server"]["max_wait_ms"] = 20
    async with running([entry("e", engine, timeoutMs=60_000)], settings) as gateway:
        tasks = await taken(gateway, engine, 1)
        assert (await gateway.post(PING)).status_code == 503
        assert await gateway.metric("rcp_gateway_admission_refusals_total", reason="waited") == 1
        await end(tasks)
        assert gateway.state.admission.in_flight == 0


async def test_waiting_counts_towards_the_deadline(engines: Any) -> None:
    """What a request waited is gone from its deadline: the engines get less."""
    engine = await engines()
    settings = {
        "server": {"max_in_flight": 1, "max_wait_ms": 60_000},
        "retrieve": {"deadline_ms": 60_000, "reserve_ms": 0},
    }
    async with running([entry("e", engine, timeoutMs=600_000)], settings) as gateway:
        tasks = await taken(gateway, engine, 1)
        waiting = asyncio.create_task(gateway.post(question(None)))
        await until(lambda: gateway.state.admission.waiting == 1)
        await asyncio.sleep(0.1)
        engine.answers["retrieve"] = {"hits": hits("a")}
        await end(tasks)
        assert (await waiting).status_code == 200
        assert engine.requests()[-1].params["_meta"]["deadlineMs"] <= 59_400 - 90


async def test_a_batch_counts_member_by_member(engines: Any) -> None:
    """A batch that finds no room for all its members is refused as a whole, unless it is alone."""
    engine = await engines()
    async with running([entry("e", engine, timeoutMs=60_000)], {"server": {"max_in_flight": 3}}) as gateway:
        assert (await gateway.post([PING] * 5)).status_code == 200
        tasks = await taken(gateway, engine, 1)
        assert (await gateway.post([PING] * 2)).status_code == 200
        refused = await gateway.post([PING] * 3)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == -32011
        assert gateway.state.admission.in_flight == 1
        await end(tasks)


async def test_probes_get_through(engines: Any) -> None:
    """While everything else is refused, /livez, /readyz and /metrics answer."""
    engine = await engines()
    engine.answers["retrieve"] = hang
    settings = {"server": {"max_in_flight": 1, "max_waiting": 0}}
    async with listening([entry("e", engine, timeoutMs=60_000)], settings) as (state, port):
        async with asking(port, question(None)), asking(port, PING) as refused:
            await refused.head()
            assert refused.status == 503
            for path in ("/livez", "/readyz", "/metrics"):
                assert (await plain(port, f"GET {path} HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n"))[0] == 200
        assert state.admission.in_flight <= 1


async def plain(port: int, request: str | bytes) -> tuple[int, bytes]:
    """(status, all that came) for raw bytes on a connection of their own, until the gateway closes it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request if isinstance(request, bytes) else request.encode())
    async with asyncio.timeout(PATIENCE):
        answer = await reader.read()
    writer.close()
    return int(answer.split(b" ", 2)[1]), answer


async def test_probes_share_a_connection_with_requests(engines: Any) -> None:
    """A probe answered on the spot leaves its connection to the next request, and waits for one before it."""
    async with listening([entry("e", await engines())]) as (_, port):
        body = json.dumps(PING).encode()
        ping = b"POST /rcp HTTP/1.1\r\nhost: g\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        probe = b"GET /livez HTTP/1.1\r\nhost: g\r\n\r\n"
        last = b"GET /readyz HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n"
        _, answers = await plain(port, probe + ping + probe + ping + last)
    assert answers.count(b"HTTP/1.1 200 OK") == 5
    said = [part.partition(b"\r\n\r\n")[2] for part in answers.split(b"HTTP/1.1 ")[1:]]
    assert [b"alive" in said[0], b"result" in said[1], b"alive" in said[2], b"result" in said[3]] == [True] * 4
    assert b"degraded" in said[4]


async def test_connections_beyond_the_bound_serve_only_probes(engines: Any) -> None:
    """A connection too many is answered 503 and closed, but a probe on it is answered; many too many are closed."""
    engine = await engines()
    settings = {"server": {"max_connections": 2}}
    async with listening([entry("e", engine)], settings) as (state, port), AsyncExitStack() as stack:
        for _ in range(2):
            reader = await stack.enter_async_context(asking(port, PING))
            await reader.head()
            assert reader.status == 200
        status, answer = await plain(port, b"POST /rcp HTTP/1.1\r\nhost: g\r\ncontent-length: 2\r\n\r\n{}")
        assert status == 503
        assert b"retry-after: 1" in answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == -32011
        assert (await plain(port, b"GET /livez HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n"))[0] == 200
        cut = state.metrics.registry.get_sample_value("rcp_gateway_connections_cut_total", {"reason": "too_many"})
        assert cut == 2


async def test_idle_connections_cost_nobody_a_place(engines: Any, tmp_path: Path) -> None:
    """With few descriptors and far more callers that open connections and ask nothing, probes and requests are answered
    as ever: who has been idle longest is hung up on."""
    async with gateway_process(tmp_path, [entry("e", await engines())], descriptors=64) as gateway:
        idle = [await asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(100)]
        await asyncio.sleep(3)  # they count as idle after a second, which begins when they are noticed
        for path in (b"/livez", b"/readyz", b"/metrics"):
            probe = b"GET %b HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n" % path
            assert (await plain(gateway.port, probe))[0] == 200
        body = json.dumps(PING).encode()
        ping = b"POST /rcp HTTP/1.1\r\nhost: g\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        assert [(await plain(gateway.port, ping))[0] for _ in range(5)] == [200] * 5
        assert (await gateway.retrieve()).status_code == 200
        for _, writer in idle:
            writer.close()
    assert "Traceback" not in gateway.text


FAILED_AUTH = {
    "one byte": b"P",
    "half a head": b"POST /rcp HTTP/1.1\r\nhost: g\r\n",
    "half a body": b"POST /rcp HTTP/1.1\r\nhost: g\r\ncontent-length: 100\r\n\r\n{",
}


@pytest.mark.parametrize("name", FAILED_AUTH)
async def test_unfinished_requests_cost_nobody_a_place(engines: Any, tmp_path: Path, name: str) -> None:
    """Callers that begin a request and go no further hold no places: probes are answered at once, whoever comes, and
    requests as soon as the oldest of those callers can be let go."""
    async with gateway_process(tmp_path, [entry("e", await engines())], descriptors=64) as gateway:
        failed_auth = []
        for _ in range(120):
            failed_auth.append(await asyncio.open_connection("127.0.0.1", gateway.port))
            failed_auth[-1][1].write(FAILED_AUTH[name])
        for path in (b"/livez", b"/readyz", b"/metrics") * 3:
            probe = b"GET %b HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n" % path
            assert (await plain(gateway.port, probe))[0] == 200
        body = json.dumps(PING).encode()
        ping = b"POST /rcp HTTP/1.1\r\nhost: g\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        async with asyncio.timeout(PATIENCE):
            while (await plain(gateway.port, ping))[0] != 200:
                pass
        for _, writer in failed_auth:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
    assert "Traceback" not in gateway.text


async def test_a_spare_place_is_not_held(engines: Any) -> None:
    """Above the bound a connection has to send its head within two seconds, or is closed."""
    async with (
        listening([entry("e", await engines())], {"server": {"max_connections": 1}}) as (_, port),
        asking(port, PING) as reader,
    ):
        await reader.head()
        stranger, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /livez HT")
        async with asyncio.timeout(PATIENCE):
            assert await stranger.read() == b""
        writer.close()


async def test_an_address_has_a_share_of_the_places(engines: Any) -> None:
    """Connections of one address above its bound serve probes only, unless the address is a trusted proxy's."""
    settings = {"server": {"max_connections_per_address": 2}}
    for proxies, status in (([], 503), (["127.0.0.0/8"], 200)):
        settings["server"]["trusted_proxies"] = proxies
        async with listening([entry("e", await engines())], settings) as (_, port), AsyncExitStack() as stack:
            for _ in range(2):
                assert (await (await stack.enter_async_context(asking(port, PING))).head()).status == 200
            assert (await (await stack.enter_async_context(asking(port, PING))).head()).status == status
            assert (await plain(port, b"GET /livez HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n"))[0] == 200


@pytest.mark.parametrize("member", [b"[]", b"{}", b'{"a":1}', b'""'], ids=["arrays", "objects", "members", "strings"])
async def test_a_megabyte_of_nothing_stalls_nobody(engines: Any, member: bytes) -> None:
    """A body that would take long to parse is refused with -32013 before it is parsed; prose of that size is not."""
    async with running([entry("e", await engines())]) as gateway:
        body = b"[" + b",".join([member] * (1_000_000 // (len(member) + 1))) + b"]"
        began = time.thread_time()
        refused = await gateway.post(body)
        took = time.thread_time() - began
        assert refused.status_code == 413
        assert refused.json()["error"]["code"] == -32013
        assert took < 0.5
        prose = {**PING, "params": {"nonce": ('He said: "[no], {never}", and left. ' * 27_000)}}
        assert (await gateway.post(prose)).status_code == 200


async def test_an_engine_that_answers_nothing_at_length_is_not_parsed(engines: Any) -> None:
    """Sixteen megabytes of empty arrays are `too_large`; as many of long texts are an answer."""
    engine, other = await engines(), await engines()
    engine.answers["retrieve"] = {"hits": [[]] * 3_000_000}
    other.answers["retrieve"] = {
        "hits": [{"id": str(i), "score": 1.0, "text": "prose, and more: " * 4000} for i in range(200)]
    }
    entries = [entry("e", engine, timeoutMs=60_000), entry("f", other, timeoutMs=60_000)]
    async with running(entries, {"retrieve": {"deadline_ms": 60_000}}) as gateway:
        result = await gateway.retrieve(k=1)
        kinds = {engine["id"]: engine.get("reason", engine["status"]) for engine in report(result)}
    assert kinds["f"] == "ok"
    assert "too_large" in str(report(result)[0])


def report(result: Json) -> list[Json]:
    """The report of every engine."""
    found: list[Json] = result["_meta"]["x-gateway"]["engines"]
    return found
