"""Metrics and significance against numbers worked out by hand."""

from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.evaluation import measures
from app.evaluation.measures import MRR, NDCG, RECALL, Evaluator, holm, mean, p_value, paired

pytest.importorskip("ir_measures", reason="its binary part is not built for this kind of machine")

GRADED = {"q1": {"d1": 2, "d2": 1, "d3": 0, "d4": 1}}


def test_graded_judgements_are_measured_as_by_hand() -> None:
    """Relevance is the gain, log2(rank + 1) the discount, the ideal is over all judged documents."""
    values = Evaluator(GRADED).measure({"q1": ["d3", "d2", "d1", "dx"]})
    ideal = 2 + 1 / log2(3) + 1 / log2(4)
    assert values[NDCG]["q1"] == pytest.approx((1 / log2(3) + 2 / log2(4)) / ideal)
    assert values[RECALL]["q1"] == pytest.approx(2 / 3)
    assert values[MRR]["q1"] == pytest.approx(1 / 2)


def test_cutoffs_are_where_the_names_say() -> None:
    """nDCG looks at ten, recall at fifty, MRR as far as the ranking goes."""
    judged = {"q1": {"d10": 1}, "q2": {"d11": 1}, "q3": {"d50": 1}, "q4": {"d51": 1}}
    ranking = [f"d{rank}" for rank in range(1, 60)]
    values = Evaluator(judged).measure(dict.fromkeys(judged, ranking))
    assert values[NDCG] == pytest.approx({"q1": 1 / log2(11), "q2": 0, "q3": 0, "q4": 0})
    assert values[RECALL] == {"q1": 1, "q2": 1, "q3": 1, "q4": 0}
    assert values[MRR] == pytest.approx({"q1": 1 / 10, "q2": 1 / 11, "q3": 1 / 50, "q4": 1 / 51})


def test_an_empty_answer_is_worth_nothing_and_a_missing_one_is_not_measured() -> None:
    """Only the queries of the run have values; a document named twice counts at its better rank."""
    judged = {"q1": {"d1": 1}, "q2": {"d1": 1}, "q3": {"d1": 1}}
    values = Evaluator(judged, [MRR]).measure({"q1": [], "q2": ["x", "d1", "x", "d1"], "unknown": ["d1"]})
    assert values == {MRR: {"q1": 0.0, "q2": 0.5}}
    assert Evaluator(judged).measure({}) == {NDCG: {}, RECALL: {}, MRR: {}}


def test_ranks_decide_and_ids_do_not() -> None:
    """The order given is the order measured, whatever the ids sort like."""
    yardstick = Evaluator({"q1": {"b": 1}})
    assert yardstick.measure({"q1": ["b", "z", "a"]})[MRR] == {"q1": 1.0}
    assert yardstick.measure({"q1": ["a", "z", "b"]})[MRR] == {"q1": pytest.approx(1 / 3)}
    assert repr(yardstick) == "<Evaluator nDCG@10, Recall@50, MRR over 1 judged queries>"


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([0.1, 0.2, 0.3], 2 / 8),
        ([0.1, 0.2, 0.3, 0.0, 0.0], 2 / 8),
        ([0.3, 0.1, -0.1, -0.3], 1.0),
        ([0.5, 0.5, 0.5, 0.5, -0.1], 4 / 32),
        ([0.1] * 6, 2 / 64),
        ([0.4], 1.0),
        ([0.0, 0.0], 1.0),
        ([], 1.0),
    ],
)
def test_few_queries_are_tested_exactly(differences: list[float], p: float) -> None:
    """All patterns of signs are tried; queries that do not differ say nothing."""
    assert p_value(differences) == pytest.approx(p)
    assert p_value([-difference for difference in differences]) == pytest.approx(p)


def test_many_queries_are_tested_by_chance_and_always_the_same() -> None:
    """A clear difference is clear, none is none, and the same input gives the same p."""
    mixed = [0.1 if number % 2 else -0.1 for number in range(100)]
    assert p_value([0.1] * 100) == pytest.approx(2 / (measures.RESAMPLES + 1))
    assert p_value(mixed) > 0.9
    assert p_value([0.1, *mixed]) == p_value([0.1, *mixed])


def test_holm_is_as_in_the_textbook() -> None:
    """The smallest times n, the next times n - 1, never falling, never above 1."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_corrects_upwards_and_keeps_the_order(p_values: list[float]) -> None:
    """No p-value becomes smaller, and none overtakes another."""
    corrected = holm(p_values)
    assert all(p <= more <= 1 for p, more in zip(p_values, corrected, strict=True))
    assert [more for _, more in sorted(zip(p_values, corrected, strict=True))] == sorted(corrected)


def test_only_common_queries_are_paired() -> None:
    """What one of the two did not answer is no part of the comparison."""
    assert paired({"q1": 0.5, "q2": 0.4, "q3": 1}, {"q3": 0.25, "q1": 0.1, "q4": 1}) == [0.4, 0.75]
    assert (mean([]), mean([0.1] * 10)) == (None, 0.1)


def test_a_missing_library_is_told_before_anything_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extra that brings it."""
    monkeypatch.setattr(measures, "find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match="ir_measures"):
        measures.require_libraries()
