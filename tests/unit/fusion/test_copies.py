"""Which copy lends its body."""

from typing import Any

from app.fusion.copies import richest
from app.fusion.ranked_lists import RankedList


def _kept(*copies: tuple[str, int, int, dict[str, Any]]) -> str:
    """The engine of the richest of (engine, rank, priority, fields)."""
    made = [
        (RankedList(engine, [], priority=priority), rank, {"id": 1, **fields})
        for engine, rank, priority, fields in copies
    ]
    return richest(made)[0].engine


def test_the_longer_text_wins() -> None:
    """Before content, rank and priority."""
    assert _kept(("a", 1, 9, {"text": "short", "content": ["x"]}), ("b", 9, 0, {"text": "longer"})) == "b"


def test_then_more_content() -> None:
    """Of equal texts the one with more blocks."""
    assert _kept(("a", 1, 9, {"text": "t"}), ("b", 9, 0, {"text": "u", "content": ["x"]})) == "b"
    assert _kept(("a", 1, 9, {"content": ["x", "y"]}), ("b", 1, 9, {"content": ["x"]})) == "a"


def test_then_the_better_rank() -> None:
    """Of equal bodies the one its engine ranked higher."""
    assert _kept(("a", 2, 9, {"text": "t"}), ("b", 1, 0, {"text": "t"})) == "b"


def test_then_the_higher_priority() -> None:
    """Of equal ranks the engine that the operator prefers."""
    assert _kept(("a", 1, 0, {}), ("b", 1, 1, {})) == "b"


def test_then_the_smaller_engine_id() -> None:
    """Last of all the id, so that nothing depends on arrival."""
    assert _kept(("a", 1, 0, {}), ("b", 1, 0, {}), ("c", 1, 0, {})) == "a"


def test_a_body_of_another_type_is_no_body() -> None:
    """A text that is no string and a content that is no array count nothing."""
    assert _kept(("a", 1, 0, {"text": ["long"] * 9, "content": "long"}), ("b", 2, 0, {"text": "t"})) == "b"
    assert _kept(("a", 2, 0, {"content": "abc"}), ("b", 1, 0, {"content": None})) == "b"
