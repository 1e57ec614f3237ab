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
    found = counting((["docs", "code", "wiki"], [["docs", "code"], ["docs"], ["code", "docs"], ["docs"]])).agreement()
    assert (found.answers, found.hits) == (1, 4)
    assert found.shared == {("code", "docs"): 2}
    assert found.places["docs"] == (1, 4, 2, 0.75)
    assert found.places["code"] == (1, 2, 0, 0.25)
    assert found.places["wiki"] == (1, 0, 0, 0.0)


def test_nothing_yet() -> None:
    """Before the first answer there is nothing to tell."""
    assert counting().agreement() == (0, 0, {}, {})


@given(st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=5, unique=True), min_size=1, max_size=30))
def test_shares_add_up(hits: list[list[str]]) -> None:
    """All shares together are the whole list, and no pair shares more than either gave."""
    found = counting(("abcde", hits)).agreement()  # type: ignore[arg-type]  # a string of ids is a list of them
    assert sum(place.share for place in found.places.values()) == pytest.approx(1)
    for (first, second), shared in found.shared.items():
        assert first < second
        assert shared <= min(found.places[first].given, found.places[second].given)


def test_old_answers_go() -> None:
    """What is found covers one to two generations."""
    overlap = counting(*[(["old"], [["old"]])] * SPAN)
    for _ in range(SPAN):
        overlap.add(["new"], [["new"]])
    assert set(overlap.agreement().places) == {"old", "new"}
    overlap.add(["new"], [["new"]])
    assert set(overlap.agreement().places) == {"new"}
    assert overlap.agreement().answers == SPAN + 1


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
    found = counting((engines, [engines] * 100)).agreement()
    assert 0 < found.hits <= 3
    assert len(found.shared) <= MAX_PAIRS
    assert sum(place.share for place in found.places.values()) == pytest.approx(1)


def test_pairs_that_are_kept_are_bounded() -> None:
    """However many engines share hits, a generation keeps so many pairs; those that it has go on counting."""
    hits = [(["x"], [[f"e{number}", f"e{other}"]]) for number in range(60) for other in range(number)]
    found = counting(*hits[: SPAN // 2], *hits[: SPAN // 2]).agreement()
    assert set(found.shared.values()) == {2}
    assert len(counting(*hits).agreement().shared) <= 2 * MAX_PAIRS


def test_an_incident_can_be_read() -> None:
    """The representation says how much is behind the numbers."""
    overlap = counting((["a", "b"], [["a", "b"]]))
    assert repr(overlap) == (
        "<Overlap <Generation of 1 answers, 1 hits, 1 pairs> after <Generation of 0 answers, 0 hits, 0 pairs>>"
    )
