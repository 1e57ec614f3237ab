"""Params and results of `rerank` (RCP §7.6), in the two spellings that are in use.

Callers send `passages` or `documents`; results get `scores` and `order` as well as `results`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from app.protocol.content import read_contents, read_query
from app.protocol.errors import ProtocolViolation
from app.protocol.param_fields import forwardable, read_count, read_text, refuse

_NUMBERS = frozenset({int, float})


class Reranking(NamedTuple):
    """One well-formed call."""

    passages: Sequence[Any]
    name: str
    """What the caller calls them."""
    method: str | None
    model: str | None
    top_n: int | None
    sent: dict[str, Any]
    """What an engine is sent, the passages under both names."""
    modalities: Mapping[str, frozenset[str]]
    """Param -> its modalities."""


def read_reranking(params: Mapping[str, Any]) -> Reranking:
    """Check the params. Raises InvalidParams (-32602)."""
    query_modalities = read_query(params.get("query"))
    passages: Any = params.get("passages")
    documents: Any = params.get("documents")
    if passages is None and documents is None:
        refuse("passages", "'passages' is required: an array of strings and content blocks")
    if passages is not None and documents is not None and passages != documents:
        refuse("documents", "'documents' is another name of 'passages'; give one of them, or the same twice")
    name = "documents" if passages is None else "passages"
    given = documents if passages is None else passages
    passage_modalities = read_contents(given, name)
    rest = forwardable(params, "passages", "documents")
    return Reranking(
        given,
        name,
        read_text(params, "method"),
        read_text(params, "model"),
        read_count(params, "topN"),
        {**rest, "passages": given, "documents": given},
        {"query": query_modalities, name: passage_modalities},
    )


def completed(result: dict[str, Any], count: int, top_n: int | None) -> dict[str, Any]:
    """`result` as it came, and `scores`, `order` and `results` where it lacks them. Raises ProtocolViolation.

    `scores[i]` belongs to passage `i` of `count`. An engine that judged only some of them gives the others no score;
    they get the lowest that it gave, so that none of them comes before one that was judged.
    """
    scores, order, results = result.get("scores"), result.get("order"), result.get("results")
    if scores is None:
        judged = _judged(results, count)
        scores = _scores(judged, count)
        order = [index for index, _ in judged] if order is None else order
    elif type(scores) is not list or len(scores) != count or not _NUMBERS.issuperset(map(type, scores)):
        raise ProtocolViolation(f"the result has no 'scores' with a number for each of the {count} passages")
    if order is None:
        order = sorted(range(count), key=lambda index: (-scores[index], index))[:top_n]
    elif not _is_order(order, count):
        raise ProtocolViolation("'order' is no list of different indices of passages")
    if results is None:
        results = [{"index": index, "score": scores[index]} for index in order]
    return {**result, "scores": scores, "order": order, "results": results}


def _judged(results: Any, count: int) -> list[tuple[int, float]]:
    """(index, score) of `results`, best first as they came. Raises ProtocolViolation."""
    if type(results) is not list:
        raise ProtocolViolation("the result has neither 'scores' nor 'results'")
    judged: list[tuple[Any, float]] = []
    for entry in results:
        index, score = (entry.get("index"), entry.get("score")) if type(entry) is dict else (None, None)
        if type(score) is not int and type(score) is not float:
            raise ProtocolViolation("'results' has an entry without a numeric 'score'")
        judged.append((index, score))
    if not _is_order([index for index, _ in judged], count):
        raise ProtocolViolation("the indices in 'results' are not those of different passages")
    return sorted(judged, key=lambda pair: -pair[1])


def _scores(judged: Sequence[tuple[int, float]], count: int) -> list[float]:
    lowest = min((score for _, score in judged), default=0.0)
    given = dict(judged)
    return [given.get(index, lowest) for index in range(count)]


def _is_order(order: Any, count: int) -> bool:
    if type(order) is not list or not all(type(index) is int and 0 <= index < count for index in order):
        return False
    return len(set(order)) == len(order)
