"""One engine asked by itself: what it is sent, what its failure is called, and that nothing is lost on the way."""

import asyncio
from typing import Any

import pytest

from app.federation.calls import MethodCall
from app.federation.direct import ask_alone
from app.federation.instrumentation import RetrieveInstrumentation
from app.protocol.errors import CALL_KINDS, ConnectFailed, LegRateLimited, LegTimeout, Overloaded, RcpError, Refused
from app.protocol.retrieve_params import read_meta
from app.settings.schema import GatewaySettings
from app.telemetry.metrics import Metrics
from tests.support.fake_engine import FakeEngine, members_of


async def ask(
    engine: FakeEngine, params: Any = None, meta: Any = None, method: str = "retrieve", seconds: float = 5
) -> Any:
    """The result of one call, or the error it raised."""
    metrics = Metrics("1")
    metrics.declare_engines([engine.id], CALL_KINDS)
    now = asyncio.get_running_loop().time()
    read: Any = read_meta(meta)
    passed_on = {key: value for key, value in (meta or {}).items() if key == "idempotencyKey"}
    call = MethodCall(params or {}, read, now, now + seconds, "r", 3, passed_on, method=method)
    members = members_of(engine)
    try:
        return await ask_alone(call, engine, members, GatewaySettings(), RetrieveInstrumentation(metrics))  # type: ignore[arg-type]
    except RcpError as error:
        return error


async def test_params_and_result_are_handed_through() -> None:
    """All but `_meta` goes through as it is, in both directions; ours stands beside what is there."""
    sent = {"query": None, "k": "many", "x-gateway": {"engines": ["theirs"]}, "_meta": {"traceId": "t"}}
    engine = FakeEngine("docs", {"hits": [], "other": "anything", "_meta": {"own": 1, "degraded": ["x"]}})
    result = await ask(engine, sent)
    assert (result["hits"], result["other"]) == ([], "anything")
    assert result["_meta"]["own"] == 1
    assert result["_meta"]["x-gateway"]["engines"][0]["id"] == "docs"
    (asked,) = engine.asked
    assert {key: value for key, value in asked.items() if key != "_meta"} == {
        "query": None,
        "k": "many",
        "x-gateway": {"engines": ["theirs"]},
    }


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (ConnectFailed("refused"), -32010),
        (LegTimeout("late"), -32014),
        (Overloaded("full"), -32011),
        (LegRateLimited("slow down", code=-32011, retry_after_ms=70), -32011),
        (Refused("-32602 bad", code=-32602), -32602),
        (Refused("-32003 no", code=-32003), -32003),
        (Refused("-32010 down", code=-32010), -32010),
    ],
)
async def test_failures(fault: Any, code: int) -> None:
    """The engine's own code if it named one, else the code of what went wrong; the text names the engine."""
    error = await ask(FakeEngine("docs", fault))
    assert error.code == code
    assert "'docs'" in error.message
    assert error.data.get("retryAfterMs") == fault.retry_after_ms


async def test_it_is_not_asked_in_a_circle_or_too_late() -> None:
    """With the depth used up, ourselves or itself in the path, or no time left, it is not asked."""
    engine = FakeEngine("docs", gateway_id="them")
    for stop in ({"depth": 0}, {"path": ["us"]}, {"path": ["them"]}):
        error = await ask(engine, meta={"federation": stop})
        assert (error.code, error.data["retryable"]) == (-32010, False)
    assert (await ask(engine, seconds=0.001)).code == -32014
    assert engine.asked == []


@pytest.mark.parametrize("hits", ["anything", None, {}])
async def test_a_retrieve_result_without_hits_is_none(hits: Any) -> None:
    """It is no answer to `retrieve`, whoever asks: -32010, and the class of the failure is told."""
    error = await ask(FakeEngine("docs", {"hits": hits}))
    assert error.code == -32010
    assert "no 'hits' array" in error.data["detail"]
    assert (await ask(FakeEngine("docs", {"hits": hits}), method="x-acme/rank"))["hits"] == hits


async def test_what_is_unreadable_of_hits_is_left_out() -> None:
    """The other hits and fields stay, in the engine's order, and its own notes are kept beside ours."""
    low, high = {"id": "low", "score": 1, "x": None}, {"id": 7, "score": 9.5, "meta": {"a": None}, "confidence": 1}
    odd = {"id": "odd", "score": 3, "text": 5, "confidence": 7, "meta": "m", "vector": ["a"], "citation": {"uri": "u"}}
    sent = [low, {"id": True, "score": 1}, "hit", high, odd, {"id": "no score"}]
    engine = FakeEngine("docs", {"hits": sent, "usage": {"candidates": 6, "notes": ["theirs", 5]}})
    result = await ask(engine)
    assert result["hits"] == [low, high, {"id": "odd", "score": 3, "citation": {"uri": "u"}}]
    assert result["usage"] == {
        "candidates": 6,
        "notes": [
            "theirs",
            "docs: 3 malformed hit(s) dropped (a hit needs a usable id and a numeric score)",
            "docs: of 1 hit(s) left out what has another shape than RCP's: confidence, meta, text, vector",
        ],
    }
    assert (await ask(FakeEngine("docs", {"hits": [{}], "usage": 7}), method="graph"))["usage"]["notes"]
