"""The blend by example."""

import math
from typing import Any

import pytest

from app.fusion.merge import FusedList
from app.fusion.ranked_lists import FusionConfig, RankedList
from app.fusion.rrf import fuse, reciprocals

PLAIN = FusionConfig(confidence_weight=0.0)


def ranked(engine: str, *hits: Any, **wishes: Any) -> RankedList:
    """A list of ids, or of (id, confidence) pairs, with falling scores."""
    made = []
    for place, hit in enumerate(hits):
        key, *said = hit if isinstance(hit, tuple) else (hit,)
        made.append({"id": key, "score": 10.0 - place, **({"confidence": said[0]} if said else {})})
    return RankedList(engine, made, **wishes)


def sums(fusion: FusedList) -> dict[str, float]:
    """fusedScore by key."""
    return {key: hit["meta"]["fusedScore"] for key, hit in zip(fusion.keys(), fusion.hits(), strict=True)}


def test_duplicates_in_a_list_count_once_and_later_ranks_close_up() -> None:
    """[x, x, y] and [y], all confidences 1: y before x, with exactly these sums."""
    fusion = fuse([ranked("A", ("x", 1), ("x", 1), ("y", 1)), ranked("B", ("y", 1))], FusionConfig())
    assert fusion.keys() == ["y", "x"]
    assert sums(fusion) == pytest.approx({"y": 1 / 62 + 1 / 61, "x": 1 / 61})
    assert fusion.duplicates == 2


def test_confidence_breaks_the_tie_between_disjoint_engines() -> None:
    """Of twelve engines with nothing in common the one that is sure of its first hit gets it into the answer."""
    falling = [0.40, 0.3, 0.25, 0.2, 0.15, 0.1, 0.08, 0.06, 0.04, 0.02]
    engines = []
    for number in range(1, 13):
        said = [0.99, *falling[1:]] if number == 12 else falling
        hits = [(f"{number:02}-{place}", confidence) for place, confidence in enumerate(said)]
        engines.append(ranked(f"engine{number:02}", *hits, fetch_k=20))
    assert fuse(engines, FusionConfig()).hits(0, 10)[0]["id"] == "12-0"


def test_weights_decide() -> None:
    """4:1 and 1:4 give different orders; with weight 0 an engine's own hits come last, with 0."""
    a, b = ("x", "y", "z"), ("z", "y", "x", "w")
    orders = {}
    for one, other in ((4.0, 1.0), (1.0, 4.0), (1.0, 0.0)):
        fusion = fuse([ranked("A", *a, weight=one), ranked("B", *b, weight=other)], FusionConfig())
        orders[one, other] = fusion.keys()
    assert orders[4.0, 1.0] != orders[1.0, 4.0]
    assert orders[1.0, 0.0] == ["x", "y", "z", "w"]
    assert sums(fusion)["w"] == 0
    assert fusion.scores()[-1] == 0


def test_an_engine_without_weight_has_no_say_in_the_consensus() -> None:
    """Its confidences change no other engine's points, and where nobody else has any the blend is plain."""
    heavy, light = ranked("A", "x", "y"), ranked("B", ("v", 0.9), ("w", 0.1), weight=0.0)
    assert sums(fuse([heavy, light], FusionConfig())) == sums(fuse([heavy, light], PLAIN))


def test_one_hit_against_three() -> None:
    """A single sure hit and three equal ones: no division by zero, nothing lost, confidences untouched."""
    fusion = fuse([ranked("A", ("a", 0.95)), ranked("B", ("b", 0.5), ("c", 0.5), ("d", 0.5))], FusionConfig())
    assert all(value > 0 for value in sums(fusion).values())
    assert {hit["id"]: hit["confidence"] for hit in fusion.hits()} == {"a": 0.95, "b": 0.5, "c": 0.5, "d": 0.5}


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.1, 0.2), (3.0, 1e-3), (1e6, 0.3)])
@pytest.mark.parametrize("confidence", [None, 1, 1.0])
def test_first_everywhere_is_exactly_one(weights: tuple[float, float], confidence: float | None) -> None:
    """A hit that all engines rank first, fully confident or silent, scores 1.0 and never more."""
    lists = [ranked(engine, ("x", confidence), weight=w) for engine, w in zip("AB", weights, strict=True)]
    assert fuse(lists, FusionConfig()).scores() == [1.0]


def test_an_engine_that_answered_nothing_counts_in_the_maximum() -> None:
    """First in one of two answers is half of what was possible."""
    assert fuse([ranked("A", "x"), ranked("B")], FusionConfig()).scores() == [0.5]


def test_boasts_are_discounted_and_modesty_is_believed() -> None:
    """Who is sure of everything gets no more than the consensus; who doubts everything stays behind."""
    honest = ranked("honest", ("h1", 0.8), ("h2", 0.3), ("h3", 0.1), fetch_k=3)
    boasting = ranked("boasting", *[(f"b{place}", 0.99) for place in range(3)], fetch_k=3)
    modest = ranked("modest", *[(f"m{place}", 0.01) for place in range(3)], fetch_k=3)
    points = sums(fuse([boasting, honest, modest], FusionConfig()))
    assert points["b0"] == pytest.approx(points["h1"], rel=1e-4)
    assert points["m0"] < points["h3"]


def test_ignored_confidences_are_absent() -> None:
    """An engine whose confidences are ignored is fused and reported as if it had given none."""
    kept, ignored = ranked("A", ("x", 0.9), ("y", 0.1)), ranked("B", ("x", 0.2), ("z", 7), confidence="ignore")
    without = ranked("B", "x", "z")
    assert sums(fuse([kept, ignored], FusionConfig())) == sums(fuse([kept, without], FusionConfig()))
    by_id = {hit["id"]: hit for hit in fuse([kept, ignored], FusionConfig()).hits()}
    assert by_id["x"]["confidence"] == 0.9
    assert "confidence" not in by_id["z"]
    assert "confidence" not in by_id["x"]["meta"]["engines"][1]
    assert fuse([kept, ignored], FusionConfig()).notes == ()


def test_an_independent_judge_may_turn_its_engine_round() -> None:
    """Where confidence follows a judge of its own, a later hit may pass an earlier one of the same engine."""
    hits = (("a", 0.4), ("b", 0.9), ("c", 0.1))
    rest = ranked("B", ("d", 0.5), ("e", 0.1), fetch_k=20)
    followed = fuse([ranked("A", *hits, fetch_k=20), rest], FusionConfig()).keys()
    judged = fuse([ranked("A", *hits, fetch_k=20, confidence="independent"), rest], FusionConfig()).keys()
    assert followed.index("a") < followed.index("b")
    assert judged.index("b") < judged.index("a")


def test_bad_confidences_are_noted() -> None:
    """The note names the engine and how many values count as missing."""
    fusion = fuse([ranked("A", ("x", 2), ("y", "high"), ("z", None))], FusionConfig())
    assert fusion.notes == ("A: 2 confidence value(s) not in [0,1] counted as missing",)
    assert all("confidence" not in hit for hit in fusion.hits()[:2])


def test_weighted_spreads_each_list_over_its_own_scores() -> None:
    """The best of a list gets its weight, the last nothing; a single score gets all."""
    a = RankedList("A", [{"id": "x", "score": 30}, {"id": "y", "score": 20}, {"id": "z", "score": 10}], weight=2.0)
    b = RankedList("B", [{"id": "y", "score": 0.5}])
    fusion = fuse([a, b], FusionConfig("weighted"))
    assert fusion.method == "weighted"
    assert sums(fusion) == pytest.approx({"x": 2.0, "y": 2.0, "z": 0.0})
    assert fusion.keys() == ["y", "x", "z"]
    assert fusion.scores() == pytest.approx([2 / 3, 2 / 3, 0])


def test_convex_measures_from_the_floor() -> None:
    """The last hit keeps what lies above the theoretical minimum; a score below it counts as the floor."""
    a = RankedList(
        "A", [{"id": "x", "score": 1.0}, {"id": "y", "score": 0.0}, {"id": "z", "score": -3}], score_floor=-1
    )
    fusion = fuse([a], FusionConfig("convex"))
    assert (fusion.method, fusion.notes) == ("convex", ())
    assert sums(fusion) == pytest.approx({"x": 1.0, "y": 0.5, "z": 0.0})


def test_convex_gives_nothing_where_the_best_is_the_floor() -> None:
    """A list whose best score is as low as scores can be adds nothing."""
    a = RankedList("A", [{"id": "x", "score": 0}], score_floor=0.0)
    assert sums(fuse([a], FusionConfig("convex"))) == {"x": 0}


def test_convex_needs_a_floor_of_everyone() -> None:
    """One engine without a floor, even without hits, makes it rrf, with a note that says whose floor is missing."""
    a, b = ranked("A", "x", score_floor=0.0), ranked("B")
    fusion = fuse([a, b], FusionConfig("convex"))
    assert fusion.method == "rrf"
    assert fusion.notes == ("fusion: rrf in place of convex, which needs a scoreFloor from B",)
    assert sums(fusion) == sums(fuse([a, b], FusionConfig("rrf")))


def test_scores_beyond_measure_stay_in_range() -> None:
    """Spans that overflow, vanish or are no numbers give points in [0, weight]."""
    for scores in ([1.7e308, 0, -1.7e308], [5e-324, 0.0], [math.inf, 1, 0], [math.nan, 2, 1], [math.nan], [-math.inf]):
        hits = [{"id": place, "score": score} for place, score in enumerate(scores)]
        for method in ("weighted", "convex"):
            fusion = fuse([RankedList("A", hits, score_floor=-1e308)], FusionConfig(method))
            assert all(0 <= value <= 1 for value in sums(fusion).values())


def test_nothing_at_all() -> None:
    """No engine, or none with hits, gives an empty fusion by every method."""
    for method in ("rrf", "weighted", "convex"):
        for lists in ([], [ranked("A"), ranked("B")]):
            fusion = fuse(lists, FusionConfig(method))
            assert (len(fusion), fusion.hits(), fusion.scores(), fusion.duplicates) == (0, [], [], 0)


def test_reciprocals_are_those_of_the_definition() -> None:
    """Ranks are counted from 1."""
    assert reciprocals(60, 3) == (1 / 61, 1 / 62, 1 / 63)


def test_long_lists_have_points_to_the_end() -> None:
    """A list longer than any table so far is fused whole."""
    fusion = fuse([ranked("A", *range(1000)), ranked("B", ("x", 0.5))], FusionConfig())
    assert fusion.keys()[-1] == "999"
    assert sums(fusion)["999"] > 0
