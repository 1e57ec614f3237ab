"""The tail cut: whose answers are enough, how long the others are waited for, and who is always waited for."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from app.engines.engine import RemoteEngine
from app.federation.fanout import FanOut
from app.federation.outcome import Outcome
from app.federation.planner import EngineCall
from app.federation.quorum import Quorum, QuorumCount, tail_of
from app.protocol.errors import BadStatus
from app.settings.schema import RetrieveSettings
from tests.support.fake_engine import FakeEngine, QuickTransport, entry_of, hits, never
from tests.support.virtual_time import jumping_loop, virtually


def after(seconds: float, then: Any = None) -> Any:
    """A script that answers after so long."""

    async def play(params: Mapping[str, Any]) -> Any:
        await asyncio.sleep(seconds)
        return {"hits": hits("a")} if then is None else then

    return play


def engine_call_of(engine: Any, weight: float = 1.0, pinned: str | None = None) -> EngineCall:
    return EngineCall(engine, {"query": "q"}, weight, 2.0, jumping_loop().time() + 2.0, 20, pinned=pinned)


async def run(*engine_calls: EngineCall, quorum: float = 0.5, grace: float = 0.1) -> tuple[list[Outcome], float]:
    """Run these legs; the outcomes as they were heard, and how long the whole took."""
    loop = jumping_loop()
    heard: list[Outcome] = []
    began = loop.time()
    fan_out = FanOut(engine_calls, heard.append, loop.time, tail=Quorum(quorum, grace) if quorum else None)
    assert await fan_out.run() is None
    assert fan_out.outcomes == heard
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return heard, round(loop.time() - began, 6)


def kinds(outcomes: list[Outcome]) -> dict[str, str]:
    return {outcome.engine: outcome.kind or outcome.status for outcome in outcomes}


def test_it_is_off_by_default() -> None:
    """Without a quorum everybody is waited for."""

    async def story() -> None:
        assert tail_of(RetrieveSettings()) is None
        assert tail_of(RetrieveSettings(quorum=0.5, grace_ms=250)) == Quorum(0.5, 0.25)
        engine_calls = [engine_call_of(FakeEngine("a", after(0.1))), engine_call_of(FakeEngine("b", after(1.9)))]
        outcomes, took = await run(*engine_calls, quorum=0)
        assert (kinds(outcomes), took) == ({"a": "ok", "b": "ok"}, 1.9)

    virtually(story())


def test_once_enough_have_answered_the_rest_has_the_grace() -> None:
    """Half of the weight has answered after 0.1 s; who needs more than 0.1 s longer is late, and ended."""

    async def story() -> None:
        slow = FakeEngine("slow", never)
        engine_calls = [
            engine_call_of(FakeEngine("a", after(0.05))),
            engine_call_of(FakeEngine("b", after(0.1))),
            engine_call_of(FakeEngine("c", after(0.15))),
            engine_call_of(slow),
        ]
        outcomes, took = await run(*engine_calls)
        assert kinds(outcomes) == {"a": "ok", "b": "ok", "c": "ok", "slow": "late"}
        assert took == 0.2
        assert slow.ended == ["cancelled"]
        assert [outcome.status for outcome in outcomes] == ["ok", "ok", "ok", "failed"]

    virtually(story())


def test_weights_count_not_heads() -> None:
    """One heavy engine is a quorum by itself, two light ones are none."""

    async def story() -> None:
        heavy = [engine_call_of(FakeEngine("heavy", after(0.1)), 3.0), engine_call_of(FakeEngine("light", after(1.0)))]
        assert await run(*heavy) == await run(*heavy)
        assert (await run(*heavy))[1] == 0.2
        light = [
            engine_call_of(FakeEngine("a", after(0.1))),
            engine_call_of(FakeEngine("b", after(0.1))),
            engine_call_of(FakeEngine("heavy", after(1.0)), 3.0),
        ]
        assert (await run(*light))[1] == 1.0

    virtually(story())


@pytest.mark.parametrize("must", [{"required": True}, {}], ids=["required", "pinned"])
def test_who_must_answer_is_waited_for(must: Any) -> None:
    """A required or pinned engine is waited for, and the grace begins when it has answered."""

    async def story() -> None:
        engine_calls = [
            engine_call_of(FakeEngine("a", after(0.1))),
            engine_call_of(FakeEngine("must", after(0.7), **must), 0.0, pinned=None if must else "v1"),
            engine_call_of(FakeEngine("slow", never)),
        ]
        outcomes, took = await run(*engine_calls)
        assert (kinds(outcomes), took) == ({"a": "ok", "must": "ok", "slow": "late"}, 0.8)

    virtually(story())


def test_failures_make_no_quorum() -> None:
    """An engine that failed has answered nothing: its weight is missing, and the rest is waited for."""

    async def story() -> None:
        engine_calls = [
            engine_call_of(FakeEngine("a", after(0.1, BadStatus("503")))),
            engine_call_of(FakeEngine("b", after(1.0))),
        ]
        engine_calls[0] = engine_call_of(FakeEngine("a", BadStatus("503")))
        outcomes, took = await run(*engine_calls)
        assert (kinds(outcomes), took) == ({"a": "http_status", "b": "ok"}, 1.0)

    virtually(story())


def test_engine_calls_without_tasks_are_cut_as_well() -> None:
    """A begun leg that is late is dropped, its place at the gate is free, and nothing is held against its engine."""

    async def story() -> None:
        remote = RemoteEngine(entry_of("slow"), QuickTransport(retrieve=never), lambda changed: None)
        await remote.handshake(jumping_loop().time() + 1)
        outcomes, took = await run(engine_call_of(FakeEngine("a", after(0.1))), engine_call_of(remote))
        assert (kinds(outcomes), took) == ({"a": "ok", "slow": "late"}, 0.2)
        assert remote.semaphore.in_flight == 0
        assert remote.up

    virtually(story())


def test_whole_quorum_is_everybody_by_weight() -> None:
    """At 1 every weight must have answered, also where sums of floats fall short; weights of 0 are cut then."""

    async def story() -> None:
        engine_calls = [engine_call_of(FakeEngine(f"e{number}", after(0.1)), 0.1) for number in range(10)]
        outcomes, took = await run(*engine_calls, engine_call_of(FakeEngine("extra", never), 0.0), quorum=1.0)
        assert took == 0.2
        assert kinds(outcomes)["extra"] == "late"

    virtually(story())


def test_weightless_engine_calls_have_no_quorum() -> None:
    """Where nothing weighs anything, everybody is waited for."""

    async def story() -> None:
        engine_calls = [
            engine_call_of(FakeEngine("a", after(0.1)), 0.0),
            engine_call_of(FakeEngine("b", after(1.0)), 0.0),
        ]
        assert (await run(*engine_calls))[1] == 1.0
        assert repr(QuorumCount(engine_calls, 0.5)) == "<QuorumCount 0 of inf, 0 mandatory engines missing>"

    virtually(story())
