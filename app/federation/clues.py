"""What to ask next, out of several engines' mouths as one: `clues` of a memory, `followups` of a graph. Pure.

Decides when two of them say the same. It refuses to know who was asked.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from app.federation.engine_response import EngineResponse, by_turns, in_order, marked, measure

MOST_COMPARED = 1000
"""Characters of a question."""


def join_followups(responses: Sequence[EngineResponse]) -> list[str]:
    """Each question once, as it was first put: every engine's first, then every engine's second, and so on."""
    first: dict[str, str] = {}
    for question in by_turns([response.listed("followups") for response in in_order(responses)]):
        first.setdefault(_plain(question), question)
    return list(first.values())


def join_clues(responses: Sequence[EngineResponse], most: int | None = None) -> list[dict[str, Any]]:
    """Each clue once, the heaviest first, those without a `weight` last; at most `most` (RCP §7.17).

    Two engines' clues are one if their `query` and `seedIds` are; the larger weight is kept. Seeds carry the namespace
    of their engine, as hit ids do. Equal weights: by turns, in the order in which engines speak.
    """
    copies: dict[tuple[str, ...], list[tuple[str, dict[str, Any]]]] = {}
    lists = [[(response, clue) for clue in response.listed("clues")] for response in in_order(responses)]
    for response, clue in by_turns(lists):
        public = _public(response, clue)
        copies.setdefault(_key(public), []).append((response.engine, public))
    joined = sorted(map(_clue, copies.values()), key=lambda clue: -_weight(clue))
    return joined if most is None else joined[:most]


def _public(response: EngineResponse, clue: Mapping[str, Any]) -> dict[str, Any]:
    seeds = clue.get("seedIds")
    if type(seeds) is not list:
        return {key: value for key, value in clue.items() if key != "seedIds"}
    return {**clue, "seedIds": [response.public(seed) for seed in seeds if type(seed) in (str, int, float)]}


def _key(clue: Mapping[str, Any]) -> tuple[str, ...]:
    query = clue.get("query")
    return (_plain(query) if type(query) is str else "", *sorted(f"{seed}" for seed in clue.get("seedIds", ())))


def _clue(group: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for _, clue in reversed(group):
        joined.update(clue)
    heaviest = max(_weight(clue) for _, clue in group)
    if heaviest > -inf:
        joined["weight"] = next(clue["weight"] for _, clue in group if _weight(clue) == heaviest)
    return marked(joined, list({engine: None for engine, _ in group}))


def _weight(clue: Mapping[str, Any]) -> float:
    return measure(clue.get("weight"))


def _plain(text: str) -> str:
    """The text without what does not make another question of it: case, and how much space there is.

    Of a very long one only the beginning is read so: what follows must be the same to the letter.
    """
    return " ".join(text[:MOST_COMPARED].casefold().split()) + text[MOST_COMPARED:]
