"""Communities and summaries of several graphs as one answer (RCP §7.9, ops `global` and `communities`). Pure.

Communities are an engine's own reading of its own graph, so two are never merged: where ids meet they are kept apart by
their engines' names. It refuses to know who was asked.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from app.federation.engine_response import EngineResponse, in_order, marked, measure


class _Found(NamedTuple):
    response: EngineResponse
    place: int
    community: Mapping[str, Any]


def join_communities(responses: Sequence[EngineResponse], most: int | None = None) -> list[dict[str, Any]]:
    """All communities by `score`, highest first, those without one last; at most `most`.

    Ids that two engines use become `<engine>:<id>`; an engine with an `idNamespace` has its ids prefixed anyway. Equal
    scores: in the order in which engines speak, each engine's own order kept.
    """
    found = [one for response in in_order(responses) for one in _own(response)]
    ids = _names(found)
    order = sorted(range(len(found)), key=lambda index: -measure(found[index].community.get("score")))
    joined = [{**marked(found[index].community, [found[index].response.engine]), "id": ids[index]} for index in order]
    return joined if most is None else joined[:most]


def join_summaries(responses: Sequence[EngineResponse]) -> str | None:
    """One summary is answered as it is; several become paragraphs, each behind its engine's name."""
    said = [
        (response.engine, response.result["summary"])
        for response in in_order(responses)
        if _says(response.result.get("summary"))
    ]
    if len(said) <= 1:
        return said[0][1] if said else None
    return "\n\n".join(f"{engine}: {summary}" for engine, summary in said)


def _own(response: EngineResponse) -> list[_Found]:
    """The engine's communities, each id once."""
    first: dict[str, _Found] = {}
    for place, community in enumerate(response.listed("communities")):
        first.setdefault(f"{community['id']}", _Found(response, place, community))
    return list(first.values())


def _names(found: Sequence[_Found]) -> list[str | int | float]:
    """An id for each that no other has. An engine's name holds no colon, so that prefixed ids meet nobody else's."""
    ids = [one.response.public(one.community["id"]) for one in found]
    prefixed: set[int] = set()
    while True:
        seen = Counter(f"{name}" for name in ids)
        clashing = [index for index, name in enumerate(ids) if seen[f"{name}"] > 1 and index not in prefixed]
        if not clashing:
            return ids
        for index in clashing:
            ids[index] = f"{found[index].response.engine}:{ids[index]}"
        prefixed.update(clashing)


def _says(summary: Any) -> bool:
    return type(summary) is str and bool(summary.strip())
