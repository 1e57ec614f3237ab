"""What must hold of joined graphs and memories whatever engines say, in whatever order they say it."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.federation.response_merge import (
    EngineResponse,
    by_priority,
    join_clues,
    join_communities,
    join_edges,
    join_followups,
    join_nodes,
    join_summaries,
    sort_value,
)
from tests.support.random_responses import responses

FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Such answers take long to draw."""


@FEW
@given(responses(), st.randoms())
def test_the_order_of_arrival_does_not_show(said: list[EngineResponse], random: Any) -> None:
    """The same answers in another order are joined into the same."""
    shuffled = list(said)
    random.shuffle(shuffled)
    for join in (join_communities, join_summaries, join_nodes, join_edges, join_clues, join_followups):
        assert join(said) == join(shuffled)


@FEW
@given(responses())
def test_no_two_communities_have_one_id(said: list[EngineResponse]) -> None:
    """And none is lost: each engine's ids are all there, once."""
    joined = join_communities(said)
    ids = [f"{community['id']}" for community in joined]
    assert len(ids) == len(set(ids))
    expected = sum(len({f"{one['id']}" for one in response.listed("communities")}) for response in said)
    assert len(joined) == expected
    scores = [sort_value(community.get("score")) for community in joined]
    assert scores == sorted(scores, reverse=True)


@FEW
@given(responses())
def test_a_community_that_clashes_with_nobody_keeps_its_id(said: list[EngineResponse]) -> None:
    """Only ids that meet are put behind their engine's name."""
    public = {
        f"{response.public(one['id'])}": response.engine for response in said for one in response.listed("communities")
    }
    for community in join_communities(said):
        name, owner = f"{community['id']}", community["meta"]["engine"]
        assert name in public or any(name == f"{owner}:{other}" for other in public) or name.startswith(f"{owner}:")


@FEW
@given(responses(), st.integers(0, 5))
def test_fewer_are_the_first_of_all(said: list[EngineResponse], most: int) -> None:
    """A bound cuts off the end."""
    assert join_communities(said, most) == join_communities(said)[:most]
    assert join_clues(said, most) == join_clues(said)[:most]


@FEW
@given(responses())
def test_every_node_and_edge_is_there_once(said: list[EngineResponse]) -> None:
    """Told apart by the ids that callers see."""
    nodes = [f"{node['id']}" for node in join_nodes(said)]
    assert len(nodes) == len(set(nodes))
    assert set(nodes) == {f"{response.public(node['id'])}" for response in said for node in response.listed("nodes")}
    ends = [(f"{edge['src']}", f"{edge['dst']}", edge.get("type")) for edge in join_edges(said)]
    assert len(ends) == len(set(ends))
    assert set(ends) == {
        (f"{response.public(edge['src'])}", f"{response.public(edge['dst'])}", edge.get("type"))
        for response in said
        for edge in response.listed("edges")
    }


@FEW
@given(responses())
def test_largest_measures_are_kept(said: list[EngineResponse]) -> None:
    """A node's score and an edge's weight are the most that anybody gives them."""
    for node in join_nodes(said):
        given_scores = [
            one["score"]
            for response in said
            for one in response.listed("nodes")
            if f"{response.public(one['id'])}" == f"{node['id']}" and "score" in one
        ]
        assert node.get("score") == max(given_scores, default=None)


@FEW
@given(responses())
def test_what_one_engine_says_keeps_its_order(said: list[EngineResponse]) -> None:
    """Alone, an engine's nodes and questions come as it put them."""
    for response in said:
        nodes = list(dict.fromkeys(f"{response.public(node['id'])}" for node in response.listed("nodes")))
        assert [f"{node['id']}" for node in join_nodes([response])] == nodes


@FEW
@given(responses())
def test_questions_come_once(said: list[EngineResponse]) -> None:
    """However they are spaced and cased; none is lost."""
    plain = [" ".join(question.casefold().split()) for question in join_followups(said)]
    assert len(plain) == len(set(plain))
    assert set(plain) == {" ".join(one.casefold().split()) for response in said for one in response.listed("followups")}


@FEW
@given(responses())
def test_clues_fall_in_weight_and_come_once(said: list[EngineResponse]) -> None:
    """The same query with the same seeds is one clue, with the largest weight."""
    clues = join_clues(said)
    weights = [sort_value(clue.get("weight")) for clue in clues]
    assert weights == sorted(weights, reverse=True)
    keys = [
        (" ".join(clue["query"].casefold().split()), *sorted(f"{seed}" for seed in clue.get("seedIds", ())))
        for clue in clues
    ]
    assert len(keys) == len(set(keys))
    heaviest = max(
        (sort_value(clue.get("weight")) for response in said for clue in response.listed("clues")), default=None
    )
    assert (weights[0] if weights else None) == heaviest


@FEW
@given(responses())
def test_summaries_name_their_engines_only_among_others(said: list[EngineResponse]) -> None:
    """One is answered as it is; none is no summary."""
    speaking = [response for response in by_priority(said) if response.result["summary"]]
    joined = join_summaries(said)
    if len(speaking) > 1:
        assert joined == "\n\n".join(f"{response.engine}: {response.result['summary']}" for response in speaking)
    else:
        assert joined == (speaking[0].result["summary"] if speaking else None)


@FEW
@given(responses())
def test_nothing_that_engines_sent_is_changed(said: list[EngineResponse]) -> None:
    """Joining makes fresh objects."""
    before = repr(said)
    for join in (join_communities, join_summaries, join_nodes, join_edges, join_clues, join_followups):
        join(said)
    assert repr(said) == before
