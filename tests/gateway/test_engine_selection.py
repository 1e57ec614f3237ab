"""Engine selection: who is asked, who never is left out, how it learns, and what callers and operators see of it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest

from app.federation.engine_selection import EngineSelector
from app.settings.schema import EngineEntry
from tests.gateway.test_explain import LOOPBACK
from tests.support.corpora import ids
from tests.support.running_gateway import Json, RunningGateway, entry, running
from tests.support.scripted_engine import ScriptedEngine, hit
from tests.support.tenancy import result, tenant

TOPICS = ["apple", "boat", "cloud", "drum", "eagle", "forest", "glass", "harbour", "island", "jungle", "kettle", "lamp"]
ON = {"select": {"mode": "on", "engines": 2, "audit": 0.0, "explore": 0.0}}
TAUGHT = 70
"""Questions after which engines are left out: 50 before places are noted, ten audits, and some to spare."""


async def topical(engines: Any, topics: Sequence[str] = TOPICS) -> tuple[list[ScriptedEngine], list[Json]]:
    """One engine for each topic, which answers every query with the same documents about its topic.

    Its confidence is high for a query about its topic, and low for any other.
    """
    started, entries = [], []
    for topic in topics:
        engine = await engines()
        engine.answers["retrieve"] = answering(topic)
        started.append(engine)
        entries.append(entry(topic, engine))
    return started, entries


def answering(topic: str) -> Any:
    async def answer(asked: Any) -> Json:
        confidence = 0.9 if topic in asked.params["query"] else 0.05
        texts = [f"{topic} number {word}" for word in ("one", "two", "three")]
        return {
            "hits": [
                hit(f"{topic}{place}", 1.0 - place / 10, confidence - place / 100, text=text)
                for place, text in enumerate(texts)
            ]
        }

    return answer


@asynccontextmanager
async def selecting(entries: list[Json], settings: Json | None = None, **more: Any) -> AsyncIterator[RunningGateway]:
    """A gateway that may learn from every answer: each look at its selector's clock is a second later."""
    async with running(entries, settings, **more) as gateway:
        seconds = count()
        gateway.state.selector = EngineSelector(gateway.state.metrics.selection, clock=lambda: float(next(seconds)))
        yield gateway


async def teach(gateway: RunningGateway, key: str | None = None) -> None:
    for number in range(TAUGHT):
        await result(gateway, key, "retrieve", {"query": f"about {TOPICS[number % len(TOPICS)]}"})
        await gateway.state.selector.finish_learning()


def asked(answer: Json) -> list[str]:
    return [one["id"] for one in answer["_meta"]["x-gateway"]["engines"] if one["status"] == "ok"]


def skipped(answer: Json) -> dict[str, str]:
    report = answer["_meta"]["x-gateway"]["engines"]
    return {one["id"]: one["detail"] for one in report if one.get("reason") == "not_promising"}


async def test_the_promising_engines_are_asked_once_it_is_known_who_they_are(engines: Any) -> None:
    _, entries = await topical(engines)
    async with selecting(entries, ON) as gateway:
        first = await gateway.retrieve(query="about boat")
        assert len(asked(first)) == len(TOPICS)
        assert first["_meta"]["x-gateway"]["select"]["asked"] == len(TOPICS)
        await teach(gateway)
        answer = await gateway.retrieve(query="about drum")
        saved = await gateway.metric("rcp_gateway_select_saved_calls_total")
        assert await gateway.metric("rcp_gateway_select_n") >= 2
    assert "drum" in asked(answer)
    assert ids(answer)[0] == "drum0"
    assert len(asked(answer)) < len(TOPICS)
    assert saved > 0
    left = skipped(answer)
    assert set(left) == set(TOPICS) - set(asked(answer))
    assert all(detail.startswith("place ") and detail.endswith(f" of {len(TOPICS)}") for detail in left.values())
    assert "degraded" not in answer["_meta"]
    select = answer["_meta"]["x-gateway"]["select"]
    assert select["candidates"] == len(TOPICS)
    assert select["asked"] == len(asked(answer))
    assert not select["audit"]
    assert any("not among the" in note for note in answer["usage"]["notes"])


async def test_off_asks_everybody_and_says_nothing(engines: Any) -> None:
    _, entries = await topical(engines)
    async with selecting(entries) as gateway:
        answer = await gateway.retrieve(query="about boat", **{"x-gateway": {"select": True}})
    assert len(asked(answer)) == len(TOPICS)
    assert "select" not in answer["_meta"]["x-gateway"]


async def test_report_asks_everybody_and_measures(engines: Any) -> None:
    _, entries = await topical(engines)
    async with selecting(entries, {"select": {**ON["select"], "mode": "report"}}) as gateway:
        await teach(gateway)
        answer = await gateway.retrieve(query="about drum")
        one = await gateway.retrieve(query="about drum", **{"x-gateway": {"select": {"engines": 1}}})
        assert await gateway.metric("rcp_gateway_select_audits_total") >= TAUGHT
        assert 0 < await gateway.metric("rcp_gateway_select_coverage") <= 1
        assert await gateway.metric("rcp_gateway_select_saved_calls_total") == len(TOPICS) - 1
    assert len(asked(answer)) == len(TOPICS)
    assert answer["_meta"]["x-gateway"]["select"]["audit"]
    assert asked(one) == ["drum"]


async def test_required_always_and_named_engines_are_asked(engines: Any) -> None:
    _, entries = await topical(engines)
    entries[0]["required"] = True
    entries[1]["select"] = "always"
    entries[2]["select"] = "named"
    async with selecting(entries, ON) as gateway:
        await teach(gateway)
        one = {"select": {"engines": 1}}
        plain = await gateway.retrieve(query="about drum", **{"x-gateway": one})
        weighed = await gateway.retrieve(query="about drum", fusion={"weights": {"lamp": 2.0}}, **{"x-gateway": one})
        named = await gateway.retrieve(
            query="about drum", **{"x-gateway": {**one, "engines": [*TOPICS[2:4], "lamp", *TOPICS[4:11]]}}
        )
    assert asked(plain) == ["apple", "boat", "drum"]
    assert skipped(plain)["cloud"] == "asked only if a request names it"
    assert asked(weighed) == ["apple", "boat", "drum", "lamp"]
    assert set(asked(named)) == {*TOPICS[2:]}


async def test_a_request_can_ask_everybody(engines: Any) -> None:
    _, entries = await topical(engines)
    async with selecting(entries, ON) as gateway:
        await teach(gateway)
        answer = await gateway.retrieve(query="about drum", **{"x-gateway": {"select": False}})
    assert len(asked(answer)) == len(TOPICS)


@pytest.mark.parametrize("select", [{"engines": 0}, {"engines": "2"}, "on", 3])
async def test_a_malformed_choice_is_refused(engines: Any, select: Any) -> None:
    _, entries = await topical(engines, TOPICS[:1])
    async with selecting(entries, ON) as gateway:
        error = await gateway.error("retrieve", {"query": "q", "x-gateway": {"select": select}})
    assert error["code"] == -32602
    assert error["data"]["field"].startswith("x-gateway.select")


async def test_a_question_without_a_known_word_asks_everybody(engines: Any) -> None:
    _, entries = await topical(engines)
    async with selecting(entries, ON) as gateway:
        await teach(gateway)
        answer = await gateway.retrieve(query="xylophone quartz")
    assert len(asked(answer)) == len(TOPICS)


async def test_few_engines_are_all_asked(engines: Any) -> None:
    _, entries = await topical(engines, TOPICS[:7])
    async with selecting(entries, ON) as gateway:
        await teach(gateway)
        answer = await gateway.retrieve(query="about drum")
    assert len(asked(answer)) == 7


async def test_later_pages_ask_the_engines_of_the_first(engines: Any) -> None:
    started, entries = await topical(engines)
    settings = {**ON, "retrieve": {"window_min": 1, "overfetch": 1.0}}
    async with selecting(entries, settings) as gateway:
        await teach(gateway)
        first = await gateway.retrieve(query="about drum", k=2, **{"x-gateway": {"select": {"engines": 2}}})
        before = [len(engine.requests()) for engine in started]
        cursor, pages = first["nextCursor"], 0
        while cursor is not None and pages < 5:
            page = await gateway.retrieve(query="about drum", k=2, cursor=cursor)
            cursor, pages = page.get("nextCursor"), pages + 1
        after = [len(engine.requests()) for engine in started]
    assert pages > 0
    again = {topic for topic, b, a in zip(TOPICS, before, after, strict=True) if a > b}
    assert again <= set(asked(first))


async def test_new_engines_are_asked_soon(engines: Any) -> None:
    """An engine that joined has no words yet, and is asked by an audit or by exploration."""
    _, entries = await topical(engines)
    settings = {"select": {**ON["select"], "explore": 0.1}}
    async with selecting(entries[:-1], settings) as gateway:
        await teach(gateway)
        newcomer = EngineEntry.model_validate(entries[-1])
        gateway.state.engines.apply(
            [*[engine.entry for engine in gateway.state.engines.engines], newcomer], gateway.state.settings.engines, 1.0
        )
        await gateway.state.engines.first_checks(30.0)
        seen = [asked(await gateway.retrieve(query="about drum")) for _ in range(20)]
    assert any("lamp" in one for one in seen)


async def test_topics_of_the_registry_count_before_anything_was_learned(engines: Any) -> None:
    _, entries = await topical(engines)
    for one in entries:
        one["topics"] = [f"everything about {one['id']}s and their makers"]
    async with selecting(entries, ON) as gateway:
        answer = await gateway.retrieve(query="makers of drums", **{"x-gateway": {"select": {"engines": 1}}})
    assert asked(answer) == ["drum"]


async def test_explain_shows_the_order_and_what_each_word_adds(engines: Any) -> None:
    _, entries = await topical(engines)
    async with selecting(entries, ON) as gateway:
        await teach(gateway)
        answer = await gateway.retrieve(query="about drum", **{"x-gateway": {"explain": True}})
    select = answer["_meta"]["x-gateway"]["explain"]["plan"]["select"]
    first = select["order"][0]
    assert first["id"] == "drum"
    assert first["terms"]["drum"] > 0
    assert first["score"] == pytest.approx(sum(first["terms"].values()), abs=1e-3)
    assert {one["id"] for one in select["order"] if one["asked"]} == set(asked(answer))


async def test_a_tenant_learns_nothing_of_engines_it_does_not_see(engines: Any) -> None:
    """Hidden engines change neither the order nor the number of a tenant's engines."""
    answers = []
    for hidden in (False, True):
        _, entries = await topical(engines)
        if hidden:
            others = await topical(engines, [f"hidden{topic}" for topic in TOPICS])
            entries += others[1]
        tenants = {"acme": tenant(*TOPICS, keys=("acme-key",))}
        async with selecting(entries, ON, tenants=tenants) as gateway:
            await teach(gateway, "acme-key")
            params = {"query": "about drum", "x-gateway": {"explain": True}}
            answer = await result(gateway, "acme-key", "retrieve", params)
            answers.append(answer["_meta"]["x-gateway"]["explain"]["plan"]["select"])
    assert answers[0] == answers[1]


async def test_a_tenant_has_its_own_mode(engines: Any) -> None:
    _, entries = await topical(engines)
    tenants = {
        "acme": tenant("*", keys=("acme-key",), select={"mode": "on"}),
        "zeta": tenant("*", keys=("zeta-key",)),
    }
    off = {"select": {**ON["select"], "mode": "off"}}
    async with selecting(entries, off, tenants=tenants) as gateway:
        params = {"query": "about drum"}
        acme = await result(gateway, "acme-key", "retrieve", params)
        zeta = await result(gateway, "zeta-key", "retrieve", params)
    assert "select" in acme["_meta"]["x-gateway"]
    assert "select" not in zeta["_meta"]["x-gateway"]


async def test_praise_in_audits_says_what_selection_would_have_lost(engines: Any) -> None:
    _, entries = await topical(engines)
    async with selecting(entries, {**ON, "fusion": {"learning": "on"}}) as gateway:
        await teach(gateway)
        report = {"select": {**ON["select"], "mode": "report"}}
        settings = type(gateway.state.settings).model_validate({**report, "fusion": {"learning": "on"}})
        gateway.state.renew(settings, "0" * 8)
        await gateway.retrieve(query="about drum", k=30, sessionId="s")
        signals = [{"hitId": "drum0", "used": True}, {"hitId": "lamp1", "cited": True}]
        await gateway.result("feedback", {"sessionId": "s", "signals": signals})
        kept = await gateway.metric("rcp_gateway_select_feedback_total", outcome="kept")
        lost = await gateway.metric("rcp_gateway_select_feedback_total", outcome="lost")
        again = await gateway.result("feedback", {"sessionId": "s", "signals": signals})
        assert again is not None
        assert await gateway.metric("rcp_gateway_select_feedback_total", outcome="kept") == kept
    assert (kept, lost) == (1, 1)


async def test_the_operator_sees_what_was_learned(engines: Any) -> None:
    _, entries = await topical(engines)
    async with selecting(entries, ON) as gateway:
        await teach(gateway)
        response = await gateway.client.get("/admin/selection", headers=LOOPBACK)
    view = response.json()
    assert view["mode"] == "on"
    assert {one["id"] for one in view["engines"]} == set(TOPICS)
    (seen,) = view["views"]
    assert seen["questions"] == TAUGHT
    assert seen["n"] >= 2
    assert seen["coverage"][-1] == pytest.approx(1.0, abs=1e-3)


async def test_equal_seeds_ask_equal_engines(engines: Any) -> None:
    _, entries = await topical(engines)
    settings = {"select": {**ON["select"], "explore": 0.5, "engines": 6}}
    async with selecting(entries, settings) as gateway:
        await teach(gateway)
        # Nothing is learned in between: the order is that of the same sketches and counts.
        plans = []
        for _ in range(2):
            body = {"query": "about drum", "seed": 7}
            response = await gateway.post(body, "/admin/explain", LOOPBACK)
            plans.append(response.json())
    assert plans[0] == plans[1]
