"""A scale places values as a search over its bounds does, whatever came before."""

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from app.telemetry.buckets import Buckets

BOUNDS = (0.001, 0.5, 1.0, 2.5)


@given(st.lists(st.sampled_from([0.0, 0.001, 0.0011, 0.5, 0.7, 1.0, 2.5, 2.6, 900.0, float("inf"), -1.0])))
def test_every_value_is_where_it_belongs(values: list[float]) -> None:
    """At the bounds, between and beyond them, after any other value."""
    scale = Buckets(BOUNDS)
    assert [scale.place(value) for value in values] == [bisect_left(BOUNDS, value) for value in values]


def test_a_scale_can_be_looked_at() -> None:
    """In an incident: how fine it is, and what was measured last."""
    scale = Buckets(BOUNDS)
    scale.place(0.7)
    assert repr(scale) == "<Scale of 4 bounds, last in bucket 2>"
