"""What must hold for any lists: properties of the blend, and agreement with its literal definition."""

import copy
import math
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.fusion.ranked_lists import FusionConfig, RankedList
from app.fusion.rrf import fuse
from tests.support.fusion_inputs import federations, maps, options, wild_federations
from tests.support.fusion_reference import fuse_literally

TOLERANCE = 1e-7
"""Coherence near 0 is a square root of rounding errors in the literal form."""

relaxed = settings(deadline=None, max_examples=40)


def _flat(value: Any) -> list[float]:
    """All floats in a value."""
    if isinstance(value, dict):
        return [number for member in value.values() for number in _flat(member)]
    if isinstance(value, list):
        return [number for member in value for number in _flat(member)]
    return [value] if isinstance(value, float) else []


@given(federations(calibrations=maps()) | federations(confidences=st.none(), calibrations=maps()), options())
@settings(deadline=None, max_examples=150)
def test_agrees_with_the_literal_definition(lists: list[RankedList], wishes: FusionConfig) -> None:
    """Same documents, bodies, meta, sums, scores and confidences; same order wherever sums clearly differ."""
    fusion = fuse(lists, wishes)
    keys, expected = fuse_literally(lists, wishes)
    ours = dict(zip(fusion.keys(), fusion.hits(), strict=True))
    assert sorted(ours) == sorted(keys)
    totals = {}
    for key, theirs in zip(keys, expected, strict=True):
        mine = copy.deepcopy(ours[key])
        totals[key] = theirs["meta"].pop("fusedScore")
        assert mine["meta"].pop("fusedScore") == pytest.approx(totals[key], abs=TOLERANCE)
        assert mine.pop("score") == pytest.approx(theirs.pop("score"), abs=1e-5)
        assert mine.pop("confidence", None) == pytest.approx(theirs.pop("confidence", None), abs=1e-12)
        assert mine == theirs
    for better, worse in pairwise(fusion.keys()):
        assert totals[better] > totals[worse] - TOLERANCE


@given(federations(), options(confidence_weight=0.0))
@relaxed
def test_plain_order_is_exactly_the_literal_one(lists: list[RankedList], wishes: FusionConfig) -> None:
    """Without tempering nothing but exact sums, weights and ids decides, ties included."""
    assert fuse(lists, wishes).keys() == fuse_literally(lists, wishes)[0]


@given(wild_federations(), options(), st.randoms(use_true_random=False))
@relaxed
def test_independent_of_the_order_of_engines(
    lists: list[RankedList], wishes: FusionConfig, chance: random.Random
) -> None:
    """Arrival and registry order change nothing, to the last bit."""
    shuffled = chance.sample(lists, len(lists))
    one, other = fuse(lists, wishes), fuse(shuffled, wishes)
    assert repr(one.hits()) == repr(other.hits())
    assert one.notes == other.notes
    assert one.duplicates == other.duplicates


@given(wild_federations(), options(), st.sampled_from(["id", "uri", "content"]))
@relaxed
def test_scores_and_confidences_are_in_range(lists: list[RankedList], wishes: FusionConfig, identity: Any) -> None:
    """Score and confidence lie in [0,1], scores descend, sums are finite; NaN appears only where an engine sent it."""
    fusion = fuse(lists, FusionConfig(wishes.method, wishes.rrf_k, wishes.confidence_weight, identity))
    hits = fusion.hits()
    assert [hit["score"] for hit in hits] == fusion.scores()
    assert all(0 <= score <= 1 for score in fusion.scores())
    assert all(better >= worse for better, worse in pairwise(fusion.scores()))
    assert all(a["meta"]["fusedScore"] >= b["meta"]["fusedScore"] for a, b in pairwise(hits))
    for hit in hits:
        assert math.isfinite(hit["meta"]["fusedScore"])
        assert 0 <= hit.get("confidence", 0) <= 1
        assert all(0 <= mark.get("confidence", 0) <= 1 for mark in hit["meta"]["engines"])


@given(wild_federations(), options())
@relaxed
def test_inputs_are_never_changed(lists: list[RankedList], wishes: FusionConfig) -> None:
    """What the engines sent is read only, even when the fused hits are changed afterwards."""
    before = repr(lists)
    fusion = fuse(lists, wishes)
    for hit in fusion.hits():
        hit["meta"]["mine"] = hit["meta"]["engines"].append({}) or hit.pop("score")
        hit["more"] = 1
    fusion.collisions(0, None)
    assert repr(lists) == before


@given(wild_federations(), options(), st.integers(0, 12), st.integers(0, 12))
@relaxed
def test_slices_are_of_one_list(lists: list[RankedList], wishes: FusionConfig, start: int, stop: int) -> None:
    """Any slice of hits is that slice of all hits, and every copy is counted once."""
    fusion = fuse(lists, wishes)
    assert repr(fusion.hits(start, stop)) == repr(fusion.hits()[start:stop])
    assert len(fusion) == len(fusion.keys()) == len(set(fusion.keys()))
    assert len(fusion) + fusion.duplicates == sum(len(ranked.hits) for ranked in lists)


@given(st.integers(5, 100), st.data())
@relaxed
def test_equal_constant_confidences_are_plain_rrf(percent: int, data: st.DataObject) -> None:
    """If every hit of every engine claims the same, the order is that of plain RRF; silent engines do not matter."""
    lists = data.draw(federations(confidences=st.just(percent / 100), readings=("ranked", "ignore")))
    lists = [ranked._replace(silent="ranks") for ranked in lists]
    tempered, plain = FusionConfig(confidence_weight=0.8), FusionConfig(confidence_weight=0.0)
    assert fuse(lists, tempered).keys() == fuse(lists, plain).keys()


@given(federations(confidences=st.just(None)))
@relaxed
def test_no_confidence_at_all_is_exactly_plain_rrf_by_ranks(lists: list[RankedList]) -> None:
    """Without any confidence, and read by ranks, tempering changes neither order nor sums."""
    lists = [ranked._replace(silent=None) for ranked in lists]
    tempered = FusionConfig(confidence_weight=0.8, silent="ranks")
    plain = FusionConfig(confidence_weight=0.0)
    assert fuse(lists, tempered).hits() == fuse(lists, plain).hits()


@given(
    federations(weights=st.sampled_from([0.25, 1.0, 2.0]), readings=("ranked",)),
    st.sampled_from([0.0, 0.5, 0.8, 0.95]),
)
@relaxed
def test_an_engine_keeps_its_order_for_its_own_documents(lists: list[RankedList], beta: float) -> None:
    """Documents that only one engine returned come in that engine's order."""
    hits = fuse(lists, FusionConfig(confidence_weight=beta)).hits()
    for ranked in lists:
        alone = [hit["meta"]["engines"] for hit in hits if len(hit["meta"]["engines"]) == 1]
        ranks = [marks[0]["rank"] for marks in alone if marks[0]["id"] == ranked.engine]
        assert ranks == sorted(ranks)


@given(federations(readings=("ranked",)), st.floats(0.1, 4), st.floats(0.1, 4))
@relaxed
def test_more_weight_is_never_less_for_own_documents(lists: list[RankedList], one: float, other: float) -> None:
    """S of a document that one engine alone returned does not fall when that engine's weight grows."""
    if not lists:
        return

    def sums(weight: float) -> dict[str, float]:
        first = lists[0]
        weighed = first._replace(weight=weight)
        fusion = fuse([weighed, *lists[1:]], FusionConfig())
        pairs = zip(fusion.keys(), fusion.hits(), strict=True)
        return {
            key: hit["meta"]["fusedScore"]
            for key, hit in pairs
            if [mark["id"] for mark in hit["meta"]["engines"]] == [first.engine]
        }

    small, large = sums(min(one, other)), sums(max(one, other))
    assert small.keys() == large.keys()
    assert all(large[key] >= small[key] - 2e-12 for key in small)


@given(federations(confidences=st.just(None)), st.sampled_from([0.5, 2.0]))
@relaxed
def test_more_weight_is_never_less_for_shared_documents(lists: list[RankedList], factor: float) -> None:
    """Where no confidences interfere, S of every document an engine returned grows with that engine's weight."""
    if not lists:
        return
    first = lists[0]
    lists = [ranked._replace(silent="ranks") for ranked in lists]
    before = fuse(lists, FusionConfig())
    heavier = RankedList(first.engine, first.hits, first.weight + factor, namespace=first.namespace, silent="ranks")
    after = fuse([heavier, *lists[1:]], FusionConfig())
    old = {key: hit["meta"] for key, hit in zip(before.keys(), before.hits(), strict=True)}
    for key, hit in zip(after.keys(), after.hits(), strict=True):
        if first.engine in [mark["id"] for mark in hit["meta"]["engines"]]:
            assert hit["meta"]["fusedScore"] > old[key]["fusedScore"]
        else:
            assert hit["meta"]["fusedScore"] == old[key]["fusedScore"]


def test_no_nan_is_invented() -> None:
    """Numbers of the fused hits that the engines did not send are never NaN."""
    lists = [RankedList("a", [{"id": 1, "score": 0, "confidence": 0.0}], weight=0.0), RankedList("b", [])]
    for method in ("rrf", "weighted", "convex"):
        assert not any(math.isnan(number) for number in _flat(fuse(lists, FusionConfig(method)).hits()))
