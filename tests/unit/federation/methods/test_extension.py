"""Vendors' own methods: to whom they go, untouched, and when they may be repeated."""

import pytest

from app.protocol.errors import BackendUnavailable, ConnectFailed, ForeignError, InvalidParams, LegTimeout, Refused
from tests.support.answering import asked, error_of, sent, told
from tests.support.fake_engine import FakeEngine, Json

CAN: Json = {"x-acme": {}}


async def test_params_and_result_are_untouched() -> None:
    """Nulls and all; only what is ours to read is taken out, and the report is put in beside the engine's `_meta`."""
    params = {"deep": {"null": None}, "gone": None, "x-gateway": {"engines": ["a", "c"]}}
    answer = {"anything": [None, {"a": 1}], "_meta": {"theirs": 1}}
    engine, other = FakeEngine("a", answer, capabilities=CAN), FakeEngine("b", {}, capabilities={"x-other": {}})
    last = FakeEngine("c", {}, capabilities=CAN)
    result = await asked("x-acme/deep/name", params, engine, other, last, meta={"x-acme": 7})
    assert engine.methods == ["x-acme/deep/name"]
    assert sent(engine) == {"deep": {"null": None}, "gone": None}
    assert engine.asked[0]["_meta"]["x-acme"] == 7
    assert result["anything"] == [None, {"a": 1}]
    assert result["_meta"]["theirs"] == 1
    assert told(result) == {"a": "ok", "b": "not_selected", "c": "not_needed"}


async def test_it_is_not_repeated_once_it_was_sent() -> None:
    """Nobody knows what it does: a timeout is the end, unless the caller's key makes twice as good as once."""
    slow, second = FakeEngine("a", LegTimeout("x"), capabilities=CAN), FakeEngine("b", {"x": 2}, capabilities=CAN)
    error = await error_of("x-acme/do", {}, slow, second)
    assert isinstance(error, BackendUnavailable)
    assert second.asked == []
    assert slow.idempotent == [False]
    result = await asked("x-acme/do", {}, slow, second, meta={"idempotencyKey": "k"})
    assert result["x"] == 2
    assert slow.idempotent == [False, True]
    assert second.asked[0]["_meta"]["idempotencyKey"] == "k"


async def test_the_next_answers_for_one_that_was_not_reached() -> None:
    """Nothing was sent, or the engine says that it did nothing."""
    second = FakeEngine("b", {"x": 2}, capabilities=CAN)
    for fault in (ConnectFailed("no"), Refused("x", code=-32010), Refused("x", code=-32011)):
        result = await asked("x-acme/do", {}, FakeEngine("a", fault, capabilities=CAN), second)
        assert result["_meta"]["degraded"] == ["a"]


async def test_an_engines_own_code_is_the_answer() -> None:
    """Vendors have codes of their own."""
    engine = FakeEngine("a", Refused("-31999 full moon", code=-31999), capabilities=CAN)
    error = await error_of("x-acme/do", {}, engine)
    assert isinstance(error, ForeignError)
    assert error.code == -31999
    assert "full moon" in error.message


@pytest.mark.parametrize("key", [7, "", [], True])
async def test_an_idempotency_key_is_a_string(key: object) -> None:
    """-32602 naming it."""
    error = await error_of("x-acme/do", {}, FakeEngine("a", {}, capabilities=CAN), meta={"idempotencyKey": key})
    assert isinstance(error, InvalidParams)
    assert error.data["field"] == "_meta.idempotencyKey"
