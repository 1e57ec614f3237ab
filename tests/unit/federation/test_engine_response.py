"""The order in which engines speak, and what is made of what nobody knows how to join."""

import pytest

from app.federation.response_merge import EngineResponse, by_turns, given, in_order, left_over, marked, measure


def test_engines_speak_by_priority_then_by_id() -> None:
    """Neither the order of arrival nor of the registry shows."""
    responses = [EngineResponse("b", {}), EngineResponse("c", {}, priority=1), EngineResponse("a", {})]
    assert [response.engine for response in in_order(responses)] == ["c", "a", "b"]


def test_what_nobody_knows_is_the_first_engines() -> None:
    """Fields that are joined elsewhere are left out."""
    responses = [EngineResponse("b", {"x": 1, "y": 2, "hits": []}), EngineResponse("a", {"x": 3})]
    assert left_over(responses, ["hits"]) == {"x": 3, "y": 2}
    assert given(responses, "y")
    assert not given(responses, "z")


def test_turns() -> None:
    """Each one's first, then each one's second."""
    assert by_turns([[1, 4], [], [2, 5, 6], [3]]) == [1, 2, 3, 4, 5, 6]
    assert by_turns([]) == []


def test_public_ids_carry_the_namespace() -> None:
    """As hit ids do."""
    assert EngineResponse("a", {}, namespace="n").public(7) == "n:7"
    assert EngineResponse("a", {}).public(7) == 7


def test_lists_that_are_none() -> None:
    """What is no list is an empty one."""
    assert EngineResponse("a", {"x": "y"}).listed("x") == EngineResponse("a", {}).listed("x") == ()


def test_marks_leave_the_member_as_it_is() -> None:
    """`meta` is a fresh object, whatever stood there."""
    member = {"id": 1, "meta": {"k": 1}}
    assert marked(member, ["a", "b"])["meta"] == {"k": 1, "engine": "a", "engines": [{"id": "a"}, {"id": "b"}]}
    assert member == {"id": 1, "meta": {"k": 1}}
    assert marked({"meta": "odd"}, ["a"])["meta"] == {"engine": "a", "engines": [{"id": "a"}]}


@pytest.mark.parametrize(("value", "expected"), [(2, 2.0), (-0.5, -0.5), (None, None), ("1", None), (True, None)])
def test_measures(value: object, expected: float | None) -> None:
    """A number counts as it is; anything else sorts last."""
    assert measure(value) == (float("-inf") if expected is None else expected)
    assert measure(float("nan")) == float("-inf")
