"""Sums and the total order."""

import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from app.fusion.document_index import DocumentIndex
from app.fusion.ranked_lists import RankedList
from app.fusion.score_table import UNIT, ScoreTable, count, grid_for


def _count(lists: dict[str, tuple[list[str], list[float]]], weights: dict[str, float] | None = None) -> ScoreTable:
    ranked, points = [], []
    grid = grid_for(float(len(lists)))
    for engine, (ids, gains) in sorted(lists.items()):
        hits = [{"id": key, "score": 0} for key in ids]
        ranked.append(RankedList(engine, hits, (weights or {}).get(engine, 1.0)))
        points.append([(point + grid) - grid for point in gains])
    return count(DocumentIndex(ranked, "id"), points, float(len(lists)))


def order(tally: ScoreTable, stop: int | None = None) -> list[str]:
    """The documents' keys, best first."""
    return [tally.document_index.keys[number] for number in tally.order(stop)]


def test_higher_sums_come_first() -> None:
    """Sums decide before anything else."""
    tally = _count({"A": (["x", "y"], [0.5, 0.4]), "B": (["y"], [0.2])})
    assert order(tally) == ["y", "x"]
    assert tally.units[tally.document_index.numbers["y"]] / UNIT == 0.6


def test_equal_sums_fall_to_the_summed_weight() -> None:
    """Two light engines together outweigh a heavier one."""
    lists = {"A": (["a"], [0.4]), "B": (["b"], [0.2]), "C": (["b"], [0.2])}
    assert order(_count(lists, {"A": 3.0, "B": 1.0, "C": 1.0})) == ["a", "b"]
    assert order(_count(lists, {"A": 1.5, "B": 1.0, "C": 1.0})) == ["b", "a"]


def test_summed_weights_tie_whatever_engines_make_them_up() -> None:
    """0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 are the same weight, so the id decides."""
    weights = dict(zip("ABCDEF", (0.1, 0.2, 0.3, 0.3, 0.2, 0.1), strict=True))
    lists = {engine: (["y" if engine in "ABC" else "x"], [0.25]) for engine in weights}
    assert order(_count(lists, weights)) == ["x", "y"]


def test_equal_weights_fall_to_the_id() -> None:
    """Ids are compared as strings."""
    assert order(_count({"A": (["9"], [0.5]), "B": (["10"], [0.5]), "C": (["é"], [0.5])})) == ["10", "9", "é"]


def test_differences_below_the_unit_are_ties() -> None:
    """What differs by less than 1e-12 is equal."""
    assert order(_count({"A": (["b"], [0.5 + 1e-14]), "B": (["a"], [0.5])})) == ["a", "b"]
    assert order(_count({"A": (["b"], [0.5 + 1e-11]), "B": (["a"], [0.5])})) == ["b", "a"]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=100)
def test_sums_on_the_grid_are_exact_in_any_order(points: list[float], chance: random.Random) -> None:
    """Adding one by one gives what `math.fsum` gives, and hardly differs from the points before."""
    grid = grid_for(float(len(points)))
    on_grid = [(point + grid) - grid for point in points]
    expected = math.fsum(on_grid)
    assert sum(on_grid) == expected
    assert sum(chance.sample(on_grid, len(on_grid))) == expected
    assert abs(expected - math.fsum(points)) < len(points) ** 2 * 1e-15


def test_under_other_identities_the_kept_id_settles_ties() -> None:
    """A tie between two uris falls to the id that the caller sees."""
    hits = [{"id": "b", "score": 1, "citation": {"uri": "https://a"}}]
    others = [{"id": "a", "score": 1, "citation": {"uri": "https://b"}}]
    document_index = DocumentIndex([RankedList("A", hits), RankedList("B", others)], "uri")
    assert order(count(document_index, [[0.5], [0.5]], 2.0)) == ["uri:https://b", "uri:https://a"]


def test_ties_are_settled_as_far_as_somebody_looks() -> None:
    """The best of many equals is right at once, what is beyond is settled when it is asked for, and both agree."""
    ids = [f"{number:03}" for number in range(50)]
    tally = _count({f"E{key}": ([key], [0.5 if key < "030" else 0.25]) for key in reversed(ids)})
    assert repr(tally) == "<ScoreTable: 50 documents, 0 in final order>"
    assert order(tally, 1)[:1] == ["000"]
    assert repr(tally) == "<ScoreTable: 50 documents, 30 in final order>"
    assert order(tally, 31)[:31] == ids[:31]
    assert order(tally) == ids
