"""Merges what several engines answered to `graph` and `memory/recall`: everything that is not a hit. Pure.

Engines are ordered by priority (highest first), then by id, so that the result depends neither on arrival order nor on
the order of the registry."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from json import JSONEncoder
from math import inf, isfinite
from typing import Any, NamedTuple

from app.fusion.identity import public_id


class EngineResponse(NamedTuple):
    """The result of one engine, validated: lists hold only well-formed members."""

    engine: str
    result: Mapping[str, Any]
    priority: int = 0
    namespace: str | None = None
    """Prefix of its ids, as in fusion."""

    def listed(self, key: str) -> Sequence[Any]:
        """The list under `key`, empty if there is none."""
        found = self.result.get(key)
        return found if type(found) is list else ()

    def public(self, own: str | int | float) -> str | int | float:
        """The public id for this engine's id `own`."""
        return public_id({"id": own}, self.namespace)


def by_priority(responses: Iterable[EngineResponse]) -> list[EngineResponse]:
    """By priority (highest first), then by id."""
    return sorted(responses, key=lambda response: (-response.priority, response.engine))


def any_states(responses: Iterable[EngineResponse], key: str) -> bool:
    """Whether any engine returned `key`."""
    return any(key in response.result for response in responses)


def other_fields(responses: Iterable[EngineResponse], joined: Iterable[str]) -> dict[str, Any]:
    """Fields that the gateway cannot merge: unchanged, from the first engine that has them."""
    known = frozenset(joined)
    found: dict[str, Any] = {}
    for response in by_priority(responses):
        for key, value in response.result.items():
            if key not in known:
                found.setdefault(key, value)
    return found


def interleave(lists: Sequence[Sequence[Any]]) -> list[Any]:
    """Every list's first member, then every list's second, and so on."""
    longest = max(map(len, lists), default=0)
    return [members[place] for place in range(longest) for members in lists if place < len(members)]


def with_origin(member: Mapping[str, Any], engines: Sequence[str]) -> dict[str, Any]:
    """A copy of `member` with `meta.engine` (whose it is) and `meta.engines` (all that have it), as for hits."""
    own = member.get("meta")
    meta = own if type(own) is dict else {}
    return {**member, "meta": {**meta, "engine": engines[0], "engines": [{"id": engine} for engine in engines]}}


def sort_value(value: Any) -> float:
    """A score or a weight to sort by; anything but a finite number sorts last."""
    return float(value) if isinstance(value, int | float) and type(value) is not bool and isfinite(value) else -inf


# --- Follow-ups and clues ---

MOST_COMPARED = 1000
"""Characters of a question that are compared ignoring case and spaces."""


def join_followups(responses: Sequence[EngineResponse]) -> list[str]:
    """Each question once, as first worded: every engine's first, then every engine's second, and so on."""
    first: dict[str, str] = {}
    for question in interleave([response.listed("followups") for response in by_priority(responses)]):
        # The wording of the first engine is kept.
        first.setdefault(_plain(question), question)
    return list(first.values())


def join_clues(responses: Sequence[EngineResponse], most: int | None = None) -> list[dict[str, Any]]:
    """Each clue once, by weight (highest first), those without one last; at most `most` (RCP §7.17).

    Clues are equal if their `query` and `seedIds` are; the larger weight is kept. Seeds carry the namespace of their
    engine, as hit ids do. Equal weights: interleaved, by priority of the engines.
    """
    copies: dict[tuple[str, ...], list[tuple[str, dict[str, Any]]]] = {}
    lists = [[(response, clue) for clue in response.listed("clues")] for response in by_priority(responses)]
    for response, clue in interleave(lists):
        public = _public_clue(response, clue)
        copies.setdefault(_clue_key(public), []).append((response.engine, public))
    joined = sorted(map(_merged_clue, copies.values()), key=lambda clue: -_weight(clue))
    return joined if most is None else joined[:most]


def _public_clue(response: EngineResponse, clue: Mapping[str, Any]) -> dict[str, Any]:
    seeds = clue.get("seedIds")
    if type(seeds) is not list:
        return {key: value for key, value in clue.items() if key != "seedIds"}
    return {**clue, "seedIds": [response.public(seed) for seed in seeds if type(seed) in (str, int, float)]}


def _clue_key(clue: Mapping[str, Any]) -> tuple[str, ...]:
    query = clue.get("query")
    return (_plain(query) if type(query) is str else "", *sorted(f"{seed}" for seed in clue.get("seedIds", ())))


def _merged_clue(group: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    # Reversed, so that fields of the first engine win.
    for _, clue in reversed(group):
        joined.update(clue)
    heaviest = max(_weight(clue) for _, clue in group)
    if heaviest > -inf:
        joined["weight"] = next(clue["weight"] for _, clue in group if _weight(clue) == heaviest)
    return with_origin(joined, list({engine: None for engine, _ in group}))


def _weight(clue: Mapping[str, Any]) -> float:
    return sort_value(clue.get("weight"))


def _plain(text: str) -> str:
    """The text with differences removed that do not make another question: case and spaces.

    Beyond MOST_COMPARED characters the text is compared exactly.
    """
    return " ".join(text[:MOST_COMPARED].casefold().split()) + text[MOST_COMPARED:]


# --- Communities and summaries (RCP §7.9) ---


class _RankedCommunity(NamedTuple):
    response: EngineResponse
    place: int
    community: Mapping[str, Any]


def join_communities(responses: Sequence[EngineResponse], most: int | None = None) -> list[dict[str, Any]]:
    """All communities by `score` (highest first), those without one last; at most `most`.

    Communities of two engines are never merged, since each is derived from its own graph. Ids that two engines use
    become `<engine>:<id>`; an engine with an `idNamespace` has its ids prefixed anyway. Equal scores: by priority of
    the engines, in each engine's own order.
    """
    found = [one for response in by_priority(responses) for one in _distinct(response)]
    ids = _unique_ids(found)
    order = sorted(range(len(found)), key=lambda index: -sort_value(found[index].community.get("score")))
    joined = [
        {**with_origin(found[index].community, [found[index].response.engine]), "id": ids[index]} for index in order
    ]
    return joined if most is None else joined[:most]


def join_summaries(responses: Sequence[EngineResponse]) -> str | None:
    """A single summary is returned as it is; several become paragraphs, each after its engine's id."""
    summaries = [
        (response.engine, response.result["summary"])
        for response in by_priority(responses)
        if _is_text(response.result.get("summary"))
    ]
    if len(summaries) <= 1:
        return summaries[0][1] if summaries else None
    return "\n\n".join(f"{engine}: {summary}" for engine, summary in summaries)


def _distinct(response: EngineResponse) -> list[_RankedCommunity]:
    """The engine's communities, each id once."""
    first: dict[str, _RankedCommunity] = {}
    for place, community in enumerate(response.listed("communities")):
        first.setdefault(f"{community['id']}", _RankedCommunity(response, place, community))
    return list(first.values())


def _unique_ids(found: Sequence[_RankedCommunity]) -> list[str | int | float]:
    """A unique id for each. Engine ids hold no colon, so a prefixed id never equals another engine's."""
    ids = [one.response.public(one.community["id"]) for one in found]
    prefixed: set[int] = set()
    # A prefixed id can collide with another engine's own id, so repeat until all are unique.
    while True:
        # Compared as strings: callers need not distinguish 1 from "1".
        seen = Counter(f"{name}" for name in ids)
        clashing = [index for index, name in enumerate(ids) if seen[f"{name}"] > 1 and index not in prefixed]
        if not clashing:
            return ids
        for index in clashing:
            ids[index] = f"{found[index].response.engine}:{ids[index]}"
        prefixed.update(clashing)


def _is_text(summary: Any) -> bool:
    return type(summary) is str and bool(summary.strip())


# --- Nodes and edges (RCP §7.9) ---

_WEIGHED = frozenset({"weight", "meta"})
"""Fields in which copies of one edge may differ."""

_canonical = JSONEncoder(sort_keys=True).encode


def join_nodes(responses: Sequence[EngineResponse]) -> list[dict[str, Any]]:
    """Each node once, by priority of the engines; fields of the first copy win, the largest `score` is kept."""
    copies: dict[str, list[tuple[EngineResponse, Mapping[str, Any]]]] = {}
    for response in by_priority(responses):
        for node in response.listed("nodes"):
            copies.setdefault(f"{response.public(node['id'])}", []).append((response, node))
    return [_merged_node(group) for group in copies.values()]


def join_edges(responses: Sequence[EngineResponse]) -> list[dict[str, Any]]:
    """Each edge once, by priority of the engines, with the largest `weight`."""
    copies: dict[str, list[tuple[EngineResponse, dict[str, Any]]]] = {}
    for response in by_priority(responses):
        for edge in response.listed("edges"):
            public = {**edge, "src": response.public(edge["src"]), "dst": response.public(edge["dst"])}
            copies.setdefault(_edge_key(public), []).append((response, public))
    return [_merged(group, "weight") for group in copies.values()]


def _merged_node(group: Sequence[tuple[EngineResponse, Mapping[str, Any]]]) -> dict[str, Any]:
    response, kept = group[0]
    return {**_merged(group, "score"), "id": response.public(kept["id"])}


def _merged(group: Sequence[tuple[EngineResponse, Mapping[str, Any]]], sort_value: str) -> dict[str, Any]:
    """The copies as one: fields of the first engine win, the largest `measure` is kept."""
    joined: dict[str, Any] = {}
    for _, member in reversed(group):
        joined.update(member)
    values = [member[sort_value] for _, member in group if type(member.get(sort_value)) in (int, float)]
    if values:
        joined[sort_value] = max(values)
    return with_origin(joined, list({response.engine: None for response, _ in group}))


def _edge_key(edge: Mapping[str, Any]) -> str:
    # Everything but the weight is part of an edge's identity: two relations between the same nodes stay two.
    fields = {key: value for key, value in edge.items() if key not in _WEIGHED}
    fields["src"], fields["dst"] = f"{edge['src']}", f"{edge['dst']}"
    return _canonical(fields)
