"""Similarity of rankings: known values, bounds and symmetry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.fusion.rank_overlap import overlap_at, rank_biased_overlap

rankings = st.lists(st.sampled_from("abcdefghijkl"), unique=True, max_size=12)


def prefix_sum(first: list[str], second: list[str], p: float) -> float:
    """Extrapolated rank-biased overlap of two rankings of equal length, as its definition reads (equation 23)."""
    size = len(first)
    agreements = [len({*first[:depth]} & {*second[:depth]}) / depth for depth in range(1, size + 1)]
    total = sum(agreement * p**depth for depth, agreement in enumerate(agreements, 1))
    return agreements[-1] * p**size + (1 - p) / p * total


@given(rankings, rankings)
def test_overlap_is_symmetric_and_bounded(first: list[str], second: list[str]) -> None:
    for measure in (overlap_at, rank_biased_overlap):
        value = measure(first, second)
        assert -1e-9 <= value <= 1 + 1e-9
        assert value == pytest.approx(measure(second, first))


@given(rankings.filter(bool))
def test_equal_rankings_overlap_completely(ranking: list[str]) -> None:
    assert rank_biased_overlap(ranking, ranking) == pytest.approx(1.0)
    assert overlap_at(ranking, ranking) == 1.0


@given(st.permutations("abcdefgh"), st.permutations("efghijkl"))
def test_rankings_of_equal_length_follow_the_definition(first: list[str], second: list[str]) -> None:
    assert rank_biased_overlap(first, second) == pytest.approx(prefix_sum(first, second, 0.9))


def test_known_values() -> None:
    assert overlap_at(list("abc"), list("xbcd"), 3) == pytest.approx(2 / 3)
    assert rank_biased_overlap(list("abc"), list("xyz")) == 0.0
    assert rank_biased_overlap([], list("xyz")) == 0.0
    # The longer list agrees completely as far as the shorter one goes, and below it by assumption.
    assert rank_biased_overlap(list("ab"), list("abcd")) == pytest.approx(1.0)
    # Worth more at the top: the same swap matters less further down.
    assert rank_biased_overlap(list("bacd"), list("abcd")) < rank_biased_overlap(list("abdc"), list("abcd"))
