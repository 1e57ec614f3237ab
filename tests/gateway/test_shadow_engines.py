"""Shadow engines: never part of an answer, asked after it, compared with it, and judged by feedback."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from app.federation.shadows import Shadows
from app.settings.schema import Registry
from tests.gateway.test_explain import LOOPBACK
from tests.support.corpora import ids
from tests.support.running_gateway import Json, RunningGateway, entry, running, until
from tests.support.scripted_engine import Bytes, RpcFault, hit
from tests.support.tenancy import result, tenant

TIMES = {"latencyMs", "ms"}


def ranked(*names: str) -> Json:
    return {"hits": [hit(name, 1.0 - place / 10, 0.9 - place / 10) for place, name in enumerate(names)]}


async def scripted(engines: Any, answer: Any) -> Any:
    engine = await engines()
    engine.answers["retrieve"] = answer
    return engine


def constant(value: Any) -> Any:
    async def answer(asked: Any) -> Any:
        return value

    return answer


async def hanging(asked: Any) -> Any:
    await asyncio.Event().wait()


def shadow(engine: Any, share: float = 1.0, **more: Any) -> Json:
    return entry("new", engine, shadow={"share": share, "of": "docs"}, **more)


def questions(engine: Any) -> list[Any]:
    return [one for one in engine.asked if one.method == "retrieve"]


async def settled(gateway: RunningGateway) -> None:
    assert gateway.state.shadows is not None
    await gateway.state.shadows.settled()


async def view(gateway: RunningGateway) -> Json:
    body: Json = (await gateway.client.get("/admin/shadows", headers=LOOPBACK)).json()
    found: Json = body["shadows"][0]
    return found


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(one) for key, one in value.items() if key not in TIMES and "Ms" not in key}
    return [without_times(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "behaviour",
    [
        constant(ranked("b", "x", "a")),
        constant({"hits": "none of your business"}),
        constant(RpcFault(-32603)),
        constant(Bytes(b"HTTP/1.1 200 OK\r\ncontent-length: 16777216\r\n\r\n" + b"x" * 16_777_216)),
        hanging,
    ],
    ids=["ranks", "lies", "fails", "16MB", "hangs"],
)
async def test_answers_are_the_same_with_and_without_a_shadow_engine(engines: Any, behaviour: Any) -> None:
    live = await scripted(engines, constant(ranked("a", "b", "c")))
    new = await scripted(engines, behaviour)
    answers: list[Sequence[Any]] = []
    for entries in ([entry("docs", live)], [entry("docs", live), shadow(new, timeoutMs=300)]):
        async with running(entries) as gateway:
            first = await gateway.retrieve(query="same question")
            await settled(gateway)
            again = await gateway.retrieve(query="same question")
            others = [await result(gateway, None, method) for method in ("info", "catalog/list")]
            ready = (await gateway.client.get("/readyz")).text
            answers.append(without_times([first, again, *others, ready]))
            await settled(gateway)
    assert answers[0] == answers[1]
    assert len(questions(new)) >= 2


async def test_a_shadow_engine_is_asked_the_same_and_compared(engines: Any) -> None:
    live = await scripted(engines, constant(ranked("a", "b")))
    new = await scripted(engines, constant(ranked("b", "a")))
    async with running([entry("docs", live), shadow(new)]) as gateway:
        await gateway.retrieve(query="what is it", k=2)
        await settled(gateway)
        asked = questions(new)[0].params
        assert asked["query"] == "what is it"
        assert asked["_meta"]["x-gateway"]["shadow"] is True
        assert "shadow" not in str(questions(live)[0].params)
        seen = await view(gateway)
        assert await gateway.metric("rcp_gateway_shadow_calls_total", engine="new", outcome="ok") == 1
    assert seen["calls"] == 1
    assert seen["fused"]["overlap"] == 1.0
    assert seen["of"]["rbo"] < 1.0
    assert seen["wouldBe"] == {"n": 1, "meanPlaces": 2.0}


async def test_praise_says_whether_answers_would_be_better(engines: Any) -> None:
    live = await scripted(engines, constant(ranked("a", "b")))
    new = await scripted(engines, constant(ranked("b", "a")))
    live.capabilities = {**live.capabilities, "feedback": {}}
    live.answers["feedback"] = constant({"accepted": 1})
    async with running([entry("docs", live), shadow(new)]) as gateway:
        for number in range(200):
            await gateway.retrieve(query=f"question {number}")
            await settled(gateway)
            few = (await view(gateway))["feedback"]["reciprocalRank"]["verdict"] if number < 3 else "too few"
            assert few == "too few"
            praise = {"query": f"question {number}", "signals": [{"hitId": "b", "used": True}]}
            await result(gateway, None, "feedback", praise)
        judged = (await view(gateway))["feedback"]
    assert judged["n"] == 200
    assert (judged["reciprocalRank"]["live"], judged["reciprocalRank"]["wouldBe"]) == (0.5, 1.0)
    assert judged["reciprocalRank"]["verdict"] == "better"
    assert judged["nDCG@10"]["verdict"] == "better"


async def test_another_tenants_feedback_does_not_count_and_a_tenant_without_sight_is_not_sent(engines: Any) -> None:
    live = await scripted(engines, constant(ranked("a", "b")))
    new = await scripted(engines, constant(ranked("b", "a")))
    live.capabilities = {**live.capabilities, "feedback": {}}
    live.answers["feedback"] = constant({"accepted": 1})
    tenants = {
        "sees": tenant("*", keys=("one",), roles=["read", "feedback"]),
        "also": tenant("*", keys=("two",), roles=["read", "feedback"]),
        "blind": tenant("docs", keys=("three",)),
    }
    praise = {"signals": [{"hitId": "b", "used": True}]}
    async with running([entry("docs", live), shadow(new)], tenants=tenants) as gateway:
        assert gateway.state.shadows is not None
        await result(gateway, "three", "retrieve", {"query": "of a blind tenant"})
        await settled(gateway)
        assert questions(new) == []
        await result(gateway, "one", "retrieve", {"query": "of a tenant that sees it"})
        await settled(gateway)
        assert len(questions(new)) == 1
        await result(gateway, "two", "feedback", praise)
        assert gateway.state.shadows.comparisons.state("new")["feedback"]["n"] == 0
        await result(gateway, "one", "feedback", praise)
        assert gateway.state.shadows.comparisons.state("new")["feedback"]["n"] == 1


async def test_at_most_eight_calls_at_once_and_sessions_are_left_alone(engines: Any) -> None:
    live = await scripted(engines, constant(ranked("a", "b")))
    new = await scripted(engines, hanging)
    async with running([entry("docs", live), shadow(new)]) as gateway:
        await gateway.retrieve(query="in a session", sessionId="s")
        for number in range(10):
            await gateway.retrieve(query=f"question {number}")
        assert await gateway.metric("rcp_gateway_shadow_dropped_total", reason="busy") == 2


async def test_the_share_is_a_share_of_questions(engines: Any) -> None:
    live = await scripted(engines, constant(ranked("a")))
    new = await scripted(engines, constant(ranked("a")))
    async with running([entry("docs", live), shadow(new, 0.5)]) as gateway:
        for _ in range(2):
            for number in range(40):
                await gateway.retrieve(query=f"question {number}")
                await settled(gateway)
    sent = [one.params["query"] for one in questions(new)]
    assert 0 < len({*sent}) < 40
    assert all(sent.count(query) == 2 for query in sent)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"required": True}, "beside 'shadow'"),
        ({"discover": True}, "beside 'shadow'"),
        ({"shadow": {"share": 0.5, "of": "nobody"}}, "names no engine"),
        ({"shadow": {"share": 0.5, "of": "new"}}, "is the engine itself"),
    ],
)
def test_faults_in_the_registry(more: Json, message: str) -> None:
    one: Json = {"id": "new", "url": "http://127.0.0.1:1", "shadow": {"share": 0.5, "of": "docs"}, **more}
    with pytest.raises(ValidationError, match=message):
        Registry.model_validate({"engines": [{"id": "docs", "url": "http://127.0.0.1:2"}, one]})


async def test_a_shadow_engine_makes_no_gateway_ready_and_has_no_endpoint(engines: Any) -> None:
    new = await scripted(engines, constant(ranked("a")))
    entries = [entry("docs", "http://127.0.0.1:9/rcp"), shadow(new)]
    async with running(entries, reach=False) as gateway:
        engine = gateway.state.engines.shadows[0]
        await until(lambda: engine.advertisement is not None)
        assert (await gateway.client.get("/readyz")).status_code == 503
        assert (
            await gateway.post({"jsonrpc": "2.0", "id": 1, "method": "info"}, "/engines/new/rcp")
        ).status_code == 404
        assert "new" not in (await gateway.client.get("/engines")).text


async def test_shadow_engines_are_not_asked_in_a_drain(engines: Any) -> None:
    live = await scripted(engines, constant(ranked("a", "b")))
    new = await scripted(engines, constant(ranked("b", "a")))
    async with running([entry("docs", live), shadow(new)]) as gateway:
        gateway.state.readiness.draining = True
        await gateway.retrieve(query="at the end")
        await settled(gateway)
        assert questions(new) == []
        assert await gateway.metric("rcp_gateway_shadow_dropped_total", reason="draining") == 1


async def test_an_engine_without_the_key_is_live_from_the_reload_on(engines: Any) -> None:
    live = await scripted(engines, constant(ranked("a")))
    new = await scripted(engines, constant(ranked("b")))
    async with running([entry("docs", live), shadow(new)]) as gateway:
        assert ids(await gateway.retrieve(query="before")) == ["a"]
        await settled(gateway)
        settings = gateway.state.settings
        promoted = Registry.model_validate({"engines": [entry("docs", live), entry("new", new)]})
        gateway.state.engines.apply(promoted.engines, settings.engines, 1.0)
        await until(lambda: len(gateway.state.membership.current().offers) == 2)
        assert sorted(ids(await gateway.retrieve(query="after"))) == ["a", "b"]
        assert gateway.state.shadows is not None
        assert not gateway.state.shadows.engines


async def test_shadow_engines_are_not_asked_while_requests_wait(engines: Any) -> None:
    live = await scripted(engines, constant(ranked("a", "b")))
    new = await scripted(engines, constant(ranked("b", "a")))
    async with running([entry("docs", live), shadow(new)]) as gateway:
        state = gateway.state
        state.shadows = Shadows(state.engines, state.membership.sees, state.metrics.shadows, busy=lambda: True)
        await gateway.retrieve(query="in a rush")
        await settled(gateway)
        assert questions(new) == []
        assert await gateway.metric("rcp_gateway_shadow_dropped_total", reason="pressure") == 1
