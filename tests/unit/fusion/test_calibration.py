"""Estimated and learned confidences: what a map says at first, what teaches it, and what it can never do."""

import math
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.fusion.calibration import (
    ONLINE_FLOOR,
    PRIORS,
    EngineCalibration,
    Evidence,
    Example,
    Kind,
    LearnedMap,
    Moments,
    confident_features,
    fitted,
    increments_of,
    shown_examples,
    silent_features,
    size_of,
)
from app.fusion.confidence import (
    MIN_INFLUENCE,
    SILENCE,
    confidence_curve,
    estimate,
    finite_scores,
    shape_of,
    standardized,
)
from app.fusion.ranked_lists import FusionConfig, RankedList
from app.fusion.rrf import fuse
from tests.support.fusion_inputs import federations, maps, options, wild_federations

relaxed = settings(deadline=None, max_examples=40)

KINDS: tuple[Kind, ...] = ("confident", "silent")


def scored(*scores: Any) -> list[dict[str, Any]]:
    """Hits with these scores."""
    return [{"id": f"d{place}", "score": score} for place, score in enumerate(scores)]


def silent_phi(scores: list[float], mean: float = 0.0, sd: float = 1.0) -> list[tuple[float, ...]]:
    """The features of a list of scores."""
    shape = shape_of(scored(*scores))
    assert shape is not None
    return silent_features(standardized(shape), scores, mean, sd)


def examples(chance: random.Random, kind: Kind, count: int) -> list[Example]:
    """Random examples of one kind."""
    width = len(PRIORS[kind][0])
    return [
        Example((1.0, *(chance.uniform(-4, 4) for _ in range(width - 1))), chance.uniform(0.1, 1), chance.random())
        for _ in range(count)
    ]


def sums_of(kind: Kind, theta: tuple[float, ...], seen: list[Example]) -> list[float]:
    """What these examples add."""
    increments = increments_of(kind, theta, seen, ONLINE_FLOOR)
    assert increments is not None
    return increments


# Estimates from scores


@pytest.mark.parametrize(
    "scores",
    [
        (3, 2, 1),
        (1, 1, 1, 1),
        (0.1 + 0.2, 0.1 + 0.2, 0.1 + 0.2, 0.1 + 0.2),
        (0.0, -0.0, 0, 0),
        (math.inf, 3, 2, 1),
        (4, 3, 2, -math.inf),
        (4, math.nan, 2, 1),
        (10**400, 3, 2, 1),
        (1e308,) * 6,
        (),
    ],
)
def test_lists_without_a_shape_stay_silent(scores: tuple[Any, ...]) -> None:
    """Fewer than four hits, equal scores, or a score that is not finite."""
    assert estimate(shape_of(scored(*scores)), 20) == SILENCE


@pytest.mark.parametrize("scores", [(1e308, 0.0, -1e308, -1e308), (5e-324, 0.0, 0.0, 0.0), (1.7e308, 1e308, 9e307, 1)])
def test_extreme_scores_have_a_shape(scores: tuple[float, ...]) -> None:
    """Neither an overflow nor a NaN: chances strictly between 0 and 1 that fall with the scores."""
    curve, coherence, influence, _ = estimate(shape_of(scored(*scores)), 4)
    assert all(0 < chance < 1 for chance in curve)
    assert all(better >= worse for better, worse in pairwise(curve))
    assert 0 <= influence <= coherence <= 1


@given(
    st.lists(st.integers(-1000, 1000), min_size=4, max_size=20),
    st.sampled_from([1e-6, 0.5, 3.0, 1e9]),
    st.sampled_from([-1e3, 0.0, 7.0]),
)
@relaxed
def test_scale_and_offset_of_scores_change_nothing(scores: list[int], scale: float, offset: float) -> None:
    """An engine may count in any unit and from any zero."""
    one = estimate(shape_of(scored(*scores)), 20)
    other = estimate(shape_of(scored(*((score + offset) * scale for score in scores))), 20)
    assert one[0] == pytest.approx(other[0], abs=1e-9)
    assert one[1:3] == pytest.approx(other[1:3], abs=1e-6)


@given(federations(confidences=st.none(), readings=("ranked",)), st.floats(0.01, 0.99))
@relaxed
def test_scores_are_not_read_where_anybody_gives_confidences(lists: list[RankedList], given_one: float) -> None:
    """One confidence of an engine with a weight is enough: then scores of all engines are left alone."""
    speaking = RankedList("zeta", [{"id": "own", "score": 1.0, "confidence": given_one}])
    one = fuse([*lists, speaking], FusionConfig(silent="scores"))
    other = fuse([*lists, speaking], FusionConfig(silent="ranks"))
    assert one.hits() == other.hits()


@given(federations(confidences=st.none(), readings=("ranked",)))
@relaxed
def test_estimated_confidences_are_not_reported(lists: list[RankedList]) -> None:
    """No engine has claimed anything, so no hit has a `confidence`."""
    assert all("confidence" not in hit for hit in fuse(lists, FusionConfig()).hits())


def test_an_engine_can_be_read_by_its_ranks() -> None:
    """`silent` of an engine overrides the option."""
    hits, other = scored(9, 3, 2, 1), scored(8, 3, 2, 1)
    lists = [RankedList("a", hits, silent="ranks"), RankedList("b", other, silent="ranks")]
    plain = fuse(lists, FusionConfig(confidence_weight=0.0))
    assert fuse(lists, FusionConfig()).hits() == plain.hits()
    half = [RankedList("a", hits), RankedList("b", other, silent="ranks")]
    assert fuse(half, FusionConfig()).hits() != plain.hits()
    assert fuse([ranked._replace(silent=None) for ranked in lists], FusionConfig(silent="ranks")).hits() == plain.hits()


# Short lists


@given(st.integers(1, 20), st.integers(1, 40), st.floats(0.5, 1.0), st.sets(st.integers(1, 9), min_size=5))
@relaxed
def test_a_constant_claim_gets_what_silence_gets(returned: int, asked: int, claim: float, others: set[int]) -> None:
    """An engine that says the same of everything, not below the consensus, is believed as if it had said nothing."""
    modest = RankedList(
        "a", [{"id": f"a{n}", "score": 9 - n, "confidence": c / 20} for n, c in enumerate(sorted(others, reverse=True))]
    )
    hits = [{"id": f"b{n}", "score": 1.0} for n in range(returned)]
    boasting = RankedList("b", [{**hit, "confidence": claim} for hit in hits], fetch_k=asked)
    silent = RankedList("b", hits, fetch_k=asked)
    influence = confidence_curve(list(boasting.hits), asked, False)[2]
    assert influence <= max(0.0, 1 - returned / 5) + 1e-12
    if returned >= 5:
        one, other = fuse([modest, boasting], FusionConfig()), fuse([modest, silent], FusionConfig())
        # The constant claim still has MIN_INFLUENCE in the consensus.
        sums = [{hit["id"]: hit["meta"]["fusedScore"] for hit in fusion.hits()} for fusion in (one, other)]
        assert sums[0] == pytest.approx(sums[1], abs=50 * MIN_INFLUENCE / 61)


# Learned maps


@given(federations() | wild_federations(), options(), st.booleans())
@relaxed
def test_without_evidence_nothing_changes(lists: list[RankedList], wishes: FusionConfig, both: bool) -> None:
    """n = 0: bit for bit as without learning, whatever θ is."""
    none = EngineCalibration(
        LearnedMap("confident", (3.0, -2.0), 0.0),
        LearnedMap("silent", (1.0, 2.0, 3.0, 4.0), 0.0, 5.0, 2.0) if both else None,
    )
    learned = [ranked._replace(calibration=none) for ranked in lists]
    assert repr(fuse(learned, wishes).hits()) == repr(fuse(lists, wishes).hits())


@given(wild_federations(), maps(), options())
@relaxed
def test_learned_maps_never_break_the_scores(
    lists: list[RankedList], learned: EngineCalibration | None, wishes: FusionConfig
) -> None:
    """Whatever was learned and whatever is sent: scores in [0,1], and never a NaN."""
    fusion = fuse([ranked._replace(calibration=learned) for ranked in lists], wishes)
    assert all(0 <= score <= 1 for score in fusion.scores())
    assert all(math.isfinite(hit["meta"]["fusedScore"]) for hit in fusion.hits())


@given(
    federations(weights=st.sampled_from([0.25, 1.0, 2.0]), readings=("ranked",), calibrations=maps()),
    st.sampled_from([0.0, 0.5, 0.8, 0.95]),
)
@relaxed
def test_a_learned_map_keeps_the_engines_order(lists: list[RankedList], beta: float) -> None:
    """Documents that only one engine returned stay in its order."""
    hits = fuse(lists, FusionConfig(confidence_weight=beta)).hits()
    for ranked in lists:
        alone = [hit["meta"]["engines"] for hit in hits if len(hit["meta"]["engines"]) == 1]
        ranks = [marks[0]["rank"] for marks in alone if marks[0]["id"] == ranked.engine]
        assert ranks == sorted(ranks)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_map_says_what_the_engine_says(kind: Kind) -> None:
    """θ of no evidence is θ₀, and its chances are the claims: the confidences, or the estimate from scores."""
    learned = Evidence(kind).learned()
    assert learned.theta == pytest.approx(PRIORS[kind][0])
    assert learned.trust == 0
    if kind == "confident":
        said = [0.9, 0.5, 0.2]
        assert learned.chances(confident_features(said)) == pytest.approx(said)
    else:
        scores = [9.0, 4.0, 3.0, 1.0]
        assert learned.chances(silent_phi(scores)) == pytest.approx(estimate(shape_of(scored(*scores)), 4)[0])


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 1000))
@relaxed
def test_order_of_events_and_of_replicas_does_not_matter(kind: Kind, seed: int) -> None:
    """Increments at one working point: any order and any split between two replicas comes to the same θ and n."""
    chance = random.Random(seed)
    seen, theta = examples(chance, kind, 30), PRIORS[kind][0]
    alone, shuffled, merged = Evidence(kind), Evidence(kind), Evidence(kind)
    for one in seen:
        alone.add(sums_of(kind, theta, [one]))
    for one in chance.sample(seen, len(seen)):
        shuffled.add(sums_of(kind, theta, [one]))
    merged.add(sums_of(kind, theta, seen[17:]))
    merged.add(sums_of(kind, theta, seen[:17]))
    for other in (shuffled, merged):
        assert other.theta() == pytest.approx(alone.theta(), abs=1e-6)
        assert other.sums == pytest.approx(alone.sums, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_evidence_is_bounded(kind: Kind) -> None:
    """State does not grow with events, n never exceeds its bound, and θ stays finite."""
    chance = random.Random(kind)
    evidence = Evidence(kind)
    for _ in range(300):
        evidence.add(sums_of(kind, evidence.theta(), [one._replace(reward=1.0) for one in examples(chance, kind, 40)]))
    assert len(evidence.sums) == size_of(kind) == {"confident": 6, "silent": 15}[kind]
    assert evidence.n <= 2000.0
    assert all(abs(value) <= 8 for value in evidence.theta())


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 1000))
@relaxed
def test_chances_are_between_0_and_1(kind: Kind, seed: int) -> None:
    """Whatever was learned."""
    chance = random.Random(seed)
    evidence = fitted(kind, examples(chance, kind, chance.randrange(60)))
    chances = evidence.learned().chances([one.features for one in examples(chance, kind, 30)])
    assert all(0 < value < 1 for value in chances)


def test_features_of_extreme_scores_are_bounded() -> None:
    """z and g within ±4, no NaN, for scores at the end of what a double can hold."""
    scores = [1.7e308, 1e308, -1e308, -1.7e308]
    for phi in silent_phi(scores, -1e308, 1e-300) + silent_phi(scores, 0.0, 0.0) + silent_phi(scores, 1e308, 1e308):
        assert all(math.isfinite(value) and abs(value) <= 4 for value in phi)
    assert finite_scores(scored(1, math.inf)) is None
    features = confident_features([0.0, 1.0])
    assert all(math.isfinite(value) for phi in features for value in phi)


def test_increments_that_are_not_finite_are_dropped() -> None:
    """An event that cannot be counted is None, so that it can be left out and noted."""
    assert increments_of("confident", (0.0, 1.0), [Example((1.0, math.nan), 1.0, 1.0)], ONLINE_FLOOR) is None
    assert increments_of("confident", (0.0, 1.0), [Example((1.0, 1e308), 1e308, 1.0)], ONLINE_FLOOR) is None


@given(
    st.lists(st.floats(0.01, 0.99), min_size=3, max_size=12), st.sampled_from([1e-3, 2.0, 1e4]), st.integers(-50, 50)
)
@relaxed
def test_learned_maps_follow_the_unit_of_scores(scores: list[float], scale: float, offset: int) -> None:
    """After the moments have followed, scale and offset of an engine's scores change no feature."""
    scores = [*scores, 1.0]
    if shape_of(scored(*scores)) is None or max(scores) - min(scores) < 1e-3:
        return
    moved = [(score + offset) * scale for score in scores]
    one, other = Moments(), Moments()
    for _ in range(50):
        one, other = one.observed(scores), other.observed(moved)
    ours = silent_phi(scores, one.mean, one.deviation)
    theirs = silent_phi(moved, other.mean, other.deviation)
    for phi, psi in zip(ours, theirs, strict=True):
        assert phi == pytest.approx(psi, abs=1e-3)


def test_moments_drop_what_is_not_finite_and_forget() -> None:
    """Infinite scores leave them as they are; a new level is reached after some half-lives."""
    moments = Moments().observed([1.0, 2.0, 3.0])
    assert moments.observed([math.inf]) == moments.observed([math.nan]) == moments
    assert moments.observed([1e200]) == moments
    assert (moments.mean, moments.deviation) == (2.0, pytest.approx(math.sqrt(2 / 3)))
    for _ in range(20_000):
        moments = moments.observed([100.0])
    assert moments.mean == pytest.approx(100.0, abs=0.2)
    assert Moments().deviation == Moments().mean == 0.0


def test_forgetting_halves_evidence_in_thirty_days() -> None:
    """A, b and n alike; time that goes backwards forgets nothing."""
    evidence = Evidence("confident", [8.0] * 6)
    evidence.fade(30 * 86400)
    assert evidence.sums == pytest.approx([4.0] * 6)
    evidence.fade(-5)
    assert evidence.sums == pytest.approx([4.0] * 6)


def test_hits_without_a_signal_count_as_far_as_they_were_seen() -> None:
    """u is the caller's share for a hit with a signal, and less the lower an unmarked one was shown."""
    made = shown_examples([(1.0, 0.0)] * 3, [1, 2, 3], [1.0, None, 0.0], 0.5)
    assert made[0] == Example((1.0, 0.0), 0.5, 1.0)
    assert made[1].weight == pytest.approx(0.5 / math.log2(3))
    assert made[1].reward == 0.0
    assert made[2] == Example((1.0, 0.0), 0.5, 0.0)


def test_praise_is_believed_the_more_the_more_there_is() -> None:
    """λ = n/(n + 5); an engine whose hits were never praised is not judged at all."""
    learned = LearnedMap("confident", (0.0, 1.0), 5.0)
    assert learned.trust == 0.5
    condemned = Evidence("confident")
    for _ in range(100):
        condemned.add(sums_of("confident", condemned.theta(), [Example((1.0, 2.0), 1.0, 0.0)]))
    assert condemned.n == 0
    assert condemned.learned().trust == 0


def test_judged_queries_teach_what_is_true() -> None:
    """An engine that claims 0.9 of everything, and is right half of the time, is worth about a half."""
    phi = confident_features([0.9])[0]
    evidence = fitted("confident", [Example(phi, 1.0, float(turn % 2)) for turn in range(400)])
    (chance,) = evidence.learned().chances([phi])
    assert chance == pytest.approx(0.5, abs=0.02)
    assert evidence.n == 200
