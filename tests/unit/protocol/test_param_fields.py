"""Single params: what is allowed, what is refused by name, and what is handed on."""

from collections.abc import Callable
from typing import Any

import pytest

from app.protocol.errors import InvalidParams
from app.protocol.param_fields import forwardable, read_choice, read_count, read_flag, read_text, required_text


def choice(params: Any, name: str) -> Any:
    """A choice of two."""
    return read_choice(params, name, ("a", "b"))


@pytest.mark.parametrize(
    ("read", "value", "result"),
    [
        (read_text, "x", "x"),
        (read_text, None, None),
        (required_text, " x", " x"),
        (read_count, 1, 1),
        (read_count, 2**53, 2**53),
        (read_count, None, None),
        (read_flag, True, True),
        (read_flag, False, False),
        (read_flag, None, False),
        (choice, "b", "b"),
        (choice, None, None),
    ],
)
def test_what_is_allowed(read: Callable[..., Any], value: Any, result: Any) -> None:
    """null is as good as absent."""
    assert read({"p": value}, "p") == result
    if value is None:
        assert read({}, "p") == result


@pytest.mark.parametrize(
    ("read", "value", "says"),
    [
        (read_text, "", 'a non-empty string, not ""'),
        (read_text, " \n", "a non-empty string"),
        (read_text, 7, "a non-empty string, not 7"),
        (read_text, ["x"], "not an array"),
        (required_text, None, "a non-empty string, not missing"),
        (read_count, 0, "at least 1, not 0"),
        (read_count, 2**53 + 1, "at least 1"),
        (read_count, 1.0, "at least 1, not 1.0"),
        (read_count, True, "not true"),
        (read_flag, 1, "true or false, not 1"),
        (read_flag, "true", "true or false"),
        (choice, "c", 'one of a, b, not "c"'),
        (choice, ["a"], "one of a, b"),
    ],
)
def test_what_is_refused(read: Callable[..., Any], value: Any, says: str) -> None:
    """-32602 with the field, what it must be, and what it was."""
    with pytest.raises(InvalidParams) as error:
        read({"p": value}, "p")
    assert error.value.data["field"] == "p"
    assert says in error.value.message


def test_what_is_handed_on() -> None:
    """Neither what is ours nor nulls nor what was read; all else as it is, nulls further down too."""
    params = {"a": 1, "b": None, "_meta": {}, "x-gateway": {}, "x-other": 2, "read": 3, "deep": {"n": None}}
    assert forwardable(params, "read") == {"a": 1, "x-other": 2, "deep": {"n": None}}
