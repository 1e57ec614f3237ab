"""The answer cache: equal requests share one fan-out, answers are kept, for whom, and until when."""

import asyncio
from random import Random
from typing import Any

import pytest

from app.federation.answer_cache import AnswerCache
from app.settings.tenants_file import tenants_in
from tests.gateway.test_explain import LOOPBACK
from tests.gateway.test_shared_state import shared
from tests.support.corpora import ids
from tests.support.listening_gateway import asking, listening, question
from tests.support.running_gateway import Json, RunningGateway, entry, running, until
from tests.support.scripted_engine import Asked, RpcFault, hang, hit, hits
from tests.support.tenancy import result, tenant

ON: Json = {"cache": {"enabled": True}}
RED, BLUE = "red-key-0123456789", "blue-key-0123456789"


def mark(answer: Json) -> Json:
    """How the answer met the cache."""
    found: Json = answer["_meta"]["x-gateway"]["cache"]
    return found


def bare(answer: Json) -> Json:
    """The answer without what differs by caller or from time to time."""
    meta = {key: value for key, value in answer["_meta"]["x-gateway"].items() if key not in ("cache", "engines")}
    usage = {key: value for key, value in answer["usage"].items() if key not in ("latencyMs", "notes")}
    return {**answer, "usage": usage, "_meta": meta}


class Gate:
    """An engine's answer that waits until the test opens it."""

    def __init__(self, *results: Any) -> None:
        self.open = asyncio.Event()
        self.results = list(results) or [{"hits": hits("a", "b")}]

    async def __call__(self, asked: Asked) -> Any:
        await self.open.wait()
        return self.results[0]


async def test_off_nothing_is_shared_and_nothing_is_said(engines: Any) -> None:
    engine = await engines()
    async with running([entry("e", engine)]) as gateway:
        answers = [await gateway.retrieve(), await gateway.retrieve()]
    assert len(engine.requests()) == 2
    assert all("cache" not in answer["_meta"]["x-gateway"] for answer in answers)


async def test_a_second_request_is_served_from_memory(engines: Any) -> None:
    """The same bytes but for times and marks; the engine is not asked again, and the response says how old it is."""
    engine = await engines()
    async with running([entry("e", engine)], ON) as gateway:
        first, second = await gateway.retrieve(), await gateway.retrieve()
        assert await gateway.metric("rcp_gateway_cache_requests_total", status="hit") == 1
        assert await gateway.metric("rcp_gateway_cache_requests_total", status="miss") == 1
        assert await gateway.metric("rcp_gateway_cache_entries") == 1
        assert await gateway.metric("rcp_gateway_cache_bytes") > 0
    assert len(engine.requests()) == 1
    assert bare(first) == bare(second)
    assert mark(first)["status"] == "miss"
    assert mark(second)["status"] == "hit"
    assert second["_meta"]["x-gateway"]["engines"][0]["cached"] is True
    assert any(note.startswith("answered from what was fetched") for note in second["usage"]["notes"])
    assert "cached" not in first["_meta"]["x-gateway"]["engines"][0]


async def test_equal_requests_at_once_share_one_fan_out(engines: Any) -> None:
    """Of 200 callers the first leaves; the others are answered by one call of the engine."""
    engine = await engines()
    gate = engine.answers["retrieve"] = Gate()
    settings = {"cache": {"enabled": True, "join_ms": 60_000}, "server": {"max_in_flight": 1000}}
    async with running([entry("e", engine)], settings) as gateway:
        callers = [asyncio.create_task(gateway.retrieve()) for _ in range(200)]
        await until(lambda: len(engine.requests()) == 1 and gateway.state.admission.in_flight == 200)
        callers[0].cancel()
        await asyncio.wait(callers[:1])
        gate.open.set()
        answers = await asyncio.gather(*callers[1:])
        joined = await gateway.metric("rcp_gateway_cache_requests_total", status="joined")
        assert await gateway.metric("rcp_gateway_flight_callers_count") == 1
        assert await gateway.metric("rcp_gateway_flight_callers_sum") > 1
    assert len(engine.requests()) == 1
    assert {ids(answer)[0] for answer in answers} == {"a"}
    # Some may have waited for the event loop until the answer was there.
    assert joined > 1
    assert {mark(answer)["status"] for answer in answers} <= {"joined", "hit"}


async def test_when_all_callers_leave_the_engine_call_is_cancelled(engines: Any) -> None:
    engine = await engines()
    gate = engine.answers["retrieve"] = Gate()
    async with running([entry("e", engine)], ON) as gateway:
        callers = [asyncio.create_task(gateway.retrieve()) for _ in range(5)]
        await until(lambda: len(engine.requests()) == 1 and gateway.state.admission.in_flight == 5)
        for caller in callers:
            caller.cancel()
        await asyncio.wait(callers)
        await until(lambda: gateway.state.answer_bytes.held == 0)
        assert await gateway.metric("rcp_gateway_legs_total", engine="e", outcome="cancelled") == 1
        assert gateway.state.answer_bytes.held == 0
        gate.open.set()
        assert mark(await gateway.retrieve())["status"] == "miss"


async def test_a_short_deadline_neither_joins_nor_leads(engines: Any) -> None:
    """It may shorten an engine call, so its answer may lack what another caller would get."""
    engine = await engines()
    gate = engine.answers["retrieve"] = Gate()
    async with running([entry("e", engine)], ON) as gateway:
        patient = asyncio.create_task(gateway.retrieve())
        await until(lambda: len(engine.requests()) == 1)
        hasty = await gateway.error("retrieve", {"query": "q", "_meta": {"deadlineMs": 50}})
        assert hasty["code"] in (-32010, -32014)
        assert len(engine.requests()) == 2
        gate.open.set()
        assert mark(await patient)["status"] == "miss"
        kept = await gateway.retrieve(_meta={"deadlineMs": 50})
    assert mark(kept)["status"] == "hit"  # it may read what was kept


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"x-gateway": {"cache": "no"}}, "request"),
        ({"sessionId": "s"}, "session"),
        ({"x-gateway": {"explain": True}}, "explain"),
        ({"seed": 7, "strict": False}, "seed"),
        ({"_meta": {"progressToken": "p"}}, "progress"),
        ({"_meta": {"logLevel": "info"}}, "progress"),
        ({"_meta": {"federation": {"path": ["above"], "depth": 3}}}, "federation"),
    ],
)
async def test_what_is_neither_kept_nor_joined(engines: Any, params: Json, reason: str) -> None:
    engine = await engines()
    async with running([entry("e", engine)], ON) as gateway:
        await gateway.retrieve()
        answers = [await gateway.retrieve(**params) for _ in range(2)]
        assert await gateway.metric("rcp_gateway_cache_bypass_total", reason=reason) == 2
    assert len(engine.requests()) == 3
    assert [mark(answer)["reason"] for answer in answers] == [reason, reason]


async def test_a_cursor_is_not_cached_and_every_caller_has_its_own(engines: Any) -> None:
    """Callers of one kept answer page independently, and get the same pages."""
    engine = await engines(results=hits(*(f"d{number}" for number in range(30))))
    async with running([entry("e", engine)], ON) as gateway:
        first, second = await gateway.retrieve(k=5), await gateway.retrieve(k=5)
        assert mark(second)["status"] == "hit"
        assert first["nextCursor"] != second["nextCursor"]
        pages = [await gateway.retrieve(k=5, cursor=answer["nextCursor"]) for answer in (first, second)]
        assert [mark(page)["reason"] for page in pages] == ["cursor", "cursor"]
    assert ids(pages[0]) == ids(pages[1])
    assert not set(ids(pages[0])) & set(ids(first))


async def test_an_event_stream_bypasses_the_cache(engines: Any) -> None:
    engine = await engines()
    async with running([entry("e", engine)], ON) as gateway:
        await gateway.retrieve()
        headers = {"accept": "text/event-stream"}
        response = await gateway.post(question("t", query="q"), headers=headers)
        assert '"reason":"stream"' in response.text
    assert len(engine.requests()) == 2


async def test_an_engine_can_refuse_to_be_cached_or_shorten_the_time(engines: Any) -> None:
    plain, refusing = await engines(), await engines()
    entries = [entry("plain", plain), entry("refusing", refusing, cacheable=False)]
    async with running(entries, ON) as gateway:
        assert mark(await gateway.retrieve())["reason"] == "engine"
        only = {"x-gateway": {"engines": ["plain"]}}
        assert [mark(await gateway.retrieve(**only))["status"] for _ in range(2)] == ["miss", "hit"]
    async with running([entry("plain", plain, cacheTtlMs=0)], ON) as gateway:
        assert [mark(await gateway.retrieve())["status"] for _ in range(2)] == ["miss", "miss"]


async def test_errors_and_degraded_answers_are_not_kept(engines: Any) -> None:
    well, sick = await engines(), await engines()
    sick.answers["retrieve"] = RpcFault(-32603)
    async with running([entry("well", well), entry("sick", sick)], ON) as gateway:
        assert (await gateway.retrieve())["_meta"]["degraded"] == ["sick"]
        sick.answers["retrieve"] = {"hits": hits("x")}
        assert "degraded" not in (await gateway.retrieve())["_meta"]
        well.answers["retrieve"] = sick.answers["retrieve"] = RpcFault(-32603)
        assert (await gateway.error("retrieve", {"query": "other"}))["code"] == -32010
        well.answers["retrieve"] = sick.answers["retrieve"] = {"hits": hits("x")}
        assert mark(await gateway.retrieve("other"))["status"] == "miss"


async def test_the_report_may_differ_and_everything_else_is_another_question(engines: Any) -> None:
    engine = await engines()
    async with running([entry("e", engine)], ON) as gateway:
        await gateway.retrieve()
        brief = await gateway.retrieve(**{"x-gateway": {"report": "brief"}})
        assert mark(brief)["status"] == "hit"
        assert "counts" in brief["_meta"]["x-gateway"]
        for params in ({"k": 2}, {"query": "Q"}, {"x-gateway": {"confidenceWeight": 0.1}}, {"includeText": False}):
            assert mark(await gateway.retrieve(**params))["status"] == "miss"


async def test_refresh_asks_again_and_keeps_the_new_answer(engines: Any) -> None:
    engine = await engines()
    async with running([entry("e", engine)], ON) as gateway:
        await gateway.retrieve()
        engine.answers["retrieve"] = {"hits": hits("new")}
        refreshed = await gateway.retrieve(**{"x-gateway": {"cache": "refresh"}})
        after = await gateway.retrieve()
    assert ids(refreshed) == ids(after) == ["new"]
    assert (mark(refreshed)["status"], mark(after)["status"]) == ("miss", "hit")


def aged(gateway: RunningGateway, seconds: list[float]) -> None:
    """Give the gateway a cache whose clock shows `seconds[0]`."""
    state = gateway.state
    state.answers = AnswerCache(state.settings.cache, state.metrics.cache, clock=lambda: seconds[0])


async def test_a_stale_answer_is_served_while_a_new_one_is_fetched(engines: Any) -> None:
    engine = await engines()
    settings = {"cache": {"enabled": True, "ttl_seconds": 10, "stale_while_revalidate_seconds": 20}}
    async with running([entry("e", engine)], settings) as gateway:
        now = [1000.0]
        aged(gateway, now)
        await gateway.retrieve()
        engine.answers["retrieve"] = {"hits": hits("new")}
        now[0] += 15
        stale = await gateway.retrieve()
        assert (mark(stale)["status"], mark(stale)["ageMs"], ids(stale)[0]) == ("stale", 15_000, "a")
        assert await gateway.metric("rcp_gateway_cache_stale_served_total", why="revalidate") == 1
        await until(lambda: len(engine.requests()) == 2)
        fresh = await gateway.retrieve()
        while mark(fresh)["status"] == "stale":
            fresh = await gateway.retrieve()
        assert ids(fresh) == ["new"]
        now[0] += 31
        assert mark(await gateway.retrieve())["status"] == "miss"


async def test_a_stale_answer_is_served_only_if_no_engine_answers(engines: Any) -> None:
    """A fresh degraded answer is better than an old whole one."""
    one, two = await engines(), await engines()
    settings = {"cache": {"enabled": True, "ttl_seconds": 10, "stale_if_error_seconds": 60}}
    async with running([entry("one", one), entry("two", two)], settings) as gateway:
        now = [1000.0]
        aged(gateway, now)
        await gateway.retrieve()
        now[0] += 30
        one.answers["retrieve"] = RpcFault(-32603)
        assert (await gateway.retrieve())["_meta"]["degraded"] == ["one"]
        two.answers["retrieve"] = RpcFault(-32603)
        stale = await gateway.retrieve()
        assert mark(stale) == {"status": "stale", "ageMs": 30_000}
        assert await gateway.metric("rcp_gateway_cache_stale_served_total", why="error") == 1
        now[0] += 60
        assert (await gateway.error("retrieve", {"query": "q"}))["code"] == -32010


async def test_answers_without_hits_live_a_quarter_as_long(engines: Any) -> None:
    engine = await engines(results=[])
    async with running([entry("e", engine)], {"cache": {"enabled": True, "ttl_seconds": 40}}) as gateway:
        now = [1000.0]
        aged(gateway, now)
        await gateway.retrieve()
        now[0] += 9
        assert mark(await gateway.retrieve())["status"] == "hit"
        now[0] += 2
        assert mark(await gateway.retrieve())["status"] == "miss"


async def test_another_index_version_of_an_engine_ends_its_answers(engines: Any) -> None:
    """Whichever question shows the new version."""
    engine = await engines()
    engine.answers["retrieve"] = {"hits": hits("a"), "indexVersion": "1"}
    async with running([entry("e", engine)], ON) as gateway:
        await gateway.retrieve("kept")
        engine.answers["retrieve"] = {"hits": hits("b"), "indexVersion": "2"}
        assert mark(await gateway.retrieve("kept"))["status"] == "hit"
        await gateway.retrieve("another")
        assert ids(await gateway.retrieve("kept")) == ["b"]


async def test_writing_and_reports_of_poison_end_answers(engines: Any) -> None:
    capabilities = {"retrieve": {"maxK": 100}, "index": {"writable": True}, "feedback": {}}
    engine = await engines(capabilities=capabilities)
    engine.answers["index/add"] = {"accepted": 1}
    engine.answers["feedback"] = {"accepted": 1}
    settings = {**ON, "index": {"enabled": True}, "screen": {"feedback": True}}
    async with running([entry("e", engine)], settings) as gateway:
        await gateway.retrieve()
        await gateway.call("index/add", {"documents": [{"id": "n", "text": "t"}]})
        assert mark(await gateway.retrieve())["status"] == "miss"
        assert mark(await gateway.retrieve())["status"] == "hit"
        await gateway.result("feedback", {"query": "q", "signals": [{"hitId": "a", "poisonSuspected": True}]})
        marked = await gateway.retrieve()
        assert mark(marked)["status"] == "miss"
        assert marked["hits"][0]["trust"]["injectionSuspected"] is True


async def test_operators_see_and_purge_the_cache(engines: Any) -> None:
    engine, other = await engines(), await engines()
    async with running([entry("e", engine), entry("o", other)], ON) as gateway:
        await gateway.retrieve(**{"x-gateway": {"engines": ["o"]}})
        await gateway.retrieve()
        await gateway.retrieve()
        view = (await gateway.client.get("/admin/cache", headers=LOOPBACK)).json()
        assert (view["enabled"], view["requests"]["hit"], view["entries"]) == (True, 1, 2)
        said = await gateway.post({"action": "purge", "engine": "e"}, "/admin/actions", LOOPBACK)
        assert said.status_code == 200
        assert mark(await gateway.retrieve())["status"] == "miss"
        assert mark(await gateway.retrieve(**{"x-gateway": {"engines": ["o"]}}))["status"] == "hit"
        await gateway.post({"action": "purge"}, "/admin/actions", LOOPBACK)
        assert mark(await gateway.retrieve(**{"x-gateway": {"engines": ["o"]}}))["status"] == "miss"
        refused = await gateway.post({"action": "purge", "engine": "nobody"}, "/admin/actions", LOOPBACK)
        assert refused.status_code == 404


async def test_tenants_never_share(engines: Any) -> None:
    """Equal questions, equal engines: each tenant has its own answers, its own switch and its own time."""
    engine = await engines()
    tenants = {
        "red": tenant("e", keys=(RED,)),
        "blue": tenant("e", keys=(BLUE,), cache={"refresh": True}),
        "green": tenant("e", keys=("green-key-0123456789",), cache={"enabled": False}),
    }
    async with running([entry("e", engine)], ON, tenants=tenants) as gateway:
        statuses = []
        for key in (RED, BLUE, RED, BLUE):
            statuses.append(mark(await result(gateway, key, "retrieve", {"query": "q"}))["status"])
        assert statuses == ["miss", "miss", "hit", "hit"]
        unshared = await result(gateway, "green-key-0123456789", "retrieve", {"query": "q"})
        assert "cache" not in unshared["_meta"]["x-gateway"]
        refresh = {"query": "q", "x-gateway": {"cache": "refresh"}}
        assert mark(await result(gateway, BLUE, "retrieve", refresh))["status"] == "miss"
        refused = await gateway.call("retrieve", refresh, headers={"authorization": f"Bearer {RED}"})
        assert (refused["error"]["code"], refused["error"]["data"]["field"]) == (-32602, "x-gateway.cache")


async def test_no_answer_holds_what_its_caller_does_not_see_now(engines: Any) -> None:
    """Whatever happens to engines and tenants in between."""
    names = ["a", "b", "c", "d"]
    entries = [entry(name, await engines(results=hits(name))) for name in names]
    keys = {"red": RED, "blue": BLUE}

    def declared(**seen: tuple[str, ...]) -> Json:
        return {name: tenant(*seen[name], keys=(key,)) for name, key in keys.items()}

    seen = {"red": ("a", "b"), "blue": ("*",)}
    random = Random(17)
    async with running(entries, ON, tenants=declared(**seen)) as gateway:
        state = gateway.state
        off: set[str] = set()
        statuses = set()
        for _ in range(300):
            step = random.random()
            if step < 0.1:
                name = random.choice(names)
                state.engines.switch(name, name in off)
                off ^= {name}
            elif step < 0.2:
                who = random.choice(list(keys))
                seen[who] = tuple(random.sample(names, random.randint(1, 4)))
                assert state.authenticator is not None
                state.authenticator.replace(tenants_in("t", {"tenants": declared(**seen)}), state.settings.fusion)
            who = random.choice(list(keys))
            visible = {name for name in names if (name in seen[who] or "*" in seen[who]) and name not in off}
            if visible:
                answer = await result(gateway, keys[who], "retrieve", {"query": random.choice("qr")})
                assert set(ids(answer)) == visible
                statuses.add(mark(answer)["status"])
    assert statuses == {"hit", "miss"}


async def test_an_engine_switched_off_is_in_no_answer(engines: Any) -> None:
    one, two = await engines(results=hits("one")), await engines(results=hits("two"))
    async with running([entry("one", one), entry("two", two)], ON) as gateway:
        assert set(ids(await gateway.retrieve())) == {"one", "two"}
        gateway.state.engines.switch("two", False)
        assert ids(await gateway.retrieve()) == ["one"]
        gateway.state.engines.switch("two", True)
        assert set(ids(await gateway.retrieve())) == {"one", "two"}


async def test_equal_members_of_a_batch_share(engines: Any) -> None:
    engine = await engines()
    async with running([entry("e", engine)], ON) as gateway:
        members = [question(None, number) for number in (1, 2)]
        answers = (await gateway.post(members)).json()
    assert len(engine.requests()) == 1
    assert sorted(mark(answer["result"])["status"] for answer in answers) == ["joined", "miss"]


async def test_memory_is_bounded_by_bytes(engines: Any) -> None:
    """The least recently used answer goes first, and one too large is not kept."""
    engine = await engines(results=[hit("a", text="x" * 2000)])
    settings = {"cache": {"enabled": True, "max_bytes": 30_000, "max_answer_bytes": 5_000}}
    async with running([entry("e", engine)], settings) as gateway:
        for number in range(30):
            await gateway.retrieve(f"q{number}")
        assert await gateway.metric("rcp_gateway_cache_bytes") <= 30_000
        assert await gateway.metric("rcp_gateway_cache_evictions_total") > 0
        assert mark(await gateway.retrieve("q29"))["status"] == "hit"
        assert mark(await gateway.retrieve("q0"))["status"] == "miss"
        engine.answers["retrieve"] = {"hits": [hit("a", text="x" * 6000)]}
        assert [mark(await gateway.retrieve("large"))["status"] for _ in range(2)] == ["miss", "miss"]


async def test_gateways_share_answers_and_purges_in_redis(engines: Any, redis_url: str) -> None:
    """What one process keeps another serves; a purge at one holds for both; without Redis each goes on alone."""
    engine = await engines()
    settings = {"cache": {"enabled": True, "shared": True}, "state": shared(redis_url)}
    async with running([entry("e", engine)], settings) as one, running([entry("e", engine)], settings) as two:
        first, second = await one.retrieve(), await two.retrieve()
        assert (mark(first)["status"], mark(second)["status"]) == ("miss", "hit")
        assert bare(first) == bare(second)
        await two.post({"action": "purge"}, "/admin/actions", LOOPBACK)
        assert mark(await one.retrieve())["status"] == "miss"
    assert len(engine.requests()) == 2


async def test_a_frozen_redis_is_a_miss(engines: Any, relay: Any) -> None:
    engine = await engines()
    settings = {"cache": {"enabled": True, "shared": True}, "state": shared(relay.url, timeout_ms=50)}
    async with running([entry("e", engine)], settings) as gateway:
        await gateway.retrieve()
        relay.freeze()
        assert ids(await gateway.retrieve()) == ["a", "b", "c"]


async def test_nothing_is_under_way_after_the_end(engines: Any) -> None:
    engine = await engines()
    engine.answers["retrieve"] = hang
    async with listening([entry("e", engine, timeoutMs=60_000)], ON) as (state, port):
        async with asking(port, question(None)):
            await until(lambda: state.admission.in_flight == 1)
        await until(lambda: state.admission.in_flight == 0)
