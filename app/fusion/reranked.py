"""What a reranker made of a fused order: the scores that places keep, and the values it gave.

Decides what a reranked hit says: `score` is that of its place, so that scores still fall and stay on one scale; the
reranker's own value is `scores.rerank`. It refuses to know who reranked, and by what.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Reranked(NamedTuple):
    """By identity key."""

    scores: Mapping[str, float]
    """The `score` of every document that was moved, which is that of its new place."""
    values: Mapping[str, float]
    """What the reranker said."""


def stamped(keys: Sequence[str], hits: list[dict[str, Any]], reranking: Reranked) -> list[dict[str, Any]]:
    """`hits`, which are fresh objects, with what became of them."""
    for key, hit in zip(keys, hits, strict=True):
        score, value = reranking.scores.get(key), reranking.values.get(key)
        if score is not None:
            hit["score"] = score
        if value is not None:
            own = hit.get("scores")
            hit["scores"] = {**(own if type(own) is dict else {}), "rerank": value}
    return hits
