"""Who agrees with whom: counts over recent answers, exact, bounded, and without a word of what was asked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.telemetry.overlap import LOOK_SECONDS, MAX_PAIRS, SPAN, Overlap


def counting(*answers: tuple[list[str], list[list[str]]]) -> Overlap:
    """What these answers come to."""
    overlap = Overlap(lambda: 0.0)
    for answered, hits in answers:
        overlap.add(answered, hits)
    return overlap


def test_pairs_and_places() -> None:
    """A hit of two engines counts for the pair, half for each; a lone one counts wholly, and as alone."""
    told = counting((["docs", "code", "wiki"], [["docs", "code"], ["docs"], ["code", "docs"], ["docs"]])).told()
    assert (told.answers, told.hits) == (1, 4)
    assert told.shared == {("code", "docs"): 2}
    assert told.places["docs"] == (1, 4, 2, 0.75)
    assert told.places["code"] == (1, 2, 0, 0.25)
    assert told.places["wiki"] == (1, 0, 0, 0.0)


def test_nothing_yet() -> None:
    """Before the first answer there is nothing to tell."""
    assert counting().told() == (0, 0, {}, {})


@given(st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=5, unique=True), min_size=1, max_size=30))
def test_shares_add_up(hits: list[list[str]]) -> None:
    """All shares together are the whole list, and no pair shares more than either gave."""
    told = counting(("abcde", hits)).told()  # type: ignore[arg-type]  # a string of ids is a list of them
    assert sum(place.share for place in told.places.values()) == pytest.approx(1)
    for (first, second), shared in told.shared.items():
        assert first < second
        assert shared <= min(told.places[first].given, told.places[second].given)


def test_old_answers_go() -> None:
    """What is told covers one to two generations."""
    overlap = counting(*[(["old"], [["old"]])] * SPAN)
    for _ in range(SPAN):
        overlap.add(["new"], [["new"]])
    assert set(overlap.told().places) == {"old", "new"}
    overlap.add(["new"], [["new"]])
    assert set(overlap.told().places) == {"new"}
    assert overlap.told().answers == SPAN + 1


def test_a_busy_gateway_is_sampled() -> None:
    """At most one answer is looked at in a tenth of a second."""
    now = 5.0
    overlap = Overlap(lambda: now)
    assert overlap.due()
    now += LOOK_SECONDS / 2
    assert not overlap.due()
    now += LOOK_SECONDS
    assert overlap.due()


def test_work_for_one_answer_is_bounded() -> None:
    """A hundred hits that a hundred engines gave: only the first hits are counted, and few of their pairs."""
    engines = [f"e{number:03}" for number in range(100)]
    told = counting((engines, [engines] * 100)).told()
    assert 0 < told.hits <= 3
    assert len(told.shared) <= MAX_PAIRS
    assert sum(place.share for place in told.places.values()) == pytest.approx(1)


def test_pairs_that_are_kept_are_bounded() -> None:
    """However many engines share hits, a generation keeps so many pairs; those that it has go on counting."""
    hits = [(["x"], [[f"e{number}", f"e{other}"]]) for number in range(60) for other in range(number)]
    told = counting(*hits[: SPAN // 2], *hits[: SPAN // 2]).told()
    assert set(told.shared.values()) == {2}
    assert len(counting(*hits).told().shared) <= 2 * MAX_PAIRS


def test_an_incident_can_be_read() -> None:
    """The representation says how much is behind the numbers."""
    overlap = counting((["a", "b"], [["a", "b"]]))
    assert repr(overlap) == (
        "<Overlap <Generation of 1 answers, 1 hits, 1 pairs> after <Generation of 0 answers, 0 hits, 0 pairs>>"
    )
