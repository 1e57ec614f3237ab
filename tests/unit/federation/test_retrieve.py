"""The story of one question from end to end, over fake wires and by a clock that jumps."""

import asyncio
import itertools
import json
from collections.abc import Mapping
from typing import Any

import pytest

from app.engines.engine import RemoteEngine
from app.federation.calls import RetrieveCall
from app.federation.engine_interface import Engine
from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.membership import Members
from app.federation.retrieve import retrieve
from app.protocol.errors import (
    CALL_KINDS,
    BackendUnavailable,
    BadStatus,
    ConnectFailed,
    DeadlineExceeded,
    RcpError,
    Refused,
)
from app.settings.schema import GatewaySettings
from app.telemetry.metrics import Metrics
from tests.support.fake_engine import FakeEngine, FakeTransport, Json, call_of, entry_of, hit, hits, members_of, never
from tests.support.virtual_time import virtually

SETTINGS = GatewaySettings()


async def answer(members: Members, call: RetrieveCall, settings: GatewaySettings = SETTINGS) -> Any:
    """The result of one call."""
    metrics = Metrics("test")
    metrics.declare_engines(members.ids(), CALL_KINDS)
    return (await retrieve(call, members, settings, RetrieveInstrumentation(metrics))).result


def now() -> float:
    """The loop's time."""
    return asyncio.get_running_loop().time()


async def ask(*engines: FakeEngine, **call: Any) -> Any:
    """The result of one call to fake engines."""
    return await answer(members_of(*engines), call_of(now=now(), **call))


async def test_a_named_engine_that_was_never_reached_counts_as_failed() -> None:
    """Who asks for an engine by name is told that it is missing: degraded, a note, and alone an error."""
    down = FakeEngine("b", reached=False, down_reason="connect: refused")
    named = {"engines": ["a", "b"]}
    result = await ask(FakeEngine("a"), down, x_gateway=named)
    assert result["_meta"]["degraded"] == ["b"]
    assert [(engine["id"], engine["status"]) for engine in result["_meta"]["x-gateway"]["engines"]] == [
        ("a", "ok"),
        ("b", "failed"),
    ]
    assert result["usage"]["notes"] == ["b: unreached after 0 ms (0 attempts): connect: refused"]
    assert "degraded" not in (await ask(FakeEngine("a"), down))["_meta"]
    with pytest.raises(BackendUnavailable) as error:
        await ask(FakeEngine("a"), down, x_gateway={"engines": ["b"]})
    assert error.value.data["retryable"] is True


def after(seconds: float, then: Any) -> Any:
    """A script that waits so long."""

    async def play(params: Mapping[str, Any]) -> Any:
        await asyncio.sleep(seconds)
        return then

    return play


async def remote(engine_id: str, script: Any, **wishes: Any) -> Engine:
    """A real engine over a fake wire that plays this for `retrieve`; hands are shaken."""
    engine = RemoteEngine(entry_of(engine_id, **wishes), FakeTransport(retrieve=script), lambda changed: None)
    await engine.handshake(now() + 1)
    return engine


def members_over(*engines: Engine) -> Members:
    """A federation of engines that are no fakes."""
    return Members("us", engines, (), {}, (), 200)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_hanging_engine_costs_its_own_timeout(position: int) -> None:
    """Two engines answer at once and one hangs: the answer is there at its timeout, fused from the two (B26)."""

    async def story() -> None:
        engines = [
            await remote("a", after(0.02, {"hits": hits("x", "y")})),
            await remote("b", after(0.02, {"hits": hits("y")})),
        ]
        engines.insert(position, await remote("stuck", never, timeoutMs=2000))
        started = now()
        result = await answer(members_over(*engines), call_of(now=started, seconds=10.0))
        assert now() - started == pytest.approx(2.0)
        assert [found["id"] for found in result["hits"]] == ["y", "x"]
        assert result["_meta"]["degraded"] == ["stuck"]
        (note,) = result["usage"]["notes"]
        assert note.startswith("stuck: timeout after ")
        assert asyncio.all_tasks() == {asyncio.current_task()}

    virtually(story())


@pytest.mark.parametrize(("timeout_ms", "seconds"), [(2000, 0.4), (500, 0.4), (300, 0.3)])
def test_caller_s_deadline_is_kept(timeout_ms: int, seconds: float) -> None:
    """However the engine's own timeout compares to the caller's half second, a partial answer is there before (B28)."""

    async def story() -> None:
        engines = [await remote("a", {"hits": hits("x")}), await remote("stuck", never, timeoutMs=timeout_ms)]
        started = now()
        result = await answer(members_over(*engines), call_of(now=started, meta={"deadlineMs": 500}))
        assert now() - started == pytest.approx(seconds)
        assert [found["id"] for found in result["hits"]] == ["x"]

    virtually(story())


def test_nobody_in_time_is_the_deadline_s_fault() -> None:
    """If the caller's deadline cut everybody off it is -32014, before that deadline."""

    async def story() -> None:
        started = now()
        with pytest.raises(DeadlineExceeded):
            await answer(members_over(await remote("stuck", never)), call_of(now=started, meta={"deadlineMs": 500}))
        assert now() - started < 0.5

    virtually(story())


def test_nobody_in_their_own_time_is_unavailable() -> None:
    """If engines took longer than their own timeouts they are unavailable: -32010."""

    async def story() -> None:
        with pytest.raises(BackendUnavailable):
            await answer(members_over(await remote("stuck", never)), call_of(now=now()))

    virtually(story())


@pytest.mark.parametrize("deadline_ms", [1, 3, 5, 50])
def test_very_short_deadlines(deadline_ms: int) -> None:
    """A deadline too short to pass anything on is -32014 at once; any longer one is told to the engine, shortened."""

    async def story() -> None:
        engine = FakeEngine("a")
        call = call_of(now=now(), meta={"deadlineMs": deadline_ms})
        if deadline_ms < 2:
            with pytest.raises(DeadlineExceeded):
                await answer(members_of(engine), call)
            assert engine.asked == []
        else:
            await answer(members_of(engine), call)
            assert 1 <= engine.asked[0]["_meta"]["deadlineMs"] < deadline_ms

    virtually(story())


async def test_required_failure_fails_the_whole() -> None:
    """A required engine's failure is the whole's, with its code and its name (B31)."""
    with pytest.raises(RcpError) as error:
        await ask(FakeEngine("a"), FakeEngine("must", Refused("-32015 gone", code=-32015), required=True))
    assert error.value.code == -32015
    assert "'must'" in error.value.message


async def test_everybody_failed() -> None:
    """If every engine failed it is -32010 with a note for each (B32)."""
    with pytest.raises(BackendUnavailable) as error:
        await ask(FakeEngine("a", BadStatus("503")), FakeEngine("b", ConnectFailed("refused")))
    assert [note.split(":")[0] for note in error.value.data["notes"]] == ["a", "b"]


async def test_everybody_empty() -> None:
    """If every engine answered with nothing the answer is an empty list, and not partial (B32)."""
    result = await ask(FakeEngine("a", {"hits": []}), FakeEngine("b", {"hits": []}))
    assert result["hits"] == []
    assert "degraded" not in result["_meta"]


async def test_some_failed_and_the_rest_is_empty() -> None:
    """If some failed and the others had nothing the answer is an empty list, and partial (B32)."""
    result = await ask(FakeEngine("a", {"hits": []}), FakeEngine("b", BadStatus("503")))
    assert result["hits"] == []
    assert result["_meta"]["degraded"] == ["b"]


async def test_depth_used_up_is_an_empty_success() -> None:
    """At depth 0 nobody is asked, and the success says so (decision 3)."""
    engine = FakeEngine("a")
    result = await ask(engine, meta={"federation": {"depth": 0}})
    assert (result["hits"], engine.asked) == ([], [])
    assert result["usage"]["notes"] == ["no engine was asked: the federation depth is exhausted"]
    assert [(entry["id"], entry["reason"]) for entry in result["_meta"]["x-gateway"]["engines"]] == [("a", "depth")]


async def test_namespace_and_weight_of_the_registry_hold() -> None:
    """An engine's `idNamespace` keeps its ids apart, and a weight of 0 adds nothing to scores (B07, B21)."""
    result = await ask(
        FakeEngine("a", {"hits": [hit(1, text="one")]}, idNamespace="docs"),
        FakeEngine("b", {"hits": [hit(1, text="another")]}, weight=0.0),
    )
    assert [(found["id"], found["score"]) for found in result["hits"]] == [("docs:1", 1.0), (1, 0.0)]


def told(result: Json) -> str:
    """A result as text, without what depends on time."""
    del result["usage"]["latencyMs"]
    for entry in result["_meta"]["x-gateway"]["engines"]:
        del entry["tookMs"]
    return json.dumps(result)


def test_nothing_depends_on_arrival_or_registry_order() -> None:
    """Whoever stands or answers first, the answer is the same to the byte."""
    lists = {"a": hits("x", "y", "z"), "b": hits("z", "w"), "c": hits("w", "x")}

    async def story(order: tuple[str, ...], arrival: tuple[str, ...]) -> str:
        engines = [
            FakeEngine(name, after(0.01 * arrival.index(name), {"hits": [dict(found) for found in lists[name]]}))
            for name in order
        ]
        return told(await ask(*engines))

    orders = list(itertools.permutations("abc"))
    answers = {virtually(story(order, arrival)) for order in orders for arrival in orders}
    assert len(answers) == 1


@pytest.mark.parametrize("k", range(1, 10))
async def test_smaller_k_is_a_prefix(k: int) -> None:
    """The answer for a smaller k is a prefix of the one for k = 10."""
    lists = [hits(*range(start, start + 20)) for start in (0, 5, 12)]

    def engines() -> list[FakeEngine]:
        return [FakeEngine(f"e{number}", {"hits": sent}) for number, sent in enumerate(lists)]

    whole = (await ask(*engines(), k=10))["hits"]
    assert (await ask(*engines(), k=k))["hits"] == whole[:k]
    assert len(whole) == 10
