"""What a document's rank is made of: the same points as in the blend, taken apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.fusion.explanation import shares_of
from app.fusion.ranked_lists import FusionConfig, RankedList
from app.fusion.rrf import fuse
from app.fusion.score_table import UNIT

DOCS = RankedList("docs", [{"id": "a", "score": 2, "confidence": 0.9}, {"id": "b", "score": 1, "confidence": 0.5}])
CODE = RankedList("code", [{"id": "b", "score": 9}, {"id": "b", "score": 8}, {"id": "c", "score": 7}], weight=2.0)


def test_parts_name_rank_confidence_and_share() -> None:
    """Each engine that gave the document is told with its rank, the largest part first."""
    told = shares_of([DOCS, CODE], FusionConfig(confidence_weight=0), ["b", "a", "c"])
    assert told.method == "rrf"
    b, a, c = told.standings
    assert [(part.engine, part.rank, part.confidence) for part in b.parts] == [("code", 1, None), ("docs", 2, 0.5)]
    assert b.parts[0].points == pytest.approx(2 / 61)
    assert sum(part.share for part in b.parts) == pytest.approx(1)
    assert [(part.engine, part.rank) for part in a.parts] == [("docs", 1)]
    assert [(part.engine, part.rank) for part in c.parts] == [("code", 2)], "ranks close up after a duplicate"


def test_confidences_that_are_not_believed_are_not_told() -> None:
    """An engine whose confidences are ignored has none here either."""
    told = shares_of([DOCS._replace(confidence="ignore")], FusionConfig(), ["a"])
    assert told.standings[0].parts[0].confidence is None


def test_a_sum_of_nothing_is_shared_by_nobody() -> None:
    """Where an engine weighs nothing, its part is 0 and not a division by it."""
    told = shares_of([DOCS._replace(weight=0.0)], FusionConfig(), ["a"])
    assert told.standings[0].total == 0
    assert told.standings[0].parts[0].share == 0


def test_a_document_that_nobody_gave() -> None:
    """A key that is in no list has no parts."""
    assert shares_of([DOCS], FusionConfig(), ["z"]).standings[0] == ("z", 0, [])


@given(
    st.lists(st.lists(st.integers(0, 9), unique=True, max_size=8), min_size=1, max_size=4),
    st.sampled_from(["rrf", "weighted", "convex"]),
    st.floats(0, 1),
)
def test_parts_add_up_to_what_was_fused(ids: list[list[int]], method: str, temper: float) -> None:
    """The sum of a document's parts is the score it was ranked by, under every method."""
    lists = [
        RankedList(
            f"e{place}",
            [{"id": key, "score": 10 - rank, "confidence": 1 / (rank + 1)} for rank, key in enumerate(keys)],
            weight=1 + place,
        )
        for place, keys in enumerate(ids)
    ]
    options = FusionConfig(method=method, confidence_weight=temper)  # type: ignore[arg-type]  # one of the methods
    fusion = fuse(lists, options)
    told = shares_of(lists, options, fusion.keys())
    for standing, hit in zip(told.standings, fusion.hits(), strict=True):
        assert standing.total == pytest.approx(hit["meta"]["fusedScore"], abs=2 / UNIT)
        assert {part.engine: part.rank for part in standing.parts} == {
            mark["id"]: mark["rank"] for mark in hit["meta"]["engines"]
        }
