"""What a reranker makes of a fused order: who moves, and which scores are said."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.fusion.merge import Reranked
from app.fusion.ranked_lists import FusionConfig, RankedList
from app.fusion.rrf import fuse
from tests.support.fusion_inputs import federations

VALUES = st.dictionaries(st.integers(0, 12), st.sampled_from([-3.0, 0.0, 0.5, 0.5, 7.25]))


@settings(deadline=None)
@given(federations(), VALUES, st.integers(0, 12))
def test_documents_move_and_scores_stay(lists: list[RankedList], values: dict[int, float], top: int) -> None:
    """Within the top the values order, then come those without one; beyond it nobody moves. The scores are those of the
    fused order, place by place, and nobody is lost."""
    fusion = fuse(lists, FusionConfig())
    top = min(top, len(fusion))
    values = {index: value for index, value in values.items() if index < top}
    keys = fusion.keys()
    again = fusion.reranked(top, values)
    judged = sorted(values, key=lambda index: (-values[index], index))
    rest = [index for index in range(top) if index not in values]
    assert again.keys() == [keys[index] for index in (*judged, *rest, *range(top, len(keys)))]
    assert again.scores() == fusion.scores() == [hit["score"] for hit in again.hits()]
    told = [hit.get("scores", {}).get("rerank") for hit in again.hits()]
    assert told == [values[index] for index in judged] + [None] * (len(keys) - len(judged))
    assert fusion.reranking is None


@settings(deadline=None)
@given(federations(), VALUES)
def test_an_order_that_was_kept_is_served_again(lists: list[RankedList], values: dict[int, float]) -> None:
    """From keys and plain data the same hits come back, also of a part."""
    fusion = fuse(lists, FusionConfig())
    values = {index: value for index, value in values.items() if index < len(fusion)}
    again = fusion.reranked(len(fusion), values).pick(range(1, len(fusion)))
    assert again.reranking is not None
    plain: Any = json.loads(json.dumps([dict(said) for said in again.reranking]))
    assert fuse(lists, FusionConfig()).restored(again.keys(), Reranked(*plain)).hits() == again.hits()


def test_other_scores_of_a_hit_stay() -> None:
    """`scores.rerank` joins what the engine says of its stages, and what it sent stays as it is."""
    sent = {"id": 1, "score": 1, "scores": {"bm25": 3}}
    fusion = fuse([RankedList("a", [sent]), RankedList("b", [{"id": 2, "score": 1, "scores": "odd"}])], FusionConfig())
    hits = {hit["id"]: hit for hit in fusion.reranked(2, {0: 0.1, 1: 0.2}).hits()}
    assert hits[1]["scores"] == {"bm25": 3, "rerank": 0.1}
    assert hits[2]["scores"] == {"rerank": 0.2}
    assert sent["scores"] == {"bm25": 3}


def test_origins() -> None:
    """Who gave a document, each under its own id; by the id that callers see."""
    lists = [
        RankedList("a", [{"id": 1, "score": 1, "text": "long"}, {"id": 2, "score": 1}], namespace="n"),
        RankedList("b", [{"id": "n:1", "score": 1}]),
    ]
    fusion = fuse(lists, FusionConfig())
    assert fusion.origins(["n:1"]) == {"n:1": {"a": 1, "b": "n:1"}}
    assert fusion.origins(fusion.keys()) == {"n:1": {"a": 1, "b": "n:1"}, "n:2": {"a": 2}}
