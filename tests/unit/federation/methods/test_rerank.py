"""`rerank`: who fits, both dialects both ways, and results that are none."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.errors import (
    BackendUnavailable,
    BadStatus,
    InvalidParams,
    OptionUnsupported,
    ProtocolViolation,
    Refused,
)
from app.protocol.rerank_params import completed
from tests.support.answering import asked, error_of, sent, told
from tests.support.fake_engine import FakeEngine, Json

THREE = ["a", "b", "c"]


def reranker(name: str, answer: Any = None, *, offer: Any = None, **more: Any) -> FakeEngine:
    """An engine that judges; `offer` is its capability."""
    answer = {"scores": [0.1, 0.9, 0.5]} if answer is None else answer
    return FakeEngine(name, answer, capabilities={"rerank": {} if offer is None else offer}, **more)


@pytest.mark.parametrize("name", ["passages", "documents"])
async def test_both_names_are_taken_and_both_are_sent(name: str) -> None:
    """An engine finds the passages under the name that it knows; all else goes through as it is."""
    engine = reranker("a", offer={"methods": ["llm"], "models": ["m"]})
    params = {"query": "q", name: THREE, "method": "llm", "model": "m", "topN": 2, "other": 1, "gone": None}
    result = await asked("rerank", params, engine)
    assert sent(engine) == {
        **{"query": "q", "passages": THREE, "documents": THREE, "method": "llm", "model": "m", "topN": 2, "other": 1}
    }
    assert result["scores"] == [0.1, 0.9, 0.5]
    assert result["order"] == [1, 2]
    assert result["results"] == [{"index": 1, "score": 0.9}, {"index": 2, "score": 0.5}]


@pytest.mark.parametrize(
    ("answer", "scores", "order", "results"),
    [
        ({"scores": [1, 3, 2]}, [1, 3, 2], [1, 2, 0], [(1, 3), (2, 2), (0, 1)]),
        ({"scores": [1, 1, 1]}, [1, 1, 1], [0, 1, 2], [(0, 1), (1, 1), (2, 1)]),
        ({"scores": [1, 3, 2], "order": [2, 1]}, [1, 3, 2], [2, 1], [(2, 2), (1, 3)]),
        ({"results": [(2, 0.5), (0, 0.9), (1, 0.1)]}, [0.9, 0.1, 0.5], [0, 2, 1], [(2, 0.5), (0, 0.9), (1, 0.1)]),
        ({"results": [(2, -3), (0, -5)]}, [-5, -5, -3], [2, 0], [(2, -3), (0, -5)]),
        ({"results": []}, [0.0, 0.0, 0.0], [], []),
    ],
)
async def test_both_forms_are_given(answer: Any, scores: Any, order: Any, results: Any) -> None:
    """What the engine gave stays as it is, the other form is made of it; what was not judged never comes first."""
    entries = [{"index": index, "score": score, "relevance": "kept"} for index, score in answer.get("results", ())]
    if "results" in answer:
        answer = {"results": entries}
    result = await asked("rerank", {"query": "q", "passages": THREE}, reranker("a", {**answer, "model": "m"}))
    assert result["scores"] == scores
    assert result["order"] == order
    given_results = [(entry["index"], entry["score"]) for entry in result["results"]]
    assert given_results == results
    assert result["model"] == "m"
    assert all(entry["relevance"] == "kept" for entry in result["results"] if "relevance" in entry)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=20), st.none() | st.integers(1, 25))
def test_an_order_sorts_its_scores(scores: list[float], top_n: int | None) -> None:
    """The order that is added is a ranking of the scores, stable, as long as was asked for; both forms agree."""
    made = completed({"scores": scores}, len(scores), top_n)
    order = made["order"]
    assert order == sorted(range(len(scores)), key=lambda index: -scores[index])[:top_n]
    back = completed({"results": made["results"]}, len(scores), top_n)
    assert back["order"] == order
    assert all(back["scores"][index] == scores[index] for index in order)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"scores": [1, 2]},
        {"scores": [1, 2, 3, 4]},
        {"scores": [1, 2, "3"]},
        {"scores": [1, 2, True]},
        {"scores": "123"},
        {"scores": [1, 2, 3], "order": [0, 0]},
        {"scores": [1, 2, 3], "order": [3]},
        {"scores": [1, 2, 3], "order": "012"},
        {"results": {"0": 1}},
        {"results": [1]},
        {"results": [{"index": 0}]},
        {"results": [{"score": 1}]},
        {"results": [{"index": 3, "score": 1}]},
        {"results": [{"index": -1, "score": 1}]},
        {"results": [{"index": True, "score": 1}]},
        {"results": [{"index": [], "score": 1}]},
        {"results": [{"index": 0, "score": 1}, {"index": 0, "score": 2}]},
    ],
)
async def test_a_result_that_is_none_fails_its_engine(answer: Json) -> None:
    """Scores that belong to no passage are no answer: the next engine is asked, else it is -32010."""
    with pytest.raises(ProtocolViolation):
        completed(answer, 3, None)
    error = await error_of("rerank", {"query": "q", "passages": THREE}, reranker("a", answer))
    assert isinstance(error, BackendUnavailable)
    result = await asked("rerank", {"query": "q", "passages": THREE}, reranker("a", answer), reranker("b"))
    assert told(result) == {"a": "protocol", "b": "ok"}


async def test_who_does_not_fit_is_passed_over() -> None:
    """Method, model and number of passages: the first engine that can do all of it."""
    engines = [
        reranker("a", offer={"methods": ["colbert"]}),
        reranker("b", offer={"methods": ["llm"], "models": ["n"]}),
        reranker("c", offer={"methods": ["llm"], "models": ["m"], "maxCandidates": 2}),
        reranker("d", offer={"methods": ["llm"], "models": ["m"], "maxCandidates": 3}),
        reranker("e", offer={"methods": ["llm"], "models": ["m"]}),
    ]
    params = {"query": "q", "passages": THREE, "method": "llm", "model": "m"}
    result = await asked("rerank", params, *engines)
    assert told(result) == {"a": "option", "b": "option", "c": "limit", "d": "ok", "e": "not_needed"}
    error = await error_of("rerank", params, *engines[:3])
    assert isinstance(error, InvalidParams)
    assert error.data["field"] == "passages"
    assert "2" in error.message
    error = await error_of("rerank", params, *engines[:2])
    assert isinstance(error, OptionUnsupported)
    assert error.data["option"] in ("method", "model")
    assert all(engine.asked == [] for engine in engines[:3])


async def test_too_many_documents_are_named_as_the_caller_did() -> None:
    """The field in the error is the one that the caller sent."""
    error = await error_of("rerank", {"query": "q", "documents": THREE}, reranker("a", offer={"maxCandidates": 1}))
    assert error.data["field"] == "documents"


@pytest.mark.parametrize("offer", [True, {"methods": "llm"}, {}])
async def test_an_engine_that_states_nothing_takes_any_passages_and_no_method(offer: Any) -> None:
    """What is not advertised cannot be demanded."""
    engine = reranker("a", offer=offer)
    assert (await asked("rerank", {"query": "q", "passages": THREE}, engine))["order"] == [1, 2, 0]
    error = await error_of("rerank", {"query": "q", "passages": THREE, "method": "llm"}, engine)
    assert isinstance(error, OptionUnsupported)


@pytest.mark.parametrize("fault", [BadStatus("HTTP 502"), Refused("x", code=-32011), Refused("x", code=-32014)])
async def test_the_next_answers_for_one_that_cannot(fault: Any) -> None:
    """Fail-over, told in the answer."""
    result = await asked("rerank", {"query": "q", "passages": THREE}, reranker("a", fault), reranker("b"))
    assert result["_meta"]["degraded"] == ["a"]


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"passages": THREE}, "query"),
        ({"query": "", "passages": THREE}, "query"),
        ({"query": "q"}, "passages"),
        ({"query": "q", "passages": "abc"}, "passages"),
        ({"query": "q", "documents": [7]}, "documents[0]"),
        ({"query": "q", "passages": ["a"], "documents": ["b"]}, "documents"),
        ({"query": "q", "passages": THREE, "topN": 0}, "topN"),
        ({"query": "q", "passages": THREE, "topN": True}, "topN"),
        ({"query": "q", "passages": THREE, "method": 7}, "method"),
        ({"query": "q", "passages": THREE, "model": ""}, "model"),
    ],
)
async def test_malformed_params_are_named(params: Json, field: str) -> None:
    """-32602 with the field, before anybody is asked."""
    engine = reranker("a")
    error = await error_of("rerank", params, engine)
    assert isinstance(error, InvalidParams)
    assert error.data["field"] == field
    assert engine.asked == []
