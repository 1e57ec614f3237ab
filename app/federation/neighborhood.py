"""Nodes and edges of several graphs as one neighbourhood (RCP §7.9, op `neighbors`). Pure.

Two nodes are the same if callers see the same id. Two edges are the same if their ends and all fields but the weight
are equal. Separate from the method, since merging needs no engine.
"""

from collections.abc import Mapping, Sequence
from json import JSONEncoder
from typing import Any

from app.federation.engine_response import EngineResponse, in_order, marked

_WEIGHED = frozenset({"weight", "meta"})
"""What two copies of one edge may differ in."""

_canonical = JSONEncoder(sort_keys=True).encode


def join_nodes(responses: Sequence[EngineResponse]) -> list[dict[str, Any]]:
    """Each node once, in the order in which engines speak; the first copy's fields win, the largest `score` is kept."""
    copies: dict[str, list[tuple[EngineResponse, Mapping[str, Any]]]] = {}
    for response in in_order(responses):
        for node in response.listed("nodes"):
            copies.setdefault(f"{response.public(node['id'])}", []).append((response, node))
    return [_node(group) for group in copies.values()]


def join_edges(responses: Sequence[EngineResponse]) -> list[dict[str, Any]]:
    """Each edge once, in the order in which engines speak, with the largest `weight` anybody gives it."""
    copies: dict[str, list[tuple[EngineResponse, dict[str, Any]]]] = {}
    for response in in_order(responses):
        for edge in response.listed("edges"):
            public = {**edge, "src": response.public(edge["src"]), "dst": response.public(edge["dst"])}
            copies.setdefault(_edge_key(public), []).append((response, public))
    return [_joined(group, "weight") for group in copies.values()]


def _node(group: Sequence[tuple[EngineResponse, Mapping[str, Any]]]) -> dict[str, Any]:
    response, kept = group[0]
    return {**_joined(group, "score"), "id": response.public(kept["id"])}


def _joined(group: Sequence[tuple[EngineResponse, Mapping[str, Any]]], measure: str) -> dict[str, Any]:
    """The copies as one: the first engine's fields win, the largest `measure` is kept."""
    joined: dict[str, Any] = {}
    for _, member in reversed(group):
        joined.update(member)
    values = [member[measure] for _, member in group if type(member.get(measure)) in (int, float)]
    if values:
        joined[measure] = max(values)
    return marked(joined, list({response.engine: None for response, _ in group}))


def _edge_key(edge: Mapping[str, Any]) -> str:
    said = {key: value for key, value in edge.items() if key not in _WEIGHED}
    said["src"], said["dst"] = f"{edge['src']}", f"{edge['dst']}"
    return _canonical(said)
