"""What is kept of the answers of one system."""

from typing import Any

from app.evaluation.runs import Run, counted, degraded_of, read_hits


def fused(key: Any, score: float, *marks: dict[str, Any]) -> dict[str, Any]:
    """A hit as a gateway returns it."""
    return {"id": key, "score": score, "text": "long", "meta": {"engines": list(marks)}}


def test_an_engine_is_read_as_it_ranked_and_scored() -> None:
    """Rank, score and confidence are its own, whatever the gateway made of them and others said."""
    result = {
        "hits": [
            fused("d2", 0.9, {"id": "other", "rank": 1, "score": 5}, {"id": "docs", "rank": 2, "score": 7.5}),
            fused(1, 0.8, {"id": "docs", "rank": 1, "score": 8, "confidence": 0.25}),
        ]
    }
    assert read_hits(result, "docs") == [{"id": "1", "score": 8, "confidence": 0.25}, {"id": "d2", "score": 7.5}]


def test_the_gateway_is_read_in_its_own_order() -> None:
    """Ids as strings, the fused score, nothing else."""
    result = {"hits": [fused(1.5, 0.9), fused("a", 0.8)]}
    assert read_hits(result, None) == [{"id": "1.5", "score": 0.9}, {"id": "a", "score": 0.8}]


def test_what_is_no_hit_is_passed_over() -> None:
    """Foreign nonsense neither counts nor breaks anything; without marks the order of the answer holds."""
    result = {"hits": [None, {"id": True}, {"score": 1}, {"id": "b", "meta": {"engines": 3}}, {"id": "a", "meta": []}]}
    assert [hit["id"] for hit in read_hits(result, "docs")] == ["b", "a"]
    assert degraded_of({"_meta": {"degraded": ["x", 1]}}) == ["x"]
    assert degraded_of({"_meta": 1}) == []


def test_a_run_says_what_is_wrong_with_it() -> None:
    """Refusals, failures and answers that lack an engine, each with a count and the first reason."""
    run = Run(None, {"q1": [{"id": "a"}]}, {"q2": "no such field"}, {"q3": "timeout", "q4": "connect"}, {"docs": 1})
    assert list(run.notes()) == [
        "gateway: 1 query refused, first: no such field",
        "gateway: 2 queries failed, first: timeout",
        "gateway: 1 answer without docs, which failed",
    ]
    assert run.rankings() == {"q1": ["a"]}
    assert Run("docs").name == "docs"
    assert (counted(1, "bar"), counted(2, "bar")) == ("1 bar", "2 bars")
