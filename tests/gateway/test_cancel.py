"""`notifications/cancel` over HTTP: who may call off what, what becomes of the legs, and what is answered."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.listening_gateway import EVENTS, asking, listening, question
from tests.support.raw_peer import Line, RawPeer, http_answer, rpc_answer
from tests.support.running_gateway import RunningGateway, entry, running, until
from tests.support.scripted_engine import DEFAULT_CAPABILITIES, hang
from tests.support.tenancy import bearer, tenant

RETRIEVE = {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": {"query": "q"}}
MINE = {"RCP-Session": "mine"}


def cancel(message_id: Any, **more: Any) -> Any:
    """The notification that calls off one request."""
    return {"jsonrpc": "2.0", "method": "notifications/cancel", "params": {"id": message_id, **more}}


class Held:
    """An engine that takes questions and never answers them, each on a connection of its own, and its gateway."""

    gateway: RunningGateway

    def __init__(self) -> None:
        self.engine = RawPeer(self._talk)
        self.questions = 0
        self.waiting = 0
        """Connections on which the engine still owes an answer."""
        self._sent = 0

    async def ask(self, message: Any = RETRIEVE, headers: Any = MINE, questions: int = 1) -> "asyncio.Task[Any]":
        """Send a request and wait until the engine has been asked so many more questions."""
        self._sent += questions
        task = asyncio.create_task(self.gateway.post(message, headers=headers))
        await until(lambda: self.questions >= self._sent)
        return task

    async def counted(self, outcome: str) -> float:
        """Questions of that outcome."""
        return await self.gateway.metric("rcp_gateway_requests_total", method="retrieve", outcome=outcome)

    async def _talk(self, line: Line) -> None:
        while request := await line.request():
            if request.message["method"] == "retrieve":
                self.questions += 1
                self.waiting += 1
                await line.until_ended()
                self.waiting -= 1
                return
            server = {"name": "held", "version": "1"}
            description = {"protocolVersion": 1, "server": server, "capabilities": DEFAULT_CAPABILITIES}
            line.send(http_answer(rpc_answer(request.id, description)))


@asynccontextmanager
async def held() -> AsyncIterator[Held]:
    """A gateway over an engine that never answers a question."""
    made = Held()
    async with made.engine as engine, running([entry("held", engine.url, timeoutMs=60_000)]) as gateway:
        made.gateway = gateway
        yield made


def refused(response: Any) -> tuple[int, Any, int]:
    """(HTTP status, id, error code) of an answer that must be an error."""
    body = response.json()
    assert "result" not in body
    return response.status_code, body["id"], body["error"]["code"]


@pytest.mark.parametrize("message_id", [1, "1", "a/b", 0, -3, 1.5, ""])
async def test_request_is_answered_once_with_its_cancellation(message_id: Any) -> None:
    """The one that is called off is answered -32006 with HTTP 200; its leg's connection is closed; it is counted."""
    async with held() as held_gateway:
        gateway = held_gateway.gateway
        asked = await held_gateway.ask({**RETRIEVE, "id": message_id})
        assert held_gateway.waiting == 1
        response = await gateway.post(cancel(message_id, reason="changed my mind"), headers=MINE)
        assert (response.status_code, response.content) == (204, b"")
        assert refused(await asked) == (200, message_id, -32006)
        await until(lambda: held_gateway.waiting == 0)
        assert gateway.state.engines.engines[0].semaphore.in_flight == 0
        assert await held_gateway.counted("cancelled") == 1
        assert await gateway.metric("rcp_gateway_errors_total", code="-32006") == 1
        assert await gateway.metric("rcp_gateway_legs_total", engine="held", outcome="cancelled") == 1
        assert await gateway.metric("rcp_gateway_requests_in_flight") == 0


@pytest.mark.parametrize(
    ("theirs", "ours", "message"),
    [
        (MINE, {"RCP-Session": "other"}, cancel(1)),
        (MINE, {"RCP-Session": "Mine"}, cancel(1)),
        (MINE, {"RCP-Session": ""}, cancel(1)),
        (MINE, {}, cancel(1)),
        ({}, {}, cancel(1)),
        ({"RCP-Session": ""}, {"RCP-Session": ""}, cancel(1)),
        ({"RCP-Session": "x" * 257}, {"RCP-Session": "x" * 257}, cancel(1)),
        ({}, MINE, cancel(1)),
        (MINE, MINE, cancel("1")),
        (MINE, MINE, cancel(2)),
        (MINE, MINE, cancel(True)),
        (MINE, MINE, cancel(None)),
        (MINE, MINE, cancel([1])),
        (MINE, MINE, {"jsonrpc": "2.0", "method": "notifications/cancel"}),
        (MINE, MINE, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"id": 1}}),
        (MINE, MINE, {"jsonrpc": "2.0", "method": "cancel", "params": {"id": 1}}),
    ],
)
async def test_nothing_else_is_called_off(theirs: Any, ours: Any, message: Any) -> None:
    """Without a session, from another one, or for an id that is not under way: ignored, 204, and nothing ends."""
    async with held() as held_gateway:
        asked = await held_gateway.ask(headers=theirs)
        assert (await held_gateway.gateway.post(message, headers=ours)).status_code == 204
        # Whatever it did would have been done by the time that a request sent later is answered.
        assert (await held_gateway.gateway.result("ping")) == {}
        assert not asked.done()
        assert held_gateway.waiting == 1
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)


async def test_cancel_with_an_id_is_an_invalid_request() -> None:
    """A cancel that carries an `id` is -32600 and calls nothing off."""
    async with held() as held_gateway:
        asked = await held_gateway.ask()
        response = await held_gateway.gateway.post({**cancel(1), "id": 9}, headers=MINE)
        assert refused(response) == (200, 9, -32600)
        assert not asked.done()
        await held_gateway.gateway.post(cancel(1), headers=MINE)
        await asked


async def test_cancel_at_another_methods_path_is_dropped() -> None:
    """At its own path and at the bare one a cancel counts; at another method's path it is dropped."""
    async with held() as held_gateway:
        gateway = held_gateway.gateway
        asked = await held_gateway.ask()
        assert (await gateway.post(cancel(1), "/rcp/ping", MINE)).status_code == 204
        await gateway.result("ping")
        assert not asked.done()
        assert (await gateway.post(cancel(1), "/rcp/notifications/cancel", MINE)).status_code == 204
        assert refused(await asked) == (200, 1, -32006)


async def test_only_the_named_request_ends() -> None:
    """Of several requests of one session the named one is called off, and the connections of the others stay."""
    async with held() as held_gateway:
        asked = [await held_gateway.ask({**RETRIEVE, "id": number}) for number in range(3)]
        await held_gateway.gateway.post(cancel(1), headers=MINE)
        assert refused(await asked[1]) == (200, 1, -32006)
        await until(lambda: held_gateway.waiting == 2)
        assert not asked[0].done()
        assert not asked[2].done()
        for number in (0, 2):
            await held_gateway.gateway.post(cancel(number), headers=MINE)
        assert [refused(await task)[2] for task in asked] == [-32006] * 3


async def test_request_that_was_answered_is_not_called_off(engines: Any) -> None:
    """A cancel that comes too late is ignored, and the next request with that id is not touched by it."""
    async with running([entry("e", await engines())]) as gateway:
        for _ in range(2):
            assert "result" in (await gateway.post(RETRIEVE, headers=MINE)).json()
            assert (await gateway.post(cancel(1), headers=MINE)).status_code == 204


async def test_member_of_a_batch_is_called_off_alone() -> None:
    """In a batch the named member is -32006 and the others are answered as ever."""
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    async with held() as held_gateway:
        asked = await held_gateway.ask([RETRIEVE, ping, {**RETRIEVE, "id": 3}], questions=2)
        await held_gateway.gateway.post([cancel(1), cancel(3)], headers=MINE)
        answers = {answer["id"]: answer for answer in (await asked).json()}
    assert answers.keys() == {1, 2, 3}
    assert [answers[number]["error"]["code"] for number in (1, 3)] == [-32006, -32006]
    assert answers[2]["result"] == {}


async def test_batch_may_call_off_its_own_member() -> None:
    """A batch that asks and calls off in one breath is answered with the cancellation."""
    async with held() as held_gateway:
        response = await held_gateway.gateway.post([RETRIEVE, cancel(1)], headers=MINE)
    (answer,) = response.json()
    assert answer["error"]["code"] == -32006


async def test_stream_ends_with_the_cancellation(engines: Any) -> None:
    """A stream that is called off ends with -32006 as its last frame, after what was told before."""
    quick, slow = await engines(), await engines()
    slow.answers["retrieve"] = hang
    entries = [entry("quick", quick), entry("slow", slow, timeoutMs=60_000)]
    async with listening(entries) as (state, port), asking(port, question(), rcp_session="mine") as reader:
        await reader.head()
        assert (await reader.progress())["progress"] == 0.5
        async with asking(port, cancel(1), rcp_session="mine") as other:
            assert (await other.head()).status == 204
        last = await reader.message()
        assert (last["id"], last["error"]["code"]) == (1, -32006)
        assert await reader.message() is None
        assert all(engine.semaphore.in_flight == 0 for engine in state.engines.engines)


async def streaming(engines: Any) -> list[Any]:
    """The entry of an engine that never answers."""
    engine = await engines()
    engine.answers["retrieve"] = hang
    return [entry("e", engine, timeoutMs=60_000)]


async def test_a_stream_without_a_session_is_called_off_by_its_caller(engines: Any) -> None:
    """The SDKs cannot send headers: who asked for a stream is known by its address, and its engines are let go."""
    async with listening(await streaming(engines)) as (state, port), asking(port, question()) as reader:
        gate = state.engines.engines[0].semaphore
        await until(lambda: gate.in_flight == 1)
        for message, headers in ((cancel(2), {}), (cancel("1"), {}), (cancel(1), {"rcp_session": "mine"})):
            async with asking(port, message, **headers) as other:
                assert (await other.head()).status == 204
        assert gate.in_flight == 1
        async with asking(port, cancel(1)) as other:
            assert (await other.head()).status == 204
        await reader.head()
        assert (await reader.message())["error"]["code"] == -32006
        assert await reader.message() is None
        assert gate.in_flight == 0


async def test_of_two_streams_with_one_id_neither_is_called_off(engines: Any) -> None:
    """Whose is meant cannot be told where callers share an address: both go on, and each can be once it is alone."""
    async with (
        listening(await streaming(engines)) as (state, port),
        asking(port, question()) as one,
        asking(port, question()) as two,
    ):
        gate = state.engines.engines[0].semaphore
        await until(lambda: gate.in_flight == 2)
        async with asking(port, cancel(1)) as other:
            assert (await other.head()).status == 204
        assert gate.in_flight == 2
        one.writer.close()
        await until(lambda: gate.in_flight == 1)
        async with asking(port, cancel(1)) as other:
            await other.head()
        await two.head()
        assert (await two.message())["error"]["code"] == -32006


async def test_nobody_calls_off_the_stream_of_another_caller(engines: Any) -> None:
    """Another tenant at the same address, or another key, is another caller."""
    tenants = {name: tenant("*", keys=(f"{name}-key",)) for name in "ab"}
    mine, theirs = bearer("a-key"), bearer("b-key")
    async with (
        listening(await streaming(engines), tenants=tenants) as (state, port),
        asking(port, question(), **mine) as reader,
    ):
        gate = state.engines.engines[0].semaphore
        await until(lambda: gate.in_flight == 1)
        async with asking(port, cancel(1), **theirs) as other:
            assert (await other.head()).status == 204
        assert gate.in_flight == 1
        async with asking(port, cancel(1), **mine) as other:
            await other.head()
        await reader.head()
        assert (await reader.message())["error"]["code"] == -32006


async def test_called_off_before_the_stream_began(engines: Any) -> None:
    """Whoever is called off while still nothing has been asked gets the same code, as a stream or plainly."""
    engine = await engines()
    engine.answers["retrieve"] = hang
    async with running([entry("e", engine, timeoutMs=60_000)]) as gateway:
        asked = asyncio.create_task(gateway.post(question(), headers={"Accept": EVENTS, **MINE}))
        await asyncio.sleep(0)
        while not asked.done():
            await gateway.post(cancel(1), headers=MINE)
            await asyncio.sleep(0)
        response = await asked
    last = json.loads(response.text.strip().rpartition("data: ")[2])
    assert last["error"]["code"] == -32006


async def test_many_cancellations_leave_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    """After hundreds of cancelled requests nothing is under way, and no fault was left for the loop to complain of."""
    async with held() as held_gateway:
        gateway = held_gateway.gateway
        for number in range(0, 200, 20):
            ids = range(number, number + 20)
            asked = [await held_gateway.ask({**RETRIEVE, "id": each}) for each in ids]
            await gateway.post([cancel(each) for each in ids], headers=MINE)
            assert [refused(await task)[2] for task in asked] == [-32006] * 20
        await until(lambda: held_gateway.waiting == 0)
        assert gateway.state.engines.engines[0].semaphore.in_flight == 0
        assert await held_gateway.counted("cancelled") == 200
        assert await gateway.metric("rcp_gateway_requests_in_flight") == 0
    gc.collect()
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
