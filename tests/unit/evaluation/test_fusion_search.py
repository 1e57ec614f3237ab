"""Fusing pooled lists and searching for better settings."""

from collections.abc import Callable
from dataclasses import replace

from app.evaluation.fusion_search import MIN_GAIN, RRF_KS, FusionParameters, TrialPool, search, trials_of
from app.fusion.ranked_lists import FusionConfig, RankedList
from app.fusion.rrf import fuse
from tests.support.judged_gateway import hits

START = FusionParameters({"a": 1.0, "b": 1.0}, 60, 0.8)
LISTS = {"a": hits("x", "y", confidence=(0.9, 0.1)), "b": hits("z", "y", confidence=(0.2, 0.8))}


def counting(
    gauge: Callable[[FusionParameters], float],
) -> tuple[Callable[[FusionParameters], float], list[FusionParameters]]:
    """The gauge, and the blends that it has been asked for."""
    asked: list[FusionParameters] = []

    def counted(blend: FusionParameters) -> float:
        asked.append(blend)
        return gauge(blend)

    return counted, asked


def test_a_pool_is_fused_as_the_gateway_fuses() -> None:
    """Weights, rrfK, confidence weight, depth and readings all reach the fusion."""
    pool = TrialPool({"q": LISTS}, {"b": "independent"}, 50)
    blend = FusionParameters({"a": 2.0, "b": 3.0}, 10, 0.5)
    lists = [
        RankedList("a", LISTS["a"], weight=2.0, fetch_k=50),
        RankedList("b", LISTS["b"], weight=3.0, fetch_k=50, confidence="independent"),
    ]
    expected = fuse(lists, FusionConfig(rrf_k=10, confidence_weight=0.5)).keys()
    assert pool.rankings(blend, 50) == {"q": expected}
    assert pool.rankings(blend, 1) == {"q": expected[:1]}
    assert pool.rankings(replace(blend, weights={"a": 0.0, "b": 1.0}), 50)["q"][-1] == "x"


def test_a_pool_can_be_parted() -> None:
    """Some of the queries, the same otherwise."""
    pool = TrialPool({"q": LISTS, "r": {"a": LISTS["a"]}}, {}, 50)
    assert pool.part(["r"]) == TrialPool({"r": {"a": LISTS["a"]}}, {}, 50)
    assert pool.engines() == ["a", "b"]


def test_the_search_finds_what_one_setting_after_another_can_find() -> None:
    """From the present settings to the best value of each."""
    best = FusionParameters({"a": 0.25, "b": 3.0}, 20, 0.2)

    def gauge(blend: FusionParameters) -> float:
        return -(
            abs(blend.weights["a"] - best.weights["a"])
            + abs(blend.weights["b"] - best.weights["b"])
            + abs(blend.rrf_k - best.rrf_k)
            + abs(blend.confidence_weight - best.confidence_weight)
        )

    gauge, asked = counting(gauge)
    assert search(START, gauge) == best
    assert len(asked) <= trials_of(2)


def test_what_gains_next_to_nothing_is_not_changed() -> None:
    """A flat or an almost flat gauge leaves everything as it is, after one round."""
    gauge, asked = counting(lambda blend: MIN_GAIN / 2 if blend.rrf_k == RRF_KS[0] else 0.0)
    assert search(START, gauge) == START
    assert len(asked) < trials_of(2) / 2


def test_weights_are_tried_in_proportion_to_the_present_ones() -> None:
    """Up to three times the largest, and never beyond what a registry may say."""
    gauge, asked = counting(lambda _: 0.0)
    search(replace(START, weights={"a": 10.0, "b": 1.0}), gauge)
    assert max(blend.weights["b"] for blend in asked) == 30
    asked.clear()
    search(replace(START, weights={"a": 1e6, "b": 0.0}), gauge)
    assert max(blend.weights["b"] for blend in asked) == 1e6
    search(replace(START, weights={"a": 0.0, "b": 0.0}), gauge)
