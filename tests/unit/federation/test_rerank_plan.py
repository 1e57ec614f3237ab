"""Reranking the union, planned: who may rerank, how deep engines are asked for it, and what rerankers say."""

import pytest

from app.federation.planner import plan_retrieve
from app.federation.rerank_plan import (
    PASSAGE_CHARACTERS,
    RerankPlan,
    passages_of,
    reranker_batches,
    values_in,
    without_rerank,
)
from app.fusion.ranked_lists import FusionConfig, RankedList
from app.fusion.rrf import fuse
from app.protocol.errors import OptionUnsupported, ProtocolViolation
from app.settings.schema import FusionSettings, RetrieveSettings
from tests.support.fake_engine import FakeEngine, Json, call_of, hit, members_of
from tests.support.planning import NOW, asked, planned, reasons, refused

RETRIEVES: Json = {"retrieve": {"maxK": 100}}


def judge(name: str = "judge", *, most: int | None = None, **wishes: object) -> FakeEngine:
    offer: Json = {"methods": ["llm"], "models": ["m"]} | ({} if most is None else {"maxCandidates": most})
    return FakeEngine(name, capabilities={"rerank": offer}, **wishes)  # type: ignore[arg-type]


def union_in(*engines: FakeEngine, **call: object) -> RerankPlan | None:
    return planned(members_of(*engines), **call).union


def test_the_plan_shows_who_reranks() -> None:
    """By priority, then by id; the retrieving engines hear nothing of it."""
    docs = FakeEngine("docs", capabilities=RETRIEVES)
    plan = planned(
        members_of(docs, judge("b"), judge("a"), judge("c", priority=2)), rerank={"method": "llm", "model": "m"}
    )
    assert asked(plan) == ["docs"]
    assert "rerank" not in plan.engine_calls[0].params
    assert plan.engine_calls[0].without == ()
    assert plan.union is not None
    assert repr(plan.union) == "<RerankPlan top 20 by c, a, b>"
    assert plan.union.params == {"query": "q", "method": "llm", "model": "m"}
    assert reasons(plan)["a"] == "capability"


@pytest.mark.parametrize(
    ("rerank", "top", "window"), [({}, 20, 20), ({"topN": 60}, 60, 60), ({"topN": 5000}, 1000, 1000)]
)
def test_how_many_are_reranked(rerank: Json, top: int, window: int) -> None:
    """`topN`, else as many as each engine is asked for; engines are asked deep enough, within their bounds."""
    plan = planned(members_of(FakeEngine("docs", capabilities=RETRIEVES), judge()), k=5, rerank=rerank)
    assert plan.union is not None
    assert (plan.union.top_n, plan.window, plan.engine_calls[0].asked) == (top, window, min(window, 100))


def test_engines_leave_time_for_the_reranker() -> None:
    """Where the deadline is what bounds them they get seven tenths of it, less the reserve."""
    engine = FakeEngine("docs", capabilities=RETRIEVES, timeoutMs=60_000)
    plan = planned(members_of(engine, judge()), rerank={}, seconds=10.0)
    assert plan.engine_calls[0].seconds == pytest.approx(6.9)
    assert plan.cut_by_caller


def test_who_reranks_in_retrieve_is_routed_to() -> None:
    """One engine that can, and the union is left alone; one that is left out for something else does not count."""
    able = FakeEngine("able", capabilities={"retrieve": {"rerankBuiltin": True}, "rerank": {"methods": ["llm"]}})
    plain = FakeEngine("plain", capabilities={"retrieve": {"modes": ["dense"]}})
    members = members_of(able, plain, judge())
    assert planned(members, rerank={"method": "llm"}).union is None
    plan = planned(members, rerank={"method": "llm"}, mode="dense")
    assert asked(plan) == ["plain"]
    assert plan.union is not None


def test_who_may_not_rerank() -> None:
    """Engines not named, not reached, in the path, or without the method."""
    docs = FakeEngine("docs", capabilities=RETRIEVES)
    other = FakeEngine("other", capabilities={"rerank": {}})
    looped = FakeEngine("looped", capabilities={"rerank": {"methods": ["llm"]}}, gateway_id="up")
    away = FakeEngine("away", reached=False)
    members = members_of(docs, other, looped, away, judge())
    rerank = {"method": "llm"}
    plan = planned(members, rerank=rerank, meta={"federation": {"path": ["up"]}})
    assert plan.union is not None
    assert [engine.id for engine in plan.union.rerankers] == ["judge"]
    fault = refused(members, rerank=rerank, x_gateway={"engines": ["docs", "other"]})
    assert isinstance(fault, OptionUnsupported)
    assert fault.data["option"] == "rerank"


def test_another_option_that_nobody_has() -> None:
    """The union helps nothing there: that option is what is refused."""
    members = members_of(FakeEngine("docs", capabilities=RETRIEVES), judge())
    assert refused(members, rerank={}, mode="dense").data["option"] == "mode"


def test_without_a_wish_nothing_is_planned() -> None:
    """Nor with `rerank: false`, nor if it is disabled."""
    engines = [FakeEngine("docs", capabilities=RETRIEVES), judge()]
    assert union_in(*engines) is None
    assert union_in(*engines, rerank=False) is None
    with pytest.raises(OptionUnsupported):
        plan_retrieve(
            call_of(rerank={}), members_of(*engines), NOW, RetrieveSettings(rerank_union=False), FusionSettings()
        )


def test_the_call_for_those_who_retrieve() -> None:
    """All but `rerank`, and a part of the time; the call itself stays as it is."""
    call = call_of(rerank={"method": "llm"}, k=3, now=NOW, seconds=10.0)
    bare = without_rerank(call, NOW)
    assert bare.params.raw == {"query": "q", "k": 3}
    assert bare.deadline == pytest.approx(NOW + 7)
    assert "rerank" in call.params.raw


def test_whom_to_ask_in_which_order() -> None:
    """Who takes all passages first, by priority among them; then who takes more."""
    union = RerankPlan((judge("s", most=3), judge("a"), judge("m", most=5), judge("x", most=50)), 10, {})
    assert [(engine.id, takes) for engine, takes in reranker_batches(union, 10)] == [
        ("a", 10),
        ("x", 10),
        ("m", 5),
        ("s", 3),
    ]


def test_passages() -> None:
    """The beginning of each text of the best; who has none has no passage."""
    hits = [hit(1, 3, text="x" * (PASSAGE_CHARACTERS + 5)), hit(2, 2, text=" "), hit(3, 1), hit(4, 0, text="t")]
    fusion = fuse([RankedList("a", hits)], FusionConfig())
    assert passages_of(fusion, 4) == {0: "x" * PASSAGE_CHARACTERS, 3: "t"}
    assert list(passages_of(fusion, 2)) == [0]


def test_values() -> None:
    """`scores` for all, or `results` for those that were judged."""
    assert values_in(2)({"scores": [1, 0.5]}) == {"values": {0: 1, 1: 0.5}}
    assert values_in(3)({"results": [{"index": 2, "score": 0.9}]}) == {"values": {2: 0.9}}
    for result in ({}, {"results": []}, {"scores": [1]}, {"scores": None, "results": None}):
        with pytest.raises(ProtocolViolation):
            values_in(2)(result)
