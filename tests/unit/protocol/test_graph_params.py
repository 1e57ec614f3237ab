"""The params of `graph`. What is malformed is shown over the wire in tests/gateway/test_graph.py."""

import pytest

from app.protocol.errors import OptionUnsupported
from app.protocol.method_params import MAX_HOPS, OPS, read_graph


@pytest.mark.parametrize("op", OPS)
def test_every_operation(op: str) -> None:
    """What is adapted to each engine is read, the rest is handed on; nulls count as absent."""
    read = read_graph({"op": op, "seedIds": ["a"], "query": "q", "k": None, "x": 1, "cursor": "c", "_meta": {}})
    assert (read.op, read.k, read.seeds, read.hops, read.session_id) == (op, None, ["a"], None, None)
    assert read.raw == {"op": op, "query": "q", "x": 1}
    assert read.notes == ()


def test_hops_are_lowered() -> None:
    """With a note; within the bound they stay."""
    assert read_graph({"op": "local", "hops": MAX_HOPS}).notes == ()
    read = read_graph({"op": "local", "hops": MAX_HOPS + 1})
    assert (read.hops, len(read.notes)) == (MAX_HOPS, 1)


def test_an_operation_that_rcp_does_not_know() -> None:
    """Nobody can advertise it."""
    with pytest.raises(OptionUnsupported) as error:
        read_graph({"op": "Local"})
    assert error.value.data["option"] == "op"
