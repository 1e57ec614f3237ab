"""How much of a request's time one engine gets: tables and properties of pure arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.resilience.deadline import call_seconds

Seconds = st.floats(min_value=1e-6, max_value=1e4)


@pytest.mark.parametrize(
    ("remaining", "own_timeout", "expected"),
    [
        pytest.param(10.0, 2.0, 2.0, id="own timeout below the deadline"),
        pytest.param(10.0, 10.0, 9.9, id="own timeout equal to the deadline"),
        pytest.param(10.0, 60.0, 9.9, id="own timeout above the deadline"),
        pytest.param(0.5, 2.0, 0.4, id="reserve as large as its share"),
        pytest.param(0.2, 2.0, 0.16, id="reserve larger than its share"),
        pytest.param(0.01, 2.0, 0.008, id="very little left"),
    ],
)
def test_own_timeout_never_reaches_into_the_reserve(remaining: float, own_timeout: float, expected: float) -> None:
    """Whatever an engine's own timeout is, time to fuse and write remains (B28)."""
    assert call_seconds(remaining, own_timeout, 0.1) == pytest.approx(expected)


@given(Seconds, Seconds, st.floats(min_value=0, max_value=10))
def test_less_than_remains(remaining: float, own_timeout: float, reserve: float) -> None:
    """An engine gets something, never more than its own timeout, and strictly less than remains."""
    seconds = call_seconds(remaining, own_timeout, reserve)
    assert 0 < seconds <= own_timeout
    assert seconds < remaining


@pytest.mark.parametrize("reserve", [0.0, 1e-12])
def test_strictly_less_even_without_a_reserve(reserve: float) -> None:
    """With no reserve to speak of the engine still gets strictly less than what remains (RCP §16)."""
    assert call_seconds(0.5, 2.0, reserve) < 0.5


@pytest.mark.parametrize("remaining", [0.0, -0.001, -5.0])
def test_nothing_left(remaining: float) -> None:
    """With no time left the answer is 0 or less: do not ask."""
    assert call_seconds(remaining, 2.0, 0.1) <= 0
