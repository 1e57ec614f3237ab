"""Two gateways over one Redis are one to their callers; without it each goes on alone, and says so."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app.state.redis import RedisConnection
from tests.support.corpora import ids, pages_of, serving
from tests.support.mcp_peer import SERVED, called
from tests.support.redis_server import Relay
from tests.support.running_gateway import Json, RunningGateway, entry, running, until
from tests.support.scripted_engine import RpcFault
from tests.support.shared_state import unique
from tests.support.tenancy import asked, error, result, tenant

RED, BLUE = "red-key-0123456789", "blue-key-0123456789"
WRITES = {"index": {"writable": True}}
PATIENT_MS = 10_000
WRITING = {"index": {"enabled": True}}


def shared(url: str, **more: Any) -> Json:
    """The section `state` of gateways that share it, apart from those of other tests."""
    return {"url": url, "prefix": unique(), "timeout_ms": PATIENT_MS, "replicas": 2, **more}


@asynccontextmanager
async def pair(
    entries: list[Json], state: Json, settings: Json | None = None, **more: Any
) -> AsyncIterator[tuple[RunningGateway, RunningGateway]]:
    """Two gateways with the same files."""
    settings = {**(settings or {}), "state": state}
    async with running(entries, settings, **more) as one, running(entries, settings, **more) as two:
        yield one, two


async def lost(relay: Relay, *gateways: RunningGateway) -> None:
    """Cut the relay, and wait until these gateways have noticed."""
    await relay.cut()
    for gateway in gateways:
        await gateway.retrieve(query="does it notice?", sessionId="probe")
        assert gateway.state.backend.degraded


async def back(relay: Relay, *gateways: RunningGateway) -> None:
    """Let Redis be reached again, and wait until these gateways have noticed."""
    await relay.start()
    await until(lambda: not any(gateway.state.backend.degraded for gateway in gateways))


def notes(answer: Json) -> str:
    """The notes of an answer as one text."""
    return "\n".join(answer["usage"].get("notes", []))


async def test_a_page_is_served_by_whoever_is_asked(engines: Any, redis_url: str) -> None:
    """Pages that alternate between two gateways are those of one; the engine is asked no oftener."""
    engine = await serving(engines, *range(60))
    async with running([entry("e", engine)]) as alone:
        whole = await pages_of(alone)
    before = len(engine.requests())
    async with pair([entry("e", engine)], shared(redis_url)) as gateways:
        pages = [await gateways[0].retrieve()]
        while "nextCursor" in pages[-1]:
            pages.append(await gateways[len(pages) % 2].retrieve(cursor=pages[-1]["nextCursor"]))
    assert [ids(page) for page in pages] == [ids(page) for page in whole]
    assert len(engine.requests()) - before == before
    assert "state:" not in notes(pages[0])


async def test_a_hit_is_fetched_from_whoever_is_asked(engines: Any, redis_url: str) -> None:
    """What one gateway answered an MCP client, another one gives it whole; the engine is asked once."""
    engine = await serving(engines, *range(3))
    async with pair([entry("e", engine)], shared(redis_url), SERVED) as (one, two):
        found = (await called(one, "search", {"query": "q"}))["structuredContent"]["results"]
        fetched = (await called(two, "fetch", {"id": found[0]["id"]}))["structuredContent"]
    assert fetched["id"] == found[0]["id"]
    assert len(engine.requests()) == 1


async def test_hits_that_are_not_shared_are_asked_for_again(engines: Any, redis_url: str) -> None:
    """With nothing but places in Redis another gateway asks the engines, and answers nothing twice."""
    engine = await serving(engines, *range(60))
    async with pair([entry("e", engine)], shared(redis_url, max_shared_bytes=0)) as (one, two):
        first = await one.retrieve()
        before = len(engine.requests())
        second = await two.retrieve(cursor=first["nextCursor"])
        assert len(engine.requests()) == before + 1
    assert ids(first, second) == list(range(20))


async def test_a_session_is_one_at_both(engines: Any, redis_url: str) -> None:
    """What one has answered the other does not answer again, also when both are asked at the same time."""
    engine = await serving(engines, *range(90))
    async with pair([entry("e", engine)], shared(redis_url)) as gateways:
        answers = [await gateways[turn % 2].retrieve(query=f"{turn}", sessionId="s") for turn in range(4)]
        together = [gateways[turn % 2].retrieve(query=f"t{turn}", sessionId="t") for turn in range(6)]
        await asyncio.gather(*together)
        after = await gateways[0].retrieve(query="after", sessionId="t")
    found = ids(*answers)
    assert len(found) == len(set(found)) == 40
    assert ids(after) == list(range(10, 20))


async def test_gateways_that_serve_something_else_do_not_meet(engines: Any, redis_url: str) -> None:
    """A cursor belongs to gateways of one identity: another registry, or another prefix, does not know it."""
    engine = await serving(engines, *range(30))
    entries, state = [entry("e", engine)], shared(redis_url)
    async with running(entries, {"state": state}) as one, running(entries, {"state": state}, fingerprint="f") as two:
        cursor = (await one.retrieve())["nextCursor"]
        assert (await two.error("retrieve", {"query": "q", "cursor": cursor}))["code"] == -32015
    async with running(entries, {"state": shared(redis_url)}) as three:
        fault = await three.error("retrieve", {"query": "q", "cursor": cursor})
        assert fault["code"] == -32015
        assert "retryable" not in fault.get("data", {})


async def test_limits_count_together(redis_url: str) -> None:
    """What a tenant asks of one it cannot ask of the other; refusals of both say when to come again."""
    tenants = {"red": tenant(keys=(RED,), limits={"rps": 0.01, "burst": 6}), "blue": tenant(keys=(BLUE,))}
    async with pair([], shared(redis_url), reach=False, tenants=tenants) as gateways:
        answers = [await asked(gateways[turn % 2], RED, "ping") for turn in range(8)]
        assert [answer.status_code for answer in answers] == [200] * 6 + [429] * 2
        assert 0 < answers[-1].json()["error"]["data"]["retryAfterMs"] <= 700_000
        assert (await asked(gateways[0], BLUE, "ping")).status_code == 200


async def test_cursors_and_keys_are_a_tenants_own_at_both(engines: Any, redis_url: str) -> None:
    """Another tenant's cursor is unknown at the other gateway too, and its idempotency key is another."""
    engine = await serving(engines, *range(30))
    writer = await engines(capabilities=WRITES)
    writer.answers["index/delete"] = {"deleted": 1}
    roles = ["read", "write"]
    tenants = {"red": tenant("*", keys=(RED,), roles=roles), "blue": tenant("*", keys=(BLUE,), roles=roles)}
    entries = [entry("e", engine), entry("w", writer)]
    async with pair(entries, shared(redis_url), WRITING, tenants=tenants) as (one, two):
        cursor = (await result(one, RED, "retrieve", {"query": "q"}))["nextCursor"]
        assert (await error(two, BLUE, "retrieve", {"query": "q", "cursor": cursor}))["code"] == -32015
        assert len((await result(two, RED, "retrieve", {"query": "q", "cursor": cursor}))["hits"]) == 10
        call = {"ids": ["x"], "_meta": {"idempotencyKey": "k"}}
        for gateway, key in ((one, RED), (two, RED), (two, BLUE)):
            assert (await result(gateway, key, "index/delete", call))["deleted"] == 1
    assert len(writer.requests("index/delete")) == 2


async def test_a_call_with_a_key_is_carried_out_once(engines: Any, redis_url: str) -> None:
    """The other gateway gives the same result without asking; other params are -32016; a failure is forgotten."""
    engine = await engines(capabilities=WRITES)
    engine.answers["index/add"] = RpcFault(-32013, "not today")
    call = {"documents": [{"id": "x", "text": "t"}], "_meta": {"idempotencyKey": "k"}}
    async with pair([entry("e", engine)], shared(redis_url), WRITING) as (one, two):
        assert (await one.error("index/add", call))["code"] == -32013
        engine.answers["index/add"] = {"ids": ["x"], "chunks": 3}
        first = await two.result("index/add", call)
        asked_then = len(engine.requests("index/add"))
        assert await one.result("index/add", {**call, "_meta": {"idempotencyKey": "k", "traceId": "other"}}) == first
        fault = await one.error("index/add", {**call, "documents": [{"id": "y", "text": "t"}]})
        assert (fault["code"], fault["data"]["field"]) == (-32016, "_meta.idempotencyKey")
        assert (await one.error("index/delete", {"ids": ["x"], "_meta": call["_meta"]}))["code"] == -32016
        assert len(engine.requests("index/add")) == asked_then
        again = await one.result("index/add", call, base="/engines/e/rcp")
        assert len(engine.requests("index/add")) == asked_then + 1, "one engine's endpoint is another place"
    assert first["ids"] == again["ids"] == ["x"]


async def test_handshakes_hold_at_both(engines: Any, relay: Relay) -> None:
    """Where one is required, the token of one gateway is good at the other; without Redis nobody is turned away."""
    engine = await serving(engines, *range(10))
    settings = {"server": {"handshake": "required"}}
    async with pair([entry("e", engine)], shared(relay.url), settings) as (one, two):
        assert (await two.error("retrieve", {"query": "q"}))["code"] == -32001
        token = (await one.result("initialize", {"protocolVersion": 1}))["_meta"]["session"]
        mine = {"rcp-session": token}
        assert (await two.result("retrieve", {"query": "q"}, headers=mine))["hits"]
        assert (await two.error("initialize", {"protocolVersion": 1}, headers=mine))["code"] == -32600
        await relay.cut()
        assert (await two.result("retrieve", {"query": "q"}, headers=mine))["hits"]
        assert (await two.result("initialize", {"protocolVersion": 1}, headers=mine))["_meta"]["session"]
        await back(relay, two)


async def test_without_redis_each_goes_on_alone(engines: Any, relay: Relay) -> None:
    """First pages are answered, their cursors and sessions hold at one gateway, others' are -32015 for now; all of it
    is said, and ends by itself."""
    engine = await serving(engines, *range(60))
    async with pair([entry("e", engine)], shared(relay.url)) as (one, two):
        before = await one.retrieve()
        await lost(relay, one, two)
        first = await one.retrieve()
        assert "the shared state is unavailable" in notes(first)
        assert ids(await one.retrieve(cursor=first["nextCursor"])) == list(range(10, 20))
        fault = await two.error("retrieve", {"query": "q", "cursor": first["nextCursor"]})
        assert (fault["code"], fault["data"]["retryable"], fault["data"]["retryAfterMs"]) == (-32015, True, 1000)
        answers = [await one.retrieve(query=f"{turn}", sessionId="s", k=10) for turn in range(2)]
        assert ids(*answers) == list(range(20))
        assert "the session contains only what this gateway returned" in notes(answers[1])
        whole = await one.retrieve(k=60)
        assert "nextCursor" not in whole
        assert "state:" not in notes(whole), "nothing to say where nothing is continued"
        probe = await one.client.get("/readyz")
        assert (probe.status_code, probe.json()["degraded"]) == (200, True)
        assert await one.metric("rcp_gateway_state_degraded") == 1
        assert await one.metric("rcp_gateway_state_fallbacks_total", use="pages") > 0
        assert await one.metric("rcp_gateway_requests_total", method="retrieve", outcome="ok") > 0
        await back(relay, one, two)
        assert await one.metric("rcp_gateway_state_degraded") == 0
        assert ids(await two.retrieve(cursor=before["nextCursor"])) == list(range(10, 20))
        assert (await one.client.get("/readyz")).json()["degraded"] is False


async def test_a_frozen_redis_is_waited_for_once(engines: Any, relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that needs the store several times waits for it once, those after it not at all; nobody is refused."""
    engine = await serving(engines, *range(60))
    tenants = {"red": tenant("*", keys=(RED,), limits={"rps": 100, "burst": 100, "hits_per_day": 100_000})}
    waits: list[bool] = []
    patiently = RedisConnection._or_lost

    async def counted(link: RedisConnection, answer: Any) -> Any:
        waits.append(False)
        answered = await patiently(link, answer)
        waits[-1] = True
        return answered

    async with running([entry("e", engine)], {"state": shared(relay.url, timeout_ms=2000)}, tenants=tenants) as gateway:
        await until(lambda: not gateway.state.backend.degraded)
        await gateway.state.switches.close()  # which waits for Redis as well, but in no request
        monkeypatch.setattr(RedisConnection, "_or_lost", counted)
        answers = [await asked(gateway, RED, "retrieve", {"query": "well", "sessionId": "s"})]
        assert len(waits) >= 6
        assert all(waits), "while it is well, each question is answered"
        waits.clear()
        relay.freeze()
        answers += [await asked(gateway, RED, "retrieve", {"query": f"{turn}", "sessionId": "s"}) for turn in range(12)]
        assert waits == [False]
        assert {answer.status_code for answer in answers} == {200}
        assert not any("error" in answer.json() for answer in answers)
        assert gateway.state.backend.degraded
        relay.thaw()
        await until(lambda: not gateway.state.backend.degraded)


async def test_without_redis_a_limit_is_divided(relay: Relay) -> None:
    """Of a limit of six, each of two replicas lets through three; when Redis is back all count together again."""
    tenants = {"red": tenant(keys=(RED,), limits={"rps": 0.01, "burst": 6})}
    async with pair([], shared(relay.url), reach=False, tenants=tenants) as gateways:
        await relay.cut()
        statuses = [[(await asked(gateway, RED, "ping")).status_code for _ in range(4)] for gateway in gateways]
        assert statuses == [[200, 200, 200, 429]] * 2
        await back(relay, *gateways)
        together = [(await asked(gateways[turn % 2], RED, "ping")).status_code for turn in range(7)]
        assert together == [200] * 6 + [429]


async def test_a_gateway_starts_without_redis(engines: Any, relay: Relay) -> None:
    """It serves from the start, and shares as soon as there is somebody to share with."""
    await relay.cut()
    engine = await serving(engines, *range(30))
    async with running([entry("e", engine)], {"state": shared(relay.url)}) as gateway:
        assert (await gateway.retrieve())["hits"]
        await back(relay, gateway)
        assert "state:" not in notes(await gateway.retrieve())


@pytest.mark.parametrize("text", [b"", b"garbage", b"9:abcdefabcdef:[]", b"1:abcdefabcdef:[1]"])
async def test_a_page_that_cannot_be_read_is_not_found(engines: Any, redis_url: str, text: bytes) -> None:
    """What another release, or somebody else, has put under a cursor's key is -32015, and no internal error."""
    engine = await serving(engines, *range(30))
    state = shared(redis_url)
    async with running([entry("e", engine)], {"state": state}) as gateway:
        cursor = (await gateway.retrieve())["nextCursor"]
        backend: Any = gateway.state.backend
        (key,) = await backend._link.ask(lambda redis: redis.keys(f"{state['prefix']}:*place:{cursor}"))
        await backend._link.ask(lambda redis: redis.set(key, text))
        assert (await gateway.error("retrieve", {"query": "q", "cursor": cursor}))["code"] == -32015


async def test_everything_in_redis_ends_and_has_the_prefix(engines: Any, redis_url: str) -> None:
    """After a bit of everything no key is without an end, and none is outside the prefix."""
    engine = await serving(engines, *range(60))
    tenants = {"red": tenant("*", keys=(RED,), limits={"rps": 100, "hits_per_day": 1000})}
    state = shared(redis_url)
    async with running([entry("e", engine)], {"state": state}, tenants=tenants) as gateway:
        backend: Any = gateway.state.backend
        await result(gateway, RED, "retrieve", {"query": "q", "sessionId": "s" * 250})
        keys = await backend._link.ask(lambda redis: redis.keys(f"{state['prefix']}:*"))
        ends = [await backend._link.ask(lambda redis, key=key: redis.pttl(key)) for key in keys]
    # The place and the hits of the next page, the session, the window and its total, the day; the probe may be over.
    assert len([key for key in keys if not key.endswith(b":probe")]) == 6
    assert all(end > 0 for end in ends)


async def test_a_call_under_way_is_not_begun_again(engines: Any, redis_url: str) -> None:
    """The same call at the other gateway meanwhile is -32016 and may be tried again; then it has the result."""
    engine = await engines(capabilities=WRITES)
    release = asyncio.Event()

    async def slow(asked: Any) -> Json:
        await release.wait()
        return {"deleted": 1}

    engine.answers["index/delete"] = slow
    call = {"ids": ["x"], "_meta": {"idempotencyKey": "k"}}
    async with pair([entry("e", engine)], shared(redis_url), WRITING) as (one, two):
        first = asyncio.create_task(one.result("index/delete", call))
        await until(lambda: bool(engine.requests("index/delete")))
        fault = await two.error("index/delete", call)
        assert (fault["code"], fault["data"]["retryable"]) == (-32016, True)
        release.set()
        done = await first
        assert await two.result("index/delete", call) == done
    assert len(engine.requests("index/delete")) == 1
