"""What confidences are worth."""

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.fusion.confidence import SILENCE, ConfidenceCurve, confidence_curve, consensus, project, valid_confidence
from tests.support.fusion_reference import coherence, projected

confidences = st.lists(st.integers(0, 100).map(lambda percent: percent / 100), min_size=1, max_size=12)


def _hits(*values: Any) -> list[dict[str, Any]]:
    return [{} if value is ... else {"confidence": value} for value in values]


@pytest.mark.parametrize("value", [0, 1, 0.0, 1.0, 0.5, 5e-324])
def test_numbers_from_0_to_1_are_confidences(value: float) -> None:
    """Integers count as well."""
    assert valid_confidence(value) == value


@pytest.mark.parametrize(
    "value", [True, False, None, -0.001, 1.001, 2, -1, 10**400, math.nan, math.inf, -math.inf, "0.5", [0.5], {"a": 1}]
)
def test_everything_else_is_missing(value: Any) -> None:
    """Booleans, NaN, numbers out of range and other types are holes, alone and among others."""
    assert valid_confidence(value) is None
    curve, _, _, faults = confidence_curve(_hits(0.5, value, 0.5), 3, False)
    assert list(curve) == [0.5, 0.5, 0.5]
    assert faults == (value is not None)


def test_an_engine_without_confidences_says_nothing() -> None:
    """Absent, null and nothing but faults are silence; only faults are counted."""
    assert confidence_curve(_hits(..., None), 2, False) == SILENCE
    assert confidence_curve([], 2, False) == SILENCE
    curve, _, _, faults = confidence_curve(_hits(True, "x"), 2, False)
    assert (list(curve), faults) == ([], 2)


def test_holes_take_the_last_known_value() -> None:
    """A leading hole takes the first known one."""
    assert list(confidence_curve(_hits(..., 0.9, None, 0.5, "x"), 5, False)[0]) == [0.9, 0.9, 0.9, 0.5, 0.5]


def test_falling_confidences_are_their_own_curve() -> None:
    """No projection, full coherence, resolution by how much is claimed."""
    curve, rho, influence, faults = confidence_curve(_hits(0.8, 0.4, 0.0), 4, False)
    assert (list(curve), rho, faults) == ([0.8, 0.4, 0.0], 1.0, 0)
    assert influence == pytest.approx(1 - 1.2 / (4 * 0.8))


def test_who_claims_everything_claims_nothing() -> None:
    """The same confidence for all that was asked for resolves nothing; for a few of many it does."""
    assert confidence_curve(_hits(0.9, 0.9), 2, False)[2] == 0
    assert confidence_curve(_hits(0.9, 0.9), 20, False)[2] == pytest.approx(0.6)
    assert confidence_curve(_hits(0.9), 20, False)[2] == pytest.approx(0.8)


@pytest.mark.parametrize("returned", [5, 10, 19, 20, 40])
def test_hits_that_were_not_returned_are_no_evidence_of_modesty(returned: int) -> None:
    """An engine that returns half of what it was asked for and claims the same of it all has no influence."""
    assert confidence_curve(_hits(*[0.99] * returned), 20, False)[2] == pytest.approx(0.0, abs=1e-12)


def test_no_confidence_worth_the_name_resolves_fully() -> None:
    """A first confidence of 0 is not divided by."""
    assert confidence_curve(_hits(0.0, 0.0), 2, False)[2] == 1
    assert confidence_curve(_hits(0, 0), 2, False)[2] == 1


def test_rising_confidences_are_pooled_and_incoherent() -> None:
    """Claims against one's own ranking flatten the curve and take the influence away."""
    curve, rho, influence, _ = confidence_curve(_hits(0.1, 0.5, 0.9), 3, False)
    assert curve == pytest.approx([0.5, 0.5, 0.5])
    assert rho == pytest.approx(0, abs=1e-7)
    assert influence == pytest.approx(0, abs=1e-7)


def test_independent_confidences_are_taken_by_the_engine_request() -> None:
    """A judge of its own is neither projected nor found incoherent."""
    curve, rho, _, _ = confidence_curve(_hits(0.5, 0.9, 0.1), 10, True)
    assert list(curve) == [0.5, 0.9, 0.1]
    assert rho == 1


@given(confidences)
@settings(deadline=None, max_examples=100)
def test_projection_is_the_literal_one(values: list[float]) -> None:
    """The curve never rises, keeps the sum, and is that of the literal algorithm with its coherence."""
    curve, rho = project(values, sum(values) / len(values))
    assert all(a >= b - 1e-15 for a, b in pairwise(curve))
    assert sum(curve) == pytest.approx(sum(values))
    assert curve == pytest.approx(projected(values), abs=1e-12)
    assert rho == pytest.approx(coherence(values, projected(values)), abs=1e-6)
    assert 0 <= rho <= 1


@given(confidences, st.integers(0, 11), st.floats(-0.2, 0.2))
@settings(deadline=None, max_examples=50)
def test_projection_is_the_closest_falling_curve(values: list[float], place: int, step: float) -> None:
    """No other non-increasing curve near it is closer in least squares."""
    curve, _ = project(values, sum(values) / len(values))
    other = [level + (step if at <= place else 0) for at, level in enumerate(curve)]
    if all(a >= b for a, b in pairwise(other)):
        loss = sum((v - p) ** 2 for v, p in zip(values, curve, strict=True))
        assert loss <= sum((v - p) ** 2 for v, p in zip(values, other, strict=True)) + 1e-12


def _said(curve: list[float], influence: float) -> ConfidenceCurve:
    return curve, 1.0, influence, 0


def test_consensus_weighs_by_weight_and_say() -> None:
    """Engines count by weight times influence, and never for less than a millionth."""
    assert consensus([(1.0, _said([0.8], 0.5)), (3.0, _said([0.4], 0.5))]) == pytest.approx([0.5])
    assert consensus([(1.0, _said([0.8], 0.0)), (1.0, _said([0.4], 1.0))]) == pytest.approx([0.4], abs=1e-6)
    assert consensus([(1.0, _said([0.8], 0.0)), (1.0, _said([0.4], 0.0))]) == pytest.approx([0.6])


def test_consensus_is_of_the_curves_that_reach_a_rank() -> None:
    """Beyond a short list the others decide, but the consensus never rises."""
    short, long = _said([0.2], 1.0), _said([0.6, 0.5, 0.1], 1.0)
    assert consensus([(1.0, short), (1.0, long)]) == pytest.approx([0.4, 0.4, 0.1])
    assert consensus([(1.0, long), (1.0, short)]) == pytest.approx([0.4, 0.4, 0.1])
