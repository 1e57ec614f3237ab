"""What must hold of joined graphs and memories whatever engines say, in whatever order they say it."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.federation.clues import join_clues, join_followups
from app.federation.communities import join_communities, join_summaries
from app.federation.neighborhood import join_edges, join_nodes
from app.federation.engine_response import EngineResponse, in_order, measure
from tests.support.voices import voices

FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Such answers take long to draw."""


@FEW
@given(voices(), st.randoms())
def test_the_order_of_arrival_does_not_show(said: list[EngineResponse], random: Any) -> None:
    """The same answers in another order are joined into the same."""
    shuffled = list(said)
    random.shuffle(shuffled)
    for join in (join_communities, join_summaries, join_nodes, join_edges, join_clues, join_followups):
        assert join(said) == join(shuffled)


@FEW
@given(voices())
def test_no_two_communities_have_one_id(said: list[EngineResponse]) -> None:
    """And none is lost: each engine's ids are all there, once."""
    joined = join_communities(said)
    ids = [f"{community['id']}" for community in joined]
    assert len(ids) == len(set(ids))
    expected = sum(len({f"{one['id']}" for one in voice.listed("communities")}) for voice in said)
    assert len(joined) == expected
    scores = [measure(community.get("score")) for community in joined]
    assert scores == sorted(scores, reverse=True)


@FEW
@given(voices())
def test_a_community_that_clashes_with_nobody_keeps_its_id(said: list[EngineResponse]) -> None:
    """Only ids that meet are put behind their engine's name."""
    public = {f"{voice.public(one['id'])}": voice.engine for voice in said for one in voice.listed("communities")}
    for community in join_communities(said):
        name, owner = f"{community['id']}", community["meta"]["engine"]
        assert name in public or any(name == f"{owner}:{other}" for other in public) or name.startswith(f"{owner}:")


@FEW
@given(voices(), st.integers(0, 5))
def test_fewer_are_the_first_of_all(said: list[EngineResponse], most: int) -> None:
    """A bound cuts off the end."""
    assert join_communities(said, most) == join_communities(said)[:most]
    assert join_clues(said, most) == join_clues(said)[:most]


@FEW
@given(voices())
def test_every_node_and_edge_is_there_once(said: list[EngineResponse]) -> None:
    """Told apart by the ids that callers see."""
    nodes = [f"{node['id']}" for node in join_nodes(said)]
    assert len(nodes) == len(set(nodes))
    assert set(nodes) == {f"{voice.public(node['id'])}" for voice in said for node in voice.listed("nodes")}
    ends = [(f"{edge['src']}", f"{edge['dst']}", edge.get("type")) for edge in join_edges(said)]
    assert len(ends) == len(set(ends))
    assert set(ends) == {
        (f"{voice.public(edge['src'])}", f"{voice.public(edge['dst'])}", edge.get("type"))
        for voice in said
        for edge in voice.listed("edges")
    }


@FEW
@given(voices())
def test_largest_measures_are_kept(said: list[EngineResponse]) -> None:
    """A node's score and an edge's weight are the most that anybody gives them."""
    for node in join_nodes(said):
        given_scores = [
            one["score"]
            for voice in said
            for one in voice.listed("nodes")
            if f"{voice.public(one['id'])}" == f"{node['id']}" and "score" in one
        ]
        assert node.get("score") == max(given_scores, default=None)


@FEW
@given(voices())
def test_what_one_engine_says_keeps_its_order(said: list[EngineResponse]) -> None:
    """Alone, an engine's nodes and questions come as it put them."""
    for voice in said:
        nodes = list(dict.fromkeys(f"{voice.public(node['id'])}" for node in voice.listed("nodes")))
        assert [f"{node['id']}" for node in join_nodes([voice])] == nodes


@FEW
@given(voices())
def test_questions_come_once(said: list[EngineResponse]) -> None:
    """However they are spaced and cased; none is lost."""
    plain = [" ".join(question.casefold().split()) for question in join_followups(said)]
    assert len(plain) == len(set(plain))
    assert set(plain) == {" ".join(one.casefold().split()) for voice in said for one in voice.listed("followups")}


@FEW
@given(voices())
def test_clues_fall_in_weight_and_come_once(said: list[EngineResponse]) -> None:
    """The same query with the same seeds is one clue, with the largest weight."""
    clues = join_clues(said)
    weights = [measure(clue.get("weight")) for clue in clues]
    assert weights == sorted(weights, reverse=True)
    keys = [
        (" ".join(clue["query"].casefold().split()), *sorted(f"{seed}" for seed in clue.get("seedIds", ())))
        for clue in clues
    ]
    assert len(keys) == len(set(keys))
    heaviest = max((measure(clue.get("weight")) for voice in said for clue in voice.listed("clues")), default=None)
    assert (weights[0] if weights else None) == heaviest


@FEW
@given(voices())
def test_summaries_name_their_engines_only_among_others(said: list[EngineResponse]) -> None:
    """One is answered as it is; none is no summary."""
    speaking = [voice for voice in in_order(said) if voice.result["summary"]]
    joined = join_summaries(said)
    if len(speaking) > 1:
        assert joined == "\n\n".join(f"{voice.engine}: {voice.result['summary']}" for voice in speaking)
    else:
        assert joined == (speaking[0].result["summary"] if speaking else None)


@FEW
@given(voices())
def test_nothing_that_engines_sent_is_changed(said: list[EngineResponse]) -> None:
    """Joining makes fresh objects."""
    before = repr(said)
    for join in (join_communities, join_summaries, join_nodes, join_edges, join_clues, join_followups):
        join(said)
    assert repr(said) == before
