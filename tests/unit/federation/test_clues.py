"""Clues and followups of several engines: which say the same."""

from app.federation.response_merge import MOST_COMPARED, EngineResponse, join_clues, join_followups


def test_clues_with_other_seeds_are_other_clues() -> None:
    """In whatever order the seeds stand."""
    one = EngineResponse("a", {"clues": [{"query": "q", "seedIds": ["1", 2]}]})
    two = EngineResponse("b", {"clues": [{"query": "Q", "seedIds": ["2", "1"]}, {"query": "q"}]})
    clues = join_clues([one, two])
    assert [(clue["query"], clue.get("seedIds")) for clue in clues] == [("q", ["1", 2]), ("q", None)]


def test_seeds_that_name_nothing() -> None:
    """They are left out, and a `seedIds` that is no array with them."""
    response = EngineResponse(
        "a", {"clues": [{"query": "q", "seedIds": [True, None, "x"]}, {"query": "r", "seedIds": "x"}]}
    )
    assert [clue.get("seedIds") for clue in join_clues([response])] == [["x"], None]


def test_long_questions_are_compared_by_their_beginning() -> None:
    """Case and spaces make no other question of the first thousand characters; behind them every letter counts."""
    head = "Why so? " * 125
    asked = [head + "Tail", head.upper() + "Tail", head.lower() + "tail"]
    assert len(head) == MOST_COMPARED
    assert join_followups([EngineResponse("a", {"followups": asked})]) == [asked[0], asked[2]]


def test_followups_take_turns() -> None:
    """Everybody's first question comes before anybody's second."""
    responses = [
        EngineResponse("b", {"followups": ["b1", "b2"]}),
        EngineResponse("a", {"followups": ["a1", "a2", "a3"]}),
    ]
    assert join_followups(responses) == ["a1", "b1", "a2", "b2", "a3"]
