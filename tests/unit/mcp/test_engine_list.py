"""Engines as `list_engines` gives them."""

from typing import Any

from app.mcp.engine_list import MAX_FIELDS, lines, listed


def engine(**capabilities: Any) -> dict[str, Any]:
    """An entry of `catalog/list`."""
    return {"id": "docs", "server": {"name": "Docs", "version": "1"}, "capabilities": capabilities}


def test_fields_without_types_are_keywords() -> None:
    """A list of names is told as a map, like one with types; more than a bound are left out."""
    (entry,) = listed([engine(filter={"fields": ["a", "b"]})])
    assert entry["filterFields"] == {"a": "keyword", "b": "keyword"}
    (entry,) = listed([engine(filter={"fields": {str(number): "int" for number in range(999)}})])
    assert len(entry["filterFields"]) == MAX_FIELDS


def test_capabilities_of_another_form_are_passed_over() -> None:
    """What an engine states in no known form is not told, and harms nobody."""
    (entry,) = listed([engine(retrieve=True, filter="yes", rerank={})])
    assert entry == {"id": "docs", "name": "Docs", "capabilities": ["filter", "rerank", "retrieve"]}
    assert lines([entry]) == "1 engine.\n\ndocs\n> name: Docs\n> can: filter, rerank, retrieve"


def test_nobody_is_said() -> None:
    """Without engines the text says so."""
    assert lines(listed([])) == "There is no engine that you may use now."
