"""One question to several engines: who is asked, who is missed, and whose failure is the whole's."""

from typing import Any

import pytest

from app.federation.broadcast import BroadcastContext, BroadcastRequest, BroadcastResult, broadcast, with_report
from app.federation.candidates import candidates_for
from app.federation.engine_interface import Engine
from app.federation.outcome import Outcome, skipped, succeeded
from app.protocol.errors import (
    BackendUnavailable,
    BadStatus,
    CapabilityMissing,
    DeadlineExceeded,
    LegTimeout,
    RcpError,
    Refused,
)
from app.protocol.retrieve_params import read_gateway
from tests.support.broadcast_calls import context_of
from tests.support.fake_engine import FakeEngine, Json

GRAPH: Json = {"graph": {}}


def graph(name: str, answer: Any = None, **defaults: Any) -> FakeEngine:
    return FakeEngine(name, {"x": name} if answer is None else answer, capabilities=GRAPH, **defaults)


def engine_request(engine: Engine) -> BroadcastRequest | Outcome:
    """To all but `c`."""
    return skipped("c", "seeds", "none of its own") if engine.id == "c" else BroadcastRequest({"op": "x"}, 7)


async def broadcast_to(
    *engines: FakeEngine, names: list[str] | None = None, **more: Any
) -> tuple[BroadcastContext, BroadcastResult]:
    call = {key: more.pop(key) for key in ("meta", "seconds") if key in more}
    context = context_of("graph", {}, *engines, **call)
    options = read_gateway(None if names is None else {"engines": names})
    candidates = candidates_for(context.call, context.members, "graph", options)
    return context, await broadcast(context, candidates, engine_request, succeeded, **more)


async def error_of(*engines: FakeEngine, **more: Any) -> RcpError:
    with pytest.raises(RcpError) as error:
        await broadcast_to(*engines, **more)
    return error.value


async def test_all_candidates_with_a_engine_request_are_asked() -> None:
    """With the method of the call, each with its own `_meta`; the others are skipped with their reason."""
    engines = [graph("a", weight=3.0), graph("b", BadStatus("503")), graph("c"), FakeEngine("d")]
    context, found = await broadcast_to(*engines)
    assert [(outcome.engine, outcome.status) for outcome in found.outcomes] == [("a", "ok"), ("b", "failed")]
    assert {outcome.engine: outcome.kind for outcome in found.skipped} == {"c": "seeds", "d": "capability"}
    assert engines[0].methods == ["graph"]
    assert engines[0].asked[0].keys() == {"op", "_meta"}
    assert (found.engine_calls["a"].weight, found.engine_calls["a"].asked) == (3.0, 7)
    assert [response.engine for response in found.responses()] == ["a"]
    result = with_report(context, found, {"hits": [], "usage": {"candidates": 1}}, ["more"])
    assert result["usage"]["notes"][0].startswith("b: http_status")
    assert result["usage"]["notes"][1] == "more"
    assert result["_meta"]["degraded"] == ["b"]
    assert [entry["id"] for entry in result["_meta"]["x-gateway"]["engines"]] == ["a", "b", "c", "d"]


async def test_a_result_without_notes_has_no_usage() -> None:
    """`feedback` has none by itself."""
    context, found = await broadcast_to(graph("a"))
    assert "usage" not in with_report(context, found, {"accepted": 1})


async def test_what_is_not_idempotent_is_sent_so() -> None:
    """Engines are told, and send it once."""
    engine = graph("a")
    await broadcast_to(engine, idempotent=False)
    assert engine.idempotent == [False]


async def test_nobody_with_a_engine_request() -> None:
    """No engine is asked; what that means is the method's to say."""
    _, found = await broadcast_to(graph("c"))
    assert (found.engine_calls, found.outcomes) == ({}, [])


async def test_nobody_may_be_asked() -> None:
    """A loop or a used-up depth: no engine is asked, and a note says why."""
    engine = graph("a")
    for federation in ({"depth": 0}, {"path": ["us"]}):
        _, found = await broadcast_to(engine, meta={"federation": federation})
        assert found.notes[0].startswith("no engine was asked: ")
        assert len(found.skipped) == 1
    assert engine.asked == []


async def test_nobody_can() -> None:
    """The error of a call that no engine may be asked; an engine that is named and down has failed."""
    assert isinstance(await error_of(FakeEngine("a")), CapabilityMissing)
    assert isinstance(await error_of(graph("a", reached=False), names=["a"]), BackendUnavailable)


async def test_nobody_answers() -> None:
    """-32010; the engine's own code if only one could have answered and refused the question itself."""
    refusal = Refused("no such thing", code=-32015)
    assert (await error_of(graph("a", refusal))).code == -32010
    assert (await error_of(graph("a", refusal), single_engine=True)).code == -32015
    assert (await error_of(graph("a", Refused("down", code=-32010)), single_engine=True)).code == -32010
    assert (await error_of(graph("a", BadStatus("503")), single_engine=True)).code == -32010


async def test_required_engines() -> None:
    """One that fails, or was never reached, fails the whole, whoever else answered."""
    refusal = Refused("busy", code=-32016)
    assert (await error_of(graph("a"), graph("b", refusal, required=True))).code == -32016
    away = await error_of(graph("a"), graph("b", reached=False, required=True, down_reason="connect: no"))
    assert (away.code, away.data["retryable"]) == (-32010, True)
    assert "'b'" in away.message


async def test_time_that_is_up() -> None:
    """Nobody is asked any more; and where the caller's deadline cuts all engines off it is -32014."""
    engine = graph("a")
    assert isinstance(await error_of(engine, seconds=0.001), DeadlineExceeded)
    assert engine.asked == []
    late = graph("late", LegTimeout("no answer within the time it was given"), timeoutMs=5000)
    assert isinstance(await error_of(late, seconds=0.5), DeadlineExceeded)
    assert isinstance(await error_of(late, seconds=50.0), BackendUnavailable)
