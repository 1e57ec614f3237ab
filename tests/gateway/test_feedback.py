"""`feedback`: who hears of which signal, under which hit id, and how many signals count as recorded."""

from typing import Any

import pytest

from tests.support.graphs import graphing, listening_to_feedback, reported
from tests.support.running_gateway import Json, entry, running
from tests.support.scripted_engine import Http, RpcFault, ScriptedEngine, hit, hits


def heard(engine: ScriptedEngine) -> list[list[Json]]:
    """The signals of each `feedback` it got."""
    return [asked.params["signals"] for asked in engine.requests("feedback")]


def on(*hit_ids: Any, **said: Any) -> list[Json]:
    """Signals on these hits."""
    return [{"hitId": hit_id, **(said or {"used": True})} for hit_id in hit_ids]


async def test_a_signal_goes_where_its_hit_came_from(engines: Any) -> None:
    """As the session remembers: to one engine, or to all that gave it, each under the id that it gave."""
    one = await listening_to_feedback(engines, results=hits("a", "b"))
    two = await listening_to_feedback(engines, results=hits("b", 3))
    async with running([entry("one", one), entry("two", two)]) as gateway:
        await gateway.retrieve(sessionId="s")
        result = await gateway.result("feedback", {"sessionId": "s", "query": "q", "signals": on("a", "b", "3")})
    assert result["accepted"] == 3
    assert heard(one) == [on("a", "b")]
    assert heard(two) == [on("b", 3)]
    assert reported(result) == {"one": "ok", "two": "ok"}
    sent = one.requests("feedback")[0].params
    assert sent["query"] == "q"
    assert sent["sessionId"] == one.requests()[0].params["sessionId"] != "s"
    assert set(sent["_meta"]) == {"deadlineMs", "federation"}


async def test_copies_under_other_ids_are_found(engines: Any) -> None:
    """Where documents are one by URI, each engine hears of its own copy."""
    cited = {"citation": {"uri": "https://example.org/x"}}
    one = await listening_to_feedback(engines, results=[hit("mine", **cited)])
    two = await listening_to_feedback(engines, results=[hit("yours", **cited)])
    async with running([entry("one", one), entry("two", two)], {"retrieve": {"identity": "uri"}}) as gateway:
        found = (await gateway.retrieve(sessionId="s"))["hits"]
        await gateway.result("feedback", {"sessionId": "s", "signals": on(found[0]["id"])})
    assert len(found) == 1
    assert (heard(one), heard(two)) == ([on("mine")], [on("yours")])


async def test_namespaces_route_feedback_without_a_session(engines: Any) -> None:
    """A prefix leads to its engine, which gets the id without it; anything else goes to all without a namespace."""
    one, two = await listening_to_feedback(engines), await listening_to_feedback(engines)
    three = await listening_to_feedback(engines)
    entries = [entry("one", one, idNamespace="n"), entry("two", two), entry("three", three)]
    async with running(entries) as gateway:
        only = await gateway.result("feedback", {"signals": on("n:1")})
        rest = await gateway.result("feedback", {"signals": on("x", "n:2")})
    assert heard(one) == [on("1"), on("2")]
    assert heard(two) == heard(three) == [on("x")]
    assert reported(only) == {"one": "ok", "two": "signals", "three": "signals"}
    assert (only["accepted"], rest["accepted"]) == (1, 2)


async def test_a_session_knows_the_hits_of_graphs_and_memories(engines: Any) -> None:
    """Hits that were answered beside `retrieve` are remembered, too."""
    one = await graphing(engines, {"hits": hits("g")}, feedback={})
    two = await listening_to_feedback(engines)
    two.capabilities["memory"] = {}
    two.answers["memory/recall"] = {"clues": [], "hits": hits("m")}
    one.answers["feedback"] = {"accepted": 1}
    async with running([entry("one", one), entry("two", two)]) as gateway:
        await gateway.result("graph", {"op": "local", "query": "q", "sessionId": "s"})
        await gateway.result("memory/recall", {"query": "q", "sessionId": "s"})
        await gateway.result("feedback", {"sessionId": "s", "signals": on("g", "m")})
    assert (heard(one), heard(two)) == ([on("g")], [on("m")])


async def test_accepted_counts_signals_not_engines(engines: Any) -> None:
    """Recorded by at least one engine: an engine that fails takes nothing away, one that records some adds no more."""
    full, part = await listening_to_feedback(engines), await listening_to_feedback(engines, {"accepted": 1})
    bad = await listening_to_feedback(engines, RpcFault(-32010, "down"))
    entries = [entry("full", full), entry("part", part), entry("bad", bad)]
    async with running(entries) as gateway:
        all_three = await gateway.result("feedback", {"signals": on("a", "b")})
        two = await gateway.result("feedback", {"signals": on("a", "b"), "x-gateway": {"engines": ["part", "bad"]}})
        none = await gateway.error("feedback", {"signals": on("a"), "x-gateway": {"engines": ["bad"]}})
    assert (all_three["accepted"], two["accepted"]) == (2, 1)
    assert all_three["_meta"]["degraded"] == ["bad"]
    assert all_three["usage"]["notes"][0].startswith("bad: refused after ")
    assert none["code"] == -32010


async def test_engines_without_feedback_get_none(engines: Any) -> None:
    """A signal whose engine takes none is not recorded, which a note counts; nobody else hears of it."""
    deaf, hearing = await engines(results=hits("a")), await listening_to_feedback(engines, results=hits("b"))
    async with running([entry("deaf", deaf), entry("hearing", hearing)]) as gateway:
        await gateway.retrieve(sessionId="s")
        result = await gateway.result("feedback", {"sessionId": "s", "signals": on("a", "b")})
        only = await gateway.result("feedback", {"sessionId": "s", "signals": on("a")})
    assert heard(hearing) == [on("b")]
    assert (result["accepted"], only["accepted"]) == (1, 0)
    assert only["usage"]["notes"] == ["1 signal(s) concern hits of engines that do not take feedback"]
    assert deaf.requests("feedback") == []


async def test_no_signals_ask_nobody(engines: Any) -> None:
    """An empty array is no error, and there is nothing to record."""
    engine = await listening_to_feedback(engines)
    async with running([entry("e", engine)]) as gateway:
        result = await gateway.result("feedback", {"signals": []})
    assert result["accepted"] == 0
    assert heard(engine) == []


async def test_what_signals_say_goes_on_as_it_is(engines: Any) -> None:
    """Known and unknown members, without nulls; numbers keep their type."""
    engine = await listening_to_feedback(engines)
    signal = {"hitId": 7, "helpful": False, "reward": -1, "poisonSuspected": True, "x-note": {"a": None}}
    async with running([entry("e", engine)]) as gateway:
        await gateway.result("feedback", {"signals": [{**signal, "cited": None}], "x-acme": 1})
    assert heard(engine) == [[signal]]
    assert engine.requests("feedback")[0].params["x-acme"] == 1


async def test_feedback_is_sent_once(engines: Any) -> None:
    """What may have been recorded is not repeated, whatever an engine answers."""
    engine = await listening_to_feedback(engines, Http(503))
    async with running([entry("e", engine)]) as gateway:
        error = await gateway.error("feedback", {"signals": on("a")})
    assert error["code"] == -32010
    assert len(engine.requests("feedback")) == 1


@pytest.mark.parametrize("answer", [{}, {"accepted": -1}, {"accepted": True}, {"accepted": "1"}])
async def test_an_answer_that_counts_nothing_is_a_failure(engines: Any, answer: Json) -> None:
    """The engine broke the protocol: nothing is known to be recorded."""
    engine = await listening_to_feedback(engines, answer)
    async with running([entry("e", engine)]) as gateway:
        error = await gateway.error("feedback", {"signals": on("a")})
    assert error["code"] == -32010
    assert "accepted" in error["data"]["detail"]


async def test_an_answer_that_counts_too_much(engines: Any) -> None:
    """More than was sent is all that was sent."""
    engine = await listening_to_feedback(engines, {"accepted": 100})
    async with running([entry("e", engine)]) as gateway:
        assert (await gateway.result("feedback", {"signals": on("a", "b")}))["accepted"] == 2


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({}, "signals"),
        ({"signals": {}}, "signals"),
        ({"signals": [7]}, "signals[0]"),
        ({"signals": [{"used": True}]}, "signals[0].hitId"),
        ({"signals": [{"hitId": "a"}, {"hitId": ""}]}, "signals[1].hitId"),
        ({"signals": [{"hitId": True}]}, "signals[0].hitId"),
        ({"signals": [{"hitId": "a", "used": 1}]}, "signals[0].used"),
        ({"signals": [{"hitId": "a", "reward": 1.5}]}, "signals[0].reward"),
        ({"signals": [{"hitId": "a", "reward": True}]}, "signals[0].reward"),
        ({"signals": [], "query": 7}, "query"),
        ({"signals": [], "sessionId": 7}, "sessionId"),
        ({"signals": [{"hitId": "a"}] * 1001}, "signals"),
    ],
)
async def test_what_is_malformed(engines: Any, params: Json, field: str) -> None:
    """-32602 names the field, and no engine is asked."""
    engine = await listening_to_feedback(engines)
    async with running([entry("e", engine)]) as gateway:
        error = await gateway.error("feedback", params)
    assert (error["code"], error["data"]["field"]) == (-32602, field)
    assert heard(engine) == []


async def test_nobody_takes_feedback(engines: Any) -> None:
    """-32003, before the params are looked at; and sessions remember no origins then."""
    async with running([entry("e", await engines())]) as gateway:
        await gateway.retrieve(sessionId="s")
        error = await gateway.error("feedback", {"signals": 7})
        assert await gateway.state.pages.origins.load("s") == {}
    assert error["code"] == -32003


async def test_where_nobody_may_be_asked(engines: Any) -> None:
    """At a used-up depth nothing is recorded, with a note."""
    engine = await listening_to_feedback(engines)
    async with running([entry("e", engine)]) as gateway:
        result = await gateway.result("feedback", {"signals": on("a"), "_meta": {"federation": {"depth": 0}}})
    assert result["accepted"] == 0
    assert result["usage"]["notes"] == ["no engine was asked: the federation depth is exhausted"]
    assert heard(engine) == []
