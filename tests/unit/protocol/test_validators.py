"""What counts of values that have another shape than RCP gives them."""

from typing import Any

import pytest

from app.protocol.validators import (
    MAX_MEMBERS,
    anything,
    either,
    flag,
    mapping,
    number,
    numbers,
    one_of,
    record,
    several,
    share,
    text,
    whole,
)

PERSON = record({"name": text, "age": whole(0)}, needed=("name",))


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        (text, "a"),
        (flag, False),
        (number, 1.5),
        (share, 1),
        (anything, [None]),
        (whole(), -3),
        (one_of("a", "b"), "b"),
        (several(text), ["a", "b"]),
        (numbers, [1, 2.5]),
        (mapping(number), {"a": 1}),
        (PERSON, {"name": "x", "age": 3, "other": None}),
        (either(flag, text), "a"),
    ],
)
def test_what_is_well_formed_stays_the_same_object(shape: Any, value: Any) -> None:
    """Nothing is copied where nothing is wrong; unknown fields stay, also null ones."""
    assert shape(value) is value


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        (text, 1),
        (flag, 1),
        (number, True),
        (number, "1"),
        (share, 1.01),
        (whole(), True),
        (whole(1), 0),
        (whole(), 2**53 + 2),
        (whole(), 0.5),
        (one_of("a"), ["a"]),
        (several(text), "a"),
        (numbers, [1, "2"]),
        (mapping(number), []),
        (PERSON, {"age": 3}),
        (PERSON, {"name": 3}),
        (PERSON, "x"),
        (either(flag, text), 3),
    ],
)
def test_what_has_another_shape_does_not_count(shape: Any, value: Any) -> None:
    """None stands for it: null counts as absent in RCP."""
    assert shape(value) is None


def test_malformed_parts_are_left_out() -> None:
    """Of arrays and objects the rest counts; what was handed in is not changed."""
    sent = {"name": "x", "age": "old", "other": [1]}
    assert PERSON(sent) == {"name": "x", "other": [1]}
    assert sent == {"name": "x", "age": "old", "other": [1]}
    assert several(text)(["a", 1, None, "b"]) == ["a", "b"]
    assert mapping(number)({"a": 1, "b": "2", "c": None}) == {"a": 1}
    assert several(text)(["a"] * (MAX_MEMBERS + 1)) == ["a"] * MAX_MEMBERS
    assert len(mapping(number)({str(name): 1 for name in range(MAX_MEMBERS + 1)})) == MAX_MEMBERS
    assert whole()(2.0) == 2
    assert type(whole()(2.0)) is int
