"""One engine's list made a ballot."""

from typing import Any

from app.fusion.ranked import RankedList, cast


def _hits(*ids: Any) -> list[dict[str, Any]]:
    return [{"id": value, "score": 1.0 - place / 10} for place, value in enumerate(ids)]


def test_a_list_without_duplicates_is_taken_as_it_is() -> None:
    """The usual case copies nothing."""
    ranked = RankedList("a", _hits("x", "y"))
    assert cast(ranked, "id") == (ranked, ranked.hits, {"x": 0, "y": 1})
    assert cast(ranked, "id")[1] is ranked.hits


def test_duplicates_keep_the_best_rank_and_ranks_close_up() -> None:
    """An id counts once, at its first place; what follows moves up."""
    source, hits, places = cast(RankedList("a", _hits("x", "x", "y", "x", "z")), "id")
    assert places == {"x": 0, "y": 1, "z": 2}
    assert [hits[place] for place in places.values()] == [source.hits[0], source.hits[2], source.hits[4]]


def test_ids_are_compared_as_strings() -> None:
    """1 and "1" are one document, 1.0 is another."""
    assert cast(RankedList("a", _hits(1, "1", 1.0)), "id")[2] == {"1": 0, "1.0": 1}


def test_a_namespace_prefixes_every_key() -> None:
    """Ids of an engine with a namespace meet only ids of that namespace."""
    assert cast(RankedList("a", _hits(7, "7", "x"), namespace="docs"), "id")[2] == {"docs:7": 0, "docs:x": 1}
