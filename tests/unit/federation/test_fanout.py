"""Running a plan: legs at once, each for itself; what ends the whole, and what is left when it ends."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from app.federation.fanout import FanOut
from app.federation.outcome import Outcome, succeeded
from app.federation.planner import EngineCall
from app.protocol.errors import BadStatus, ConnectFailed, Departed, ProtocolViolation, Refused
from tests.support.fake_engine import FakeEngine, hits, never
from tests.support.virtual_time import JumpingLoop, jumping_loop, turns, virtually


def engine_calls_of(*engines: FakeEngine) -> tuple[EngineCall, ...]:
    """One leg per engine."""
    return tuple(EngineCall(engine, {"query": "q", "k": 20}, 1.0, 2.0, 1002.0, 20) for engine in engines)


def after(seconds: float, then: Any) -> Any:
    """A script that waits so long by the loop's clock."""

    async def play(params: Mapping[str, Any]) -> Any:
        await asyncio.sleep(seconds)
        return then

    return play


def statuses(outcomes: list[Outcome]) -> dict[str, str]:
    """Engine id -> status, or the class of its failure."""
    return {outcome.engine: outcome.kind or outcome.status for outcome in outcomes}


async def no_tasks_left() -> None:
    """Nobody but the test itself is running."""
    await turns()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_plan_without_engine_calls_ends_at_once() -> None:
    """Nobody to ask, nothing to wait for."""
    heard: list[Outcome] = []
    fan_out = FanOut(engine_calls_of(), heard.append)
    assert await fan_out.run() is None
    assert fan_out.outcomes == heard == []


def test_everybody_is_asked_at_once() -> None:
    """Legs run side by side: the whole takes as long as its longest, and each outcome is heard when it is there."""

    async def story() -> None:
        loop = jumping_loop()
        heard: list[tuple[float, str]] = []
        engines = [FakeEngine(f"e{number}", after(number, {"hits": hits("a")})) for number in (3, 1, 2)]
        fan_out = FanOut(
            engine_calls_of(*engines), lambda outcome: heard.append((loop.time() - 1000, outcome.engine)), loop.time
        )
        assert repr(fan_out) == "<FanOut 0 of 3 calls ended>"
        assert await fan_out.run() is None
        assert heard == [(1, "e1"), (2, "e2"), (3, "e3")]
        assert repr(fan_out) == "<FanOut 3 of 3 calls ended>"
        assert {outcome.engine: outcome.took for outcome in fan_out.outcomes} == {"e1": 1, "e2": 2, "e3": 3}
        assert all(engine.asked == [{"query": "q", "k": 20}] for engine in engines)

    virtually(story())


async def test_failure_costs_that_engine_only() -> None:
    """A failed optional engine is an outcome like any other, with its class, code and attempts."""
    fault = Refused("-32602 no", code=-32602)
    fault.attempts = 2
    fan_out = FanOut(engine_calls_of(FakeEngine("a"), FakeEngine("b", fault), FakeEngine("c")), lambda outcome: None)
    assert await fan_out.run() is None
    assert statuses(fan_out.outcomes) == {"a": "ok", "b": "refused", "c": "ok"}
    lost = next(outcome for outcome in fan_out.outcomes if outcome.engine == "b")
    assert (lost.status, lost.code, lost.attempts, lost.detail) == ("failed", -32602, 2, "-32602 no")


async def test_malformed_answer_fails_its_engine() -> None:
    """A `retrieve` result without hits is a failure of the class protocol (decision 7)."""
    fan_out = FanOut(engine_calls_of(FakeEngine("a", {"hits": None}), FakeEngine("b", {})), lambda outcome: None)
    await fan_out.run()
    assert statuses(fan_out.outcomes) == {"a": ProtocolViolation.kind, "b": ProtocolViolation.kind}


@pytest.mark.parametrize("position", [0, 1, 2])
def test_required_failure_ends_the_whole(position: int) -> None:
    """When a required engine fails the whole ends in that moment; the others are cancelled and gone (B31)."""

    async def story() -> None:
        loop = jumping_loop()
        heard: list[Outcome] = []
        engines = [FakeEngine("slow", never), FakeEngine("slower", never)]
        engines.insert(position, FakeEngine("must", after(0.5, BadStatus("503")), required=True))
        lost = await FanOut(engine_calls_of(*engines), heard.append).run()
        assert lost is not None
        assert (lost.engine, lost.kind) == ("must", "http_status")
        assert loop.time() == 1000.5
        assert statuses(heard) == {"must": "http_status", "slow": "cancelled", "slower": "cancelled"}
        assert [engine.ended for engine in engines if engine.id != "must"] == [["cancelled"], ["cancelled"]]
        await no_tasks_left()

    virtually(story())


async def test_required_failure_as_the_last_to_end() -> None:
    """A required engine that fails after all others have answered fails the whole just the same."""
    fan_out = FanOut(
        engine_calls_of(FakeEngine("a"), FakeEngine("b", ConnectFailed("no"), required=True)), lambda _: None
    )
    lost = await fan_out.run()
    assert lost is not None
    assert lost.engine == "b"


async def test_required_success_changes_nothing() -> None:
    """A required engine that answers is one of many; an optional one may fail beside it."""
    engines = (FakeEngine("a", required=True), FakeEngine("b", ConnectFailed("no")))
    assert await FanOut(engine_calls_of(*engines), lambda outcome: None).run() is None


async def test_first_required_failure_is_told() -> None:
    """If two required engines fail, the one that failed first names the failure."""
    engines = (
        FakeEngine("late", after(0.01, ConnectFailed("no")), required=True),
        FakeEngine("early", ConnectFailed("no"), required=True),
    )
    lost = await FanOut(engine_calls_of(*engines), lambda outcome: None).run()
    assert lost is not None
    assert lost.engine == "early"


async def test_cancelling_the_run_cancels_every_engine_call() -> None:
    """A caller that leaves takes all legs with it, and the run ends only when each is gone (B36)."""
    heard: list[Outcome] = []
    engines = [FakeEngine(f"e{number}", never) for number in range(8)]
    done = FakeEngine("done")
    run = asyncio.create_task(FanOut(engine_calls_of(*engines, done), heard.append).run())
    await turns()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert [engine.ended for engine in engines] == [["cancelled"]] * 8
    assert sorted(statuses(heard).items()) == [("done", "ok"), *((f"e{number}", "cancelled") for number in range(8))]


@pytest.mark.parametrize("begun", range(4))
async def test_cancelling_at_any_moment(begun: int) -> None:
    """However far a run has got when it is cancelled, every call that began has ended, and nothing is left."""
    engines = [FakeEngine(f"e{number}", never) for number in range(3)]
    run = asyncio.create_task(FanOut(engine_calls_of(*engines), lambda outcome: None).run())
    for _ in range(begun):
        await asyncio.sleep(0)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    assert all(engine.ended == ["cancelled"] * len(engine.asked) for engine in engines)
    await no_tasks_left()


async def test_engine_call_that_takes_its_time_to_go_is_waited_for() -> None:
    """A cancelled run waits for a leg that has something to put away first."""
    put_away = asyncio.Event()

    async def tidy(params: Mapping[str, Any]) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            await turns(10)
            put_away.set()

    run = asyncio.create_task(FanOut(engine_calls_of(FakeEngine("a", tidy)), lambda outcome: None).run())
    await turns()
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    assert put_away.is_set()


def test_fault_of_ours_costs_one_engine() -> None:
    """An exception that is no LegError costs that leg, is told to the loop, and hurts nobody else (B36)."""

    async def story() -> JumpingLoop:
        fan_out = FanOut(
            engine_calls_of(FakeEngine("a", ZeroDivisionError("secret")), FakeEngine("b")), lambda outcome: None
        )
        assert await fan_out.run() is None
        assert statuses(fan_out.outcomes) == {"a": "internal", "b": "ok"}
        lost = next(outcome for outcome in fan_out.outcomes if outcome.engine == "a")
        assert lost.detail == "internal fault (ZeroDivisionError)"
        return jumping_loop()

    loop = virtually(story(), faults=True)
    (succeeded,) = loop.faults
    assert isinstance(succeeded["exception"], ZeroDivisionError)
    assert succeeded["message"] == "a bug of the gateway failed an engine call"


def test_stray_cancellation_does_not_hang_the_whole() -> None:
    """A CancelledError that nobody aimed at the leg is a fault of ours: the leg fails and the whole goes on."""

    async def story() -> JumpingLoop:
        fan_out = FanOut(
            engine_calls_of(FakeEngine("a", asyncio.CancelledError()), FakeEngine("b")), lambda outcome: None
        )
        assert await fan_out.run() is None
        assert statuses(fan_out.outcomes) == {"a": "internal", "b": "ok"}
        return jumping_loop()

    loop = virtually(story(), faults=True)
    assert len(loop.faults) == 1


def test_listener_that_fails_does_not_hang_the_whole() -> None:
    """A fault in whoever hears of outcomes is told to the loop; the run ends all the same."""

    async def story() -> JumpingLoop:
        def deaf(outcome: Outcome) -> None:
            raise ZeroDivisionError

        fan_out = FanOut(engine_calls_of(FakeEngine("a"), FakeEngine("b", after(1, {"hits": []}))), deaf)
        assert await fan_out.run() is None
        assert statuses(fan_out.outcomes) == {"a": "ok", "b": "ok"}
        del fan_out
        return jumping_loop()

    virtually(story(), faults=True)


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
def test_outcomes_do_not_depend_on_the_order_of_arrival(order: tuple[int, int, int]) -> None:
    """Whoever answers first, the outcomes are the same but for their order and times."""

    async def story() -> list[tuple[Any, ...]]:
        answers: list[Any] = [{"hits": hits("x", "y")}, ConnectFailed("no"), {"hits": []}]
        engines = [
            FakeEngine(f"e{number}", after(seconds, answer))
            for number, (seconds, answer) in enumerate(zip(order, answers, strict=True))
        ]
        fan_out = FanOut(engine_calls_of(*engines), lambda outcome: None)
        await fan_out.run()
        return sorted((out.engine, out.status, out.kind, [hit["id"] for hit in out.hits]) for out in fan_out.outcomes)

    assert virtually(story()) == [
        ("e0", "ok", None, ["x", "y"]),
        ("e1", "failed", "connect", []),
        ("e2", "ok", None, []),
    ]


async def test_any_method_can_be_fanned_out() -> None:
    """Engines are asked with the method that is given, and its results are read as that method's."""
    engines = [FakeEngine("a", {"nodes": [1]}), FakeEngine("b", {"nodes": [2]})]
    fan_out = FanOut(engine_calls_of(*engines), lambda outcome: None, method="graph", read=succeeded)
    assert await fan_out.run() is None
    assert [engine.methods for engine in engines] == [["graph"], ["graph"]]
    assert [engine.idempotent for engine in engines] == [[True], [True]]
    assert [outcome.result for outcome in fan_out.outcomes] == [{"nodes": [1]}, {"nodes": [2]}]


async def test_a_call_that_is_not_idempotent_is_started_as_such() -> None:
    """The engine knows that it must not send the request twice."""
    engine = FakeEngine("a", {})
    await FanOut(
        engine_calls_of(engine), lambda outcome: None, method="feedback", read=succeeded, idempotent=False
    ).run()
    assert engine.idempotent == [False]


async def test_a_call_that_cannot_be_started_fails_that_engine() -> None:
    """An error raised at the start of a call is the outcome of its engine; the others are called all the same."""

    class Gone(FakeEngine):
        def call(self, *_: Any, **__: Any) -> Any:
            raise Departed("it has left")

    fan_out = FanOut(engine_calls_of(Gone("a"), FakeEngine("b")), lambda outcome: None)
    assert await fan_out.run() is None
    assert statuses(fan_out.outcomes) == {"a": Departed.kind, "b": "ok"}
