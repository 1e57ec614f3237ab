"""Ranked lists made ballots, their documents numbered."""

from typing import Any

from app.fusion.document_index import DocumentIndex
from app.fusion.ranked_lists import RankedList


def _hits(*ids: Any) -> list[dict[str, Any]]:
    return [{"id": value, "score": 1.0 - place / 10} for place, value in enumerate(ids)]


def test_a_list_without_duplicates_is_taken_as_it_is() -> None:
    """The usual case copies nothing."""
    ranked = RankedList("a", _hits("x", "y"))
    document_index = DocumentIndex([ranked], "id")
    assert document_index.lists == [(ranked, ranked.hits, [0, 1])]
    assert document_index.lists[0][1] is ranked.hits
    assert (document_index.keys, document_index.numbers) == (["x", "y"], {"x": 0, "y": 1})


def test_duplicates_keep_the_best_rank_and_ranks_close_up() -> None:
    """An id counts once, at its first place; what follows moves up, whether another list has named it or not."""
    hits = _hits("x", "x", "y", "x", "z")
    for before in ([], [RankedList("0", _hits("z", "x"))]):
        document_index = DocumentIndex([*before, RankedList("a", hits)], "id")
        _, kept, named = document_index.lists[-1]
        assert [document_index.keys[number] for number in named] == ["x", "y", "z"]
        assert kept == [hits[0], hits[2], hits[4]]


def test_ids_are_compared_as_strings() -> None:
    """1 and "1" are one document, 1.0 is another."""
    assert DocumentIndex([RankedList("a", _hits(1, "1", 1.0))], "id").keys == ["1", "1.0"]


def test_a_namespace_prefixes_every_key() -> None:
    """Ids of an engine with a namespace meet only ids of that namespace."""
    document_index = DocumentIndex(
        [RankedList("a", _hits(7, "7", "x"), namespace="docs"), RankedList("b", _hits("x"))], "id"
    )
    assert document_index.keys == ["docs:7", "docs:x", "x"]


def test_copies_come_in_the_order_of_the_ballots_with_their_ranks() -> None:
    """Ranks are counted after inner duplicates are gone."""
    a = RankedList("a", [{"id": "y"}, {"id": "y"}, {"id": "x"}])
    b = RankedList("b", [{"id": "x"}])
    c = RankedList("c", [{"id": "z"}, {"id": "x"}])
    document_index = DocumentIndex([a, b, RankedList("b2", []), c], "id")
    assert document_index.copies(document_index.numbers["x"]) == [
        (a, 2, {"id": "x"}),
        (b, 1, {"id": "x"}),
        (c, 2, {"id": "x"}),
    ]
    assert document_index.copies(document_index.numbers["y"]) == [(a, 1, {"id": "y"})]
    assert (document_index.places("x"), document_index.places("nowhere")) == ([(0, 1), (1, 0), (3, 1)], [])


def test_a_document_index_tells_how_much_is_on_it() -> None:
    """Its repr counts documents, ballots, and what several of them name."""
    document_index = DocumentIndex([RankedList("a", _hits("x", "y")), RankedList("b", _hits("y"))], "id")
    assert repr(document_index) == "<DocumentIndex: 2 documents in 2 lists, 1 in several>"
