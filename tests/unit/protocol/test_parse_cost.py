"""How much a text weighs, by its bytes: no less than it costs to parse, and prose is light however it is written."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.parse_cost import (
    BOX,
    MAX_STRINGS,
    MEMBER,
    NAME,
    is_heavy,
    seems_light,
    weight,
    weight_outside_strings,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(['"', "\\", '\\"', ",[{", '":', "a\\\\"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


def counted(value: object) -> int:
    """The weight of a value by walking over it."""
    if isinstance(value, dict):
        return BOX + NAME * len(value) + MEMBER * max(0, len(value) - 1) + sum(map(counted, value.values()))
    if isinstance(value, list):
        return BOX + MEMBER * max(0, len(value) - 1) + sum(map(counted, value))
    return 0


COLONS = st.sampled_from([":", ": ", " :", "\n:\t"])
"""A name may stand apart from its colon."""


@given(VALUES, COLONS, st.booleans())
def test_the_exact_weight_is_that_of_the_value(value: object, colon: str, plain: bool) -> None:
    """Whatever stands in strings, escaped or not, weighs nothing."""
    text = json.dumps(value, separators=(",", colon), ensure_ascii=plain).encode()
    assert weight_outside_strings(text) == counted(value)


@given(VALUES, COLONS)
def test_the_quick_weight_is_never_less(value: object, colon: str) -> None:
    """The weight without a look at strings is at least the exact one."""
    assert weight(json.dumps(value, separators=(",", colon)).encode()) >= counted(value)


def test_prose_is_light_and_boxes_are_heavy() -> None:
    """A text full of commas and braces is light, as many values are not, and a short one is not even weighed."""
    prose = json.dumps({"text": 'say "{, [, ]" and: ' * 10_000}).encode()
    assert weight(prose) > 10_000
    assert not is_heavy(prose, 10_000)
    assert is_heavy(b"[" + b"[]," * 10_000 + b"[]]", 10_000)
    assert not is_heavy(b"[],[],[]", 10)


@pytest.mark.parametrize("end", [b"", b'"', b"\\"])
def test_many_strings_are_not_looked_into(end: bytes) -> None:
    """More strings than are told apart in good time are heavy; strings that never end are no trouble."""
    assert is_heavy(b'["",' * (MAX_STRINGS + 1) + end, 1000)
    assert is_heavy(b"[," * 1000 + b'"' + b"\\" * 10_001 + end, 1000)
    assert weight_outside_strings(b'"\\"\\"' * 1000 + end) is not None


@pytest.mark.parametrize("place", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("size", [700_000, 2_000_000, 16_000_000])
def test_what_is_heavy_never_seems_light(size: int, place: float) -> None:
    """Wherever in a long text of prose the many small parts are, a sample shows that it must be weighed."""
    heavy = b"[" + b"{}," * 220_000 + b"{}]"
    prose = b"x" * (size - len(heavy))
    cut = int(len(prose) * place)
    text = b'["' + prose[:cut] + b'",' + heavy + b',"' + prose[cut:] + b'"]'
    assert is_heavy(text, 640_000)
    assert not any(seems_light(text, 640_000, b"%d" % salt) for salt in range(50))


def test_a_long_text_of_prose_seems_light() -> None:
    """Ordinary prose, and vectors of numbers, are not weighed in full."""
    prose = json.dumps([{"id": str(n), "text": "Some words, and then a few more. " * 200} for n in range(300)]).encode()
    vectors = json.dumps([[0.123456789012345 + n] * 768 for n in range(120)]).encode()
    for text in (prose, vectors):
        assert len(text) > 1_500_000
        assert seems_light(text, 640_000)
