"""`query/transform`: who has the method, how many variants, and results that are none."""

from typing import Any

import pytest

from app.protocol.errors import BackendUnavailable, BadStatus, InvalidParams, OptionUnsupported
from tests.support.answering import asked, error_of, sent, told
from tests.support.fake_engine import FakeEngine, Json

METHOD = "query/transform"
ASKS = {"query": "q", "method": "hyde"}


def transformer(name: str, answer: Any = None, *methods: str, offer: Any = None) -> FakeEngine:
    """An engine that has these methods."""
    answer = {"queries": [name], "hypothetical": "h"} if answer is None else answer
    said = {"methods": list(methods or ("hyde",))} if offer is None else offer
    return FakeEngine(name, answer, capabilities={"transform": said})


async def test_the_first_that_has_the_method() -> None:
    """Others are passed over; params and result go through."""
    engines = [transformer("a", None, "rewrite"), transformer("b"), transformer("c")]
    result = await asked(METHOD, {**ASKS, "n": 3, "other": 1}, *engines)
    assert (result["queries"], result["hypothetical"]) == (["b"], "h")
    assert told(result) == {"a": "option", "b": "ok", "c": "not_needed"}
    assert sent(engines[1]) == {**ASKS, "n": 3, "other": 1}


@pytest.mark.parametrize(("wanted", "given"), [(1, 1), (8, 8), (9, 8), (2**50, 8)])
async def test_the_number_of_variants_is_bounded(wanted: int, given: int) -> None:
    """More than eight are clamped, as `k` is."""
    engine = transformer("a")
    await asked(METHOD, {**ASKS, "n": wanted}, engine)
    assert engine.asked[0]["n"] == given


@pytest.mark.parametrize("offer", [{}, True, {"methods": "hyde"}, {"methods": ["rewrite"]}])
async def test_a_method_nobody_has(offer: Any) -> None:
    """-32005 naming the option."""
    engine = transformer("a", offer=offer)
    error = await error_of(METHOD, ASKS, engine)
    assert isinstance(error, OptionUnsupported)
    assert error.data["option"] == "method"
    assert engine.asked == []


@pytest.mark.parametrize("answer", [{}, {"queries": "q"}, {"queries": ["a", 7]}, BadStatus("HTTP 500")])
async def test_the_next_answers_for_one_that_cannot(answer: Any) -> None:
    """A result without queries is none; alone it is -32010."""
    result = await asked(METHOD, ASKS, transformer("a", answer), transformer("b"))
    assert result["queries"] == ["b"]
    assert result["_meta"]["degraded"] == ["a"]
    assert isinstance(await error_of(METHOD, ASKS, transformer("a", answer)), BackendUnavailable)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"method": "hyde"}, "query"),
        ({"query": ["q"], "method": "hyde"}, "query"),
        ({"query": "q"}, "method"),
        ({"query": "q", "method": 7}, "method"),
        ({**ASKS, "n": 0}, "n"),
        ({**ASKS, "n": 1.5}, "n"),
        ({**ASKS, "n": False}, "n"),
    ],
)
async def test_malformed_params_are_named(params: Json, field: str) -> None:
    """-32602 with the field, before anybody is asked."""
    engine = transformer("a")
    error = await error_of(METHOD, params, engine)
    assert isinstance(error, InvalidParams)
    assert error.data["field"] == field
    assert engine.asked == []
