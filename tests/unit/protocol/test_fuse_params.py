"""What may be sent to be fused once more: lists of keys, scores and confidences, and nothing malformed."""

from typing import Any

import pytest

from app.protocol.errors import InvalidParams
from app.protocol.fuse_params import read_refusion

LIST: dict[str, Any] = {"engine": "docs", "hits": [{"key": "a", "score": 1.5, "confidence": 0.5}]}


def test_a_whole_wish() -> None:
    """Names are those of requests; what is absent has the usual default."""
    wish = read_refusion({"lists": [{**LIST, "scoreFloor": 0, "asked": 20}], "rrfK": 10, "confidenceWeight": 0.5})
    assert (wish.method, wish.rrf_k, wish.confidence_weight, wish.k) == ("rrf", 10, 0.5, 10)
    assert wish.lists[0].score_floor == 0
    assert wish.lists[0].hits[0] == wish.lists[0].hits[0].__class__(key="a", score=1.5, confidence=0.5)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "lists"),
        ({"lists": [{**LIST, "weight": -1}]}, "lists.0.weight"),
        ({"lists": [{**LIST, "weight": float("inf")}]}, "lists.0.weight"),
        ({"lists": [{**LIST, "confidence": "very"}]}, "lists.0.confidence"),
        ({"lists": [{"engine": "docs", "hits": [{"key": 7, "score": 1}]}]}, "lists.0.hits.0.key"),
        ({"lists": [{"engine": "docs", "hits": [{"key": "a", "score": True}]}]}, "lists.0.hits.0.score"),
        (
            {"lists": [{"engine": "docs", "hits": [{"key": "a", "score": 1, "confidence": 2}]}]},
            "lists.0.hits.0.confidence",
        ),
        ({"lists": [{"engine": "docs", "hits": [{"key": "a", "score": 1}] * 1001}]}, "lists.0.hits"),
        ({"lists": [LIST], "method": "magic"}, "method"),
        ({"lists": [LIST], "k": -1}, "k"),
        ({"lists": [LIST], "rrfK": 0}, "rrfK"),
    ],
)
def test_what_is_malformed_is_named(body: dict[str, Any], field: str) -> None:
    """The field is named, and the value is not repeated."""
    with pytest.raises(InvalidParams) as refused:
        read_refusion(body)
    assert refused.value.data["field"] == field
