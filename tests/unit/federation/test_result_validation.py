"""Answers about graphs and memories as they come in: what is malformed, too much, or missing."""

from typing import Any

import pytest

from app.federation.hit_validation import MAX_SEEDS, read_result
from app.federation.outcome import MAX_HITS, Outcome
from app.protocol.errors import ProtocolViolation
from tests.support.fake_engine import hit


def read(result: dict[str, Any], *needed: str) -> Outcome:
    return read_result(needed, "e", result, 0.1, 1, 10)


def test_clean_answers_stay_as_they_are() -> None:
    """Known fields and unknown ones; nulls count as absent."""
    result = {"communities": [{"id": 1}], "summary": "s", "x": {"y": 1}, "nodes": None}
    outcome = read(result, "communities")
    assert outcome.result == {"communities": [{"id": 1}], "summary": "s", "x": {"y": 1}}
    assert (outcome.status, outcome.notes, outcome.malformed, outcome.size) == ("ok", (), 0, 10)


def test_hits_are_read_as_those_of_retrieve() -> None:
    """They are in `hits`, malformed ones dropped with a note of their own."""
    outcome = read({"hits": [hit("a"), {"id": "b"}], "followups": ["f", ""]}, "hits")
    assert [one["id"] for one in outcome.hits] == ["a"]
    assert outcome.result == {"followups": ["f"]}
    assert outcome.malformed == 2
    assert [note.split("(")[0] for note in outcome.notes] == ["e: 1 malformed hit", "e: 1 malformed member"]


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("communities", [{"id": "a"}], [{"id": None}, {"id": True}, {}, "a"]),
        ("nodes", [{"id": 1.5}], [{"id": ""}, None]),
        ("edges", [{"src": 1, "dst": "2"}], [{"src": 1}, {"dst": 1}, []]),
        ("followups", ["f"], ["", " ", 7, None]),
        ("clues", [{"query": "q"}, {"seedIds": [1]}], [{}, {"query": ""}, {"seedIds": [None]}, {"query": 7}, "c"]),
    ],
)
def test_malformed_members_are_dropped(field: str, good: list[Any], bad: list[Any]) -> None:
    """Each kind by its own rule, and counted."""
    outcome = read({field: [*bad, *good]}, field)
    assert outcome.result == {field: good}
    assert outcome.malformed == len(bad)


def test_of_a_clue_s_seeds_the_first_count() -> None:
    """Whoever sends very many cannot make everybody wait while they are read; that some are missing is noted."""
    many = list(range(MAX_SEEDS + 1))
    outcome = read({"clues": [{"seedIds": many}, {"seedIds": [None] * MAX_SEEDS + [1]}]}, "clues")
    assert outcome.result == {"clues": [{"seedIds": many[:MAX_SEEDS]}]}
    assert outcome.malformed == 2


def test_fields_of_another_type() -> None:
    """A list that is none is empty, a summary that is no text is left out."""
    outcome = read({"nodes": [], "edges": {}, "summary": 7}, "nodes")
    assert outcome.result == {"nodes": [], "edges": []}
    assert outcome.malformed == 2


def test_too_many_are_cut() -> None:
    """Fan-in stays bounded for every kind."""
    outcome = read({"nodes": [{"id": place} for place in range(MAX_HITS + 5)]}, "nodes")
    assert outcome.result is not None
    assert len(outcome.result["nodes"]) == MAX_HITS
    assert outcome.excess == 5
    assert outcome.notes == (f"e: 5 member(s) beyond the first {MAX_HITS} of a list dropped",)


@pytest.mark.parametrize("result", [{}, {"nodes": None}, {"nodes": {}}, {"edges": []}])
def test_what_the_method_is_about_must_be_there(result: dict[str, Any]) -> None:
    """One of the needed fields, of its type."""
    with pytest.raises(ProtocolViolation, match="no 'nodes'"):
        read(result, "nodes")
    assert read({**result, "summary": "s", "communities": "x"}, "summary", "communities").malformed >= 1


def test_odd_fields_of_members_are_left_out() -> None:
    """The member stays, without what has another shape than RCP's; it counts as malformed, and the caller is told."""
    outcome = read(
        {
            "communities": [{"id": 1, "level": "top", "summary": "s"}, {"id": 2, "level": 0, "summary": []}],
            "edges": [{"src": "a", "dst": "b", "weight": "heavy"}],
            "clues": [{"query": "q", "seedIds": ["a", [], 7], "weight": None}],
        },
        "communities",
    )
    assert outcome.result == {
        "communities": [{"id": 1, "summary": "s"}, {"id": 2, "level": 0}],
        "edges": [{"src": "a", "dst": "b"}],
        "clues": [{"query": "q", "seedIds": ["a", 7]}],
    }
    assert (outcome.malformed, outcome.notes) == (4, ("e: 4 malformed member(s) of its result dropped",))
