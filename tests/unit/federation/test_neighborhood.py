"""Nodes and edges of several graphs: which are one, and whose fields win."""

from app.federation.response_merge import EngineResponse, join_edges, join_nodes


def test_the_higher_priority_has_its_way() -> None:
    """What it does not say is filled in from the others."""
    low = EngineResponse("a", {"nodes": [{"id": 1, "label": "low", "kind": "k"}]})
    high = EngineResponse("b", {"nodes": [{"id": "1", "label": "high"}]}, priority=1)
    (node,) = join_nodes([low, high])
    assert node == {
        "id": "1",
        "label": "high",
        "kind": "k",
        "meta": {"engine": "b", "engines": [{"id": "b"}, {"id": "a"}]},
    }


def test_edges_that_say_different_things_are_different() -> None:
    """Ends alone do not make two edges one; weights do not make them two."""
    response = EngineResponse(
        "a", {"edges": [{"src": 1, "dst": 2, "type": "x"}, {"src": "1", "dst": "2", "type": "y", "weight": 1}]}
    )
    other = EngineResponse("b", {"edges": [{"src": 1, "dst": 2, "type": "y", "weight": 2, "meta": {"m": 1}}]})
    edges = join_edges([response, other])
    assert [(edge["type"], edge.get("weight")) for edge in edges] == [("x", None), ("y", 2)]
    assert edges[1]["meta"] == {"m": 1, "engine": "a", "engines": [{"id": "a"}, {"id": "b"}]}


def test_a_weight_that_is_no_number() -> None:
    """It stays where nobody gives one that is."""
    (edge,) = join_edges([EngineResponse("a", {"edges": [{"src": 1, "dst": 2, "weight": "heavy"}]})])
    assert edge["weight"] == "heavy"
