"""Variety in the fused list."""

from app.fusion.merge import FusedList
from app.fusion.mmr import diversify, overlap, shingles_of
from app.fusion.ranked_lists import FusionConfig, RankedList
from app.fusion.rrf import fuse

ONE = "the quick brown fox jumps over the lazy dog"
TWO = "quarterly revenue grew by seven percent in all regions"
THREE = "how to boil an egg without breaking its shell"


def _fused(*texts: str) -> FusedList:
    hits = [{"id": f"{place:03}", "score": 1, "text": text} for place, text in enumerate(texts)]
    return fuse([RankedList("a", hits)], FusionConfig())


def test_only_relevance_keeps_the_order() -> None:
    """λ = 1 is the fused order."""
    assert diversify(_fused(ONE, ONE, TWO, THREE), 3, 1.0) == [0, 1, 2]


def test_repetition_is_put_behind() -> None:
    """The second copy of a text comes after the others, and nothing is lost."""
    fusion = _fused(ONE, ONE, TWO, THREE)
    assert diversify(fusion, 4, 0.5) == [0, 2, 3, 1]
    assert diversify(fusion, 2, 0.5) == [0, 2]


def test_only_variety_still_starts_with_the_best() -> None:
    """λ = 0: ties go to the better fused rank."""
    assert diversify(_fused(ONE, ONE, TWO, THREE), 3, 0.0) == [0, 2, 3]


def test_hits_without_text_repeat_nothing() -> None:
    """Silence does not resemble silence."""
    assert diversify(_fused("", "", ONE), 3, 0.3) == [0, 1, 2]


def test_no_more_than_there_is() -> None:
    """An empty fusion, or a k beyond its end."""
    assert diversify(_fused(), 5, 0.5) == []
    assert diversify(_fused(ONE), 5, 0.5) == [0]


def test_the_pool_is_bounded_by_what_is_wanted() -> None:
    """A long list is considered only as far as the answer needs, and picked from as told."""
    fusion = _fused(*[f"{ONE} {number}" for number in range(300)])
    order = diversify(fusion, 60, 0.5)
    assert len(set(order)) == 60
    assert max(order) < 240
    assert fusion.pick(order).keys() == [fusion.keys()[index] for index in order]


def test_overlap_is_that_of_the_shingles() -> None:
    """Runs of three words, without regard to case; short texts are one run."""
    assert shingles_of("A b c d") == {("a", "b", "c"), ("b", "c", "d")}
    assert shingles_of("A b") == {("a", "b")}
    assert shingles_of(" ") == frozenset()
    assert overlap(shingles_of("a b c d"), shingles_of("a b c e")) == 1 / 3
    assert overlap(frozenset(), frozenset()) == 0
