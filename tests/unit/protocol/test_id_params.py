"""Ids, sessions and levels among params."""

from typing import Any

import pytest

from app.protocol.errors import InvalidParams
from app.protocol.param_fields import MAX_IDS, check_id, is_id, read_ids, read_level, read_session


def refused(read: Any, *arguments: Any) -> str:
    with pytest.raises(InvalidParams) as error:
        read(*arguments)
    field: str = error.value.data["field"]
    return field


@pytest.mark.parametrize("value", ["a", " ", 0, -7, 1.5, 1.0, -0.0, 100.0, 2**53 + 1, 2**63, -(2**63)])
def test_what_names_something(value: Any) -> None:
    """Strings that are not empty, integers, and floats that hold what was written."""
    assert is_id(value)
    check_id(value, "x")


@pytest.mark.parametrize(
    "value", ["", None, True, [], {}, float(2**64), float(2**100), 0.1 + 0.2, float("nan"), float("inf")]
)
def test_what_names_nothing(value: Any) -> None:
    """Anything else, refused by the name of its field."""
    assert not is_id(value)
    assert refused(check_id, value, "x[3]") == "x[3]"


def test_lists_of_ids() -> None:
    """Absent, or at least one and not too many."""
    assert read_ids({}, "seedIds") is read_ids({"seedIds": None}, "seedIds") is None
    assert read_ids({"seedIds": ["a", 1]}, "seedIds") == ["a", 1]
    for wrong in ([], "a", ["a"] * (MAX_IDS + 1)):
        assert refused(read_ids, {"seedIds": wrong}, "seedIds") == "seedIds"
    assert refused(read_ids, {"seedIds": ["a", None]}, "seedIds") == "seedIds[1]"


def test_sessions_and_levels() -> None:
    """A short string; an integer from 0."""
    assert read_session({"sessionId": "s"}) == "s"
    assert read_session({}) is read_level({}) is None
    assert read_level({"level": 0}) == 0
    for wrong in ("", "x" * 257, 7, True):
        assert refused(read_session, {"sessionId": wrong}) == "sessionId"
    for level in (-1, 1.0, True, "1"):
        assert refused(read_level, {"level": level}) == "level"
