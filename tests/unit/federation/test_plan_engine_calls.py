"""The plan: what each engine is sent, how much it is asked for, for how long, and how far down the line."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.federation.planner import plan_retrieve
from app.protocol.errors import InvalidParams, OptionUnsupported
from app.settings.schema import FusionSettings, RetrieveSettings
from tests.support.fake_engine import FakeEngine, call_of, members_of
from tests.support.planning import NOW, asked, only_engine_call, planned, reasons, refused

# How much is asked for


@pytest.mark.parametrize(
    ("k", "max_k", "expected"),
    [
        pytest.param(None, 100, 20, id="default k"),
        pytest.param(1, 100, 20, id="small k"),
        pytest.param(10, 100, 20, id="k at the window"),
        pytest.param(11, 100, 22, id="k above the window"),
        pytest.param(50, 100, 100, id="window raised (B15)"),
        pytest.param(50, 20, 20, id="clamped to the engine's bound (B15)"),
        pytest.param(10, None, 20, id="engine without a bound"),
    ],
)
def test_window(k: int | None, max_k: int | None, expected: int) -> None:
    """Each engine is asked for twice k, for 20 at least, and never for more than it serves."""
    offer = {} if max_k is None else {"maxK": max_k}
    engine_call = only_engine_call(capabilities={"retrieve": offer}, **({} if k is None else {"k": k}))
    assert engine_call.params["k"] == engine_call.asked == expected


def test_k_is_clamped_to_ours() -> None:
    """A k above our own bound is clamped, not refused."""
    plan = planned(members_of(FakeEngine("a", capabilities={"retrieve": {}}), max_k=30), k=1000)
    assert plan.k == 30
    assert plan.engine_calls[0].asked == 60


@given(st.integers(1, 10), st.integers(1, 500) | st.none())
def test_smaller_k_asks_the_same(k: int, max_k: int | None) -> None:
    """Up to the default k every k asks an engine for the same, so its answers are prefixes of each other."""
    capabilities = {"retrieve": {} if max_k is None else {"maxK": max_k}}
    assert (
        only_engine_call(capabilities=capabilities, k=k).params
        == only_engine_call(capabilities=capabilities, k=10).params
    )


@st.composite
def funnels(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """(params whose funnel holds, capabilities with bounds)."""
    k = draw(st.integers(1, 60))
    params: dict[str, Any] = {"k": k}
    bound = k
    if draw(st.booleans()):
        rerank: dict[str, Any] = {"method": "llm"}
        if draw(st.booleans()):
            bound = rerank["topN"] = draw(st.integers(k, 200))
        params["rerank"] = draw(st.sampled_from([rerank, rerank, False]))
    if draw(st.booleans()):
        params["candidateK"] = draw(st.integers(bound, 400))
    offer: dict[str, Any] = {"rerankBuiltin": draw(st.booleans())}
    if draw(st.booleans()):
        offer["maxK"] = draw(st.integers(1, 100))
    reranker: dict[str, Any] = {"methods": ["llm"]}
    if draw(st.booleans()):
        reranker["maxCandidates"] = draw(st.integers(1, 300))
    return params, {"retrieve": offer, "rerank": reranker}


@given(funnels(), st.booleans())
def test_funnel_holds_at_every_engine(funnel: tuple[dict[str, Any], dict[str, Any]], strict: bool) -> None:
    """After over-fetching, candidateK >= rerank.topN >= k still holds for what an engine is sent (RCP §7.7)."""
    params, capabilities = funnel
    try:
        engine_call = only_engine_call(capabilities=capabilities, strict=strict, **params)
    except OptionUnsupported:
        assert strict
        assert not capabilities["retrieve"]["rerankBuiltin"]
        return
    sent = engine_call.params
    assert sent["k"] == engine_call.asked >= 1
    most = capabilities["retrieve"].get("maxK")
    assert most is None or sent["k"] <= most
    rerank = sent.get("rerank") or {}
    top = rerank.get("topN", sent["k"])
    assert top >= sent["k"]
    assert sent.get("candidateK", top) >= top
    if "topN" in rerank and "maxCandidates" in capabilities["rerank"]:
        assert top <= capabilities["rerank"]["maxCandidates"]
    if params.get("rerank") is False:
        assert sent["rerank"] is False


def test_left_out_rerank_bounds_nothing() -> None:
    """A rerank that an engine is not asked for does not make it return less."""
    capabilities = {"retrieve": {}, "rerank": {"methods": ["llm"], "maxCandidates": 5}}
    engine_call = only_engine_call(capabilities=capabilities, k=3, rerank={"method": "llm", "topN": 4}, strict=False)
    assert "rerank" not in engine_call.params
    assert engine_call.asked == 20


# What is sent


def test_own_options_are_not_forwarded() -> None:
    """What the gateway does itself never reaches an engine (decision 4)."""
    engine_call = only_engine_call(
        minScore=0.5,
        tokenBudget=100,
        cursor="c",
        x_gateway={"identity": "id"},
        meta={"progressToken": 1},
    )
    assert engine_call.params.keys() == {"query", "k", "_meta"}
    assert engine_call.params["_meta"].keys() == {"federation", "deadlineMs"}


@pytest.mark.parametrize(
    ("session", "told"),
    [(None, True), ({}, True), ({"ttlSeconds": 5}, True), ({"dedup": False}, True), ({"dedup": True}, False)],
)
def test_session_is_scoped_and_kept_from_engines_that_dedup(session: Any, told: bool) -> None:
    """Engines see a session id of ours; one that leaves out hits by itself sees none, since it would leave out hits
    that were fetched and never shown."""
    capabilities = {"retrieve": {}} if session is None else {"retrieve": {}, "session": session}
    first, again, other = (
        only_engine_call(capabilities=capabilities, sessionId=name).params for name in ("s", "s", "t")
    )
    if not told:
        assert "sessionId" not in first
        return
    assert first["sessionId"] == again["sessionId"] != other["sessionId"]
    assert first["sessionId"] != "s"


def test_other_options_are_forwarded_as_they_are() -> None:
    """Options that engines honour, unknown ones and vendors' are forwarded untouched; nulls are absent."""
    capabilities = {
        "retrieve": {"modes": ["dense"], "units": ["chunk"], "levels": 3},
        "filter": {"fields": {"at": "date"}},
        "transform": {"methods": ["hyde"]},
    }
    sent: dict[str, Any] = {
        "mode": "dense",
        "unit": "chunk",
        "level": 1,
        "seed": 42,
        "rewrite": "hyde",
        "recency": {"field": "at", "halfLifeDays": 3},
        "filter": {"field": "at", "op": "exists", "value": True},
        "includeText": False,
        "strict": True,
        "x-acme": {"boost": [1, None]},
        "brandNew": "yes",
    }
    engine_call = only_engine_call(capabilities=capabilities, **sent, mmr=None)
    assert {key: value for key, value in engine_call.params.items() if key not in ("query", "k", "_meta")} == sent


@pytest.mark.parametrize(
    "own", [{"tokenBudget": 100}, {"x_gateway": {"identity": "content"}}], ids=["budget", "content"]
)
def test_text_is_asked_for_where_the_gateway_needs_it(own: dict[str, Any]) -> None:
    """`includeText: false` is not forwarded while the gateway itself needs the text to do what was asked."""
    assert only_engine_call(includeText=False).params["includeText"] is False
    assert "includeText" not in only_engine_call(includeText=False, **own).params


def test_engines_share_no_params() -> None:
    """What is changed for one engine never shows at another."""
    members = members_of(
        FakeEngine("a", capabilities={"retrieve": {"maxK": 5, "rerankBuiltin": True}}),
        FakeEngine("b", capabilities={"retrieve": {"rerankBuiltin": True}}),
    )
    plan = planned(members, k=3, rerank={"topN": 4}, candidateK=4)
    first, second = (engine_call.params for engine_call in plan.engine_calls)
    assert (first["k"], first["rerank"], first["candidateK"]) == (5, {"topN": 5}, 5)
    assert (second["k"], second["rerank"], second["candidateK"]) == (20, {"topN": 20}, 20)


# Time


@pytest.mark.parametrize(
    ("seconds", "timeout_ms", "expected"),
    [(10.0, 2000, 2.0), (10.0, 10_000, 9.9), (10.0, 60_000, 9.9), (0.5, 2000, 0.4), (0.1, 2000, 0.08)],
)
def test_engine_call_gets_its_own_timeout_or_what_remains(seconds: float, timeout_ms: int, expected: float) -> None:
    """An engine has the smaller of its own timeout and what remains less the reserve (B28)."""
    engine = FakeEngine("docs", timeoutMs=timeout_ms)
    plan = planned(members_of(engine), seconds=seconds)
    (engine_call,) = plan.engine_calls
    assert engine_call.seconds == pytest.approx(expected)
    assert engine_call.deadline == pytest.approx(NOW + expected)
    assert engine_call.params["_meta"]["deadlineMs"] == pytest.approx(expected * 1000, abs=1)
    assert plan.cut_by_caller is (expected * 1000 < timeout_ms)


@given(st.integers(2, 20_000), st.integers(1, 30_000), st.sampled_from([0, 1, 100, 5000]))
def test_less_time_is_passed_on_than_there_is(deadline_ms: int, timeout_ms: int, reserve_ms: int) -> None:
    """Every engine is told strictly less time than the caller has, in whole milliseconds and at least one (RCP §16)."""
    engine = FakeEngine("docs", timeoutMs=timeout_ms)
    wishes = RetrieveSettings(reserve_ms=reserve_ms)
    (engine_call,) = planned(
        members_of(engine), wishes=wishes, meta={"deadlineMs": deadline_ms}, seconds=60.0
    ).engine_calls
    told = engine_call.params["_meta"]["deadlineMs"]
    assert type(told) is int
    assert 1 <= told < deadline_ms
    assert told <= timeout_ms


def test_each_timeout_has_its_own_deadline() -> None:
    """Engines with different timeouts are told different deadlines."""
    members = members_of(FakeEngine("a", timeoutMs=100), FakeEngine("b", timeoutMs=900), FakeEngine("c", timeoutMs=100))
    plan = planned(members)
    assert [engine_call.params["_meta"]["deadlineMs"] for engine_call in plan.engine_calls] == [100, 900, 100]


# Loops


def test_depth_and_path_go_down_the_line() -> None:
    """An engine gets one level less, and our identity at the end of the path (RCP §16)."""
    engine_call = only_engine_call(meta={"federation": {"depth": 2, "path": ["top"]}})
    assert engine_call.params["_meta"]["federation"] == {"depth": 1, "path": ["top", "us"]}


@pytest.mark.parametrize(("stated", "expected"), [(None, 2), (2, 1), (3, 2), (4, 2), (10**9, 2)])
def test_depth_is_bounded_by_ours(stated: int | None, expected: int) -> None:
    """A caller that states no depth gets ours, and none gets more."""
    meta = None if stated is None else {"federation": {"depth": stated}}
    assert only_engine_call(meta=meta).params["_meta"]["federation"]["depth"] == expected


def test_depth_is_never_negative() -> None:
    """A gateway whose own depth is 0 still asks its engines, and tells them to ask nobody."""
    call = call_of(now=NOW)
    call = type(call)(call.params, call.meta, call.started, call.deadline, call.request_id, default_depth=0)
    plan = plan_retrieve(call, members_of(FakeEngine("a")), NOW, RetrieveSettings(), FusionSettings())
    assert plan.engine_calls[0].params["_meta"]["federation"] == {"depth": 0, "path": ["us"]}


@pytest.mark.parametrize(
    ("federation", "reason"),
    [({"depth": 0}, "depth"), ({"depth": 1}, "depth"), ({"depth": 3, "path": ["x", "us", "y"]}, "loop")],
    ids=["no depth left", "none left to pass on", "we are in the path"],
)
def test_nothing_is_forwarded_in_a_loop(federation: dict[str, Any], reason: str) -> None:
    """With no depth to pass on, or with our identity in the path, nobody is asked, and the success says so."""
    members = members_of(FakeEngine("a"), FakeEngine("b", reached=False, required=True), disabled=["off"])
    plan = planned(members, meta={"federation": federation})
    assert plan.engine_calls == ()
    assert reasons(plan) == {"a": reason, "b": reason, "off": reason}
    (note,) = plan.notes
    assert note.startswith("no engine was asked: ")


def test_only_cycles_are_an_empty_success() -> None:
    """If whoever could be asked would close a cycle, nobody is asked, and that is no error."""
    members = members_of(FakeEngine("a", gateway_id="top"), FakeEngine("b", capabilities={"embed": {}}))
    plan = planned(members, meta={"federation": {"depth": 3, "path": ["top"]}})
    assert plan.engine_calls == ()
    assert reasons(plan) == {"a": "loop", "b": "capability"}
    assert len(plan.notes) == 1


def test_gateway_below_is_asked() -> None:
    """An engine that is a gateway itself, and not in the path, is asked like any other."""
    engine = FakeEngine("below", gateway_id="other")
    assert asked(planned(members_of(engine), meta={"federation": {"depth": 2, "path": ["top"]}})) == ["below"]


def test_meta_of_the_caller_is_passed_on() -> None:
    """What the endpoint lets through of the caller's `_meta` reaches every engine; ours wins."""
    call = call_of(now=NOW)
    passed_on = {"traceId": "t", "federation": "forged", "deadlineMs": 10**9}
    call = type(call)(call.params, call.meta, call.started, call.deadline, call.request_id, passed_on=passed_on)
    plan = plan_retrieve(call, members_of(FakeEngine("a")), NOW, RetrieveSettings(), FusionSettings())
    assert plan.engine_calls[0].params["_meta"] == {
        "traceId": "t",
        "federation": {"depth": 2, "path": ["us"]},
        "deadlineMs": 2000,
    }


# Fusion


def test_weights_of_the_registry_and_of_the_request() -> None:
    """A weight in the request overrides the registry's for that engine only (B07)."""
    members = members_of(FakeEngine("a", weight=2.0), FakeEngine("b", weight=3.0))
    assert [engine_call.weight for engine_call in planned(members).engine_calls] == [2.0, 3.0]
    plan = planned(members, fusion={"weights": {"a": 0}})
    assert [engine_call.weight for engine_call in plan.engine_calls] == [0, 3.0]


def test_unknown_name_in_the_weights_is_refused() -> None:
    """A weight for nobody is -32602 and says for whom; one for a disabled engine is fine."""
    members = members_of(FakeEngine("a"), disabled=["off"])
    error = refused(members, fusion={"weights": {"a": 1, "nobody": 2}})
    assert isinstance(error, InvalidParams)
    assert error.data["field"] == "fusion.weights.nobody"
    assert asked(planned(members, fusion={"weights": {"off": 2}})) == ["a"]


def test_dense_and_sparse_weights_belong_to_the_engines() -> None:
    """Weights of the lists inside an engine are forwarded, if it can blend at all, and never weigh engines."""
    members = members_of(
        FakeEngine("blends", capabilities={"retrieve": {"fusion": ["weighted"]}}),
        FakeEngine("plain", capabilities={"retrieve": {}}),
    )
    plan = planned(members, fusion={"method": "weighted", "weights": {"dense": 2, "sparse": 1, "plain": 5}})
    by_id = {engine_call.engine.id: engine_call for engine_call in plan.engine_calls}
    assert by_id["blends"].params["fusion"] == {"method": "weighted", "weights": {"dense": 2, "sparse": 1}}
    assert "fusion" not in by_id["plain"].params
    assert (by_id["blends"].weight, by_id["plain"].weight) == (1.0, 5)


@pytest.mark.parametrize(
    ("fusion", "offered", "sent"),
    [
        ({"method": "rrf", "rrfK": 10}, ["rrf"], {"method": "rrf", "rrfK": 10}),
        ({"method": "convex", "alpha": 0.3}, ["rrf"], None),
        ({"weights": {"dense": 1}}, ["rrf"], {"weights": {"dense": 1}}),
        ({"alpha": 0.3}, ["rrf"], {"alpha": 0.3}),
        ({"alpha": 0.3}, [], None),
        ({"rrfK": 10}, ["rrf"], None),
        ({"weights": {"docs": 2}}, ["rrf"], None),
    ],
)
def test_inner_fusion_is_forwarded_if_the_engine_has_it(
    fusion: dict[str, Any], offered: list[str], sent: dict[str, Any] | None
) -> None:
    """Only what concerns the lists inside an engine is forwarded, and only if it advertises the method."""
    engine_call = only_engine_call(capabilities={"retrieve": {"fusion": offered}}, fusion=fusion)
    assert engine_call.params.get("fusion") == sent


def test_blend_comes_from_request_then_settings() -> None:
    """The request's fusion options go before the settings'."""
    members = members_of(FakeEngine("a", capabilities={"retrieve": {"scoreFloor": 0.25}}))
    blend = FusionSettings(method="weighted", rrf_k=7, confidence_weight=0.5)
    plain = plan_retrieve(call_of(now=NOW), members, NOW, RetrieveSettings(), blend)
    assert (plain.fusion.method, plain.fusion.rrf_k, plain.fusion.confidence_weight) == ("weighted", 7, 0.5)
    assert plain.fusion.identity == "id"
    assert plain.engine_calls[0].score_floor == 0.25
    call = call_of(
        now=NOW, fusion={"method": "convex", "rrfK": 9}, x_gateway={"confidenceWeight": 0, "identity": "uri"}
    )
    asked_for = plan_retrieve(call, members, NOW, RetrieveSettings(), blend)
    assert (asked_for.fusion.method, asked_for.fusion.rrf_k, asked_for.fusion.confidence_weight) == ("convex", 9, 0)
    assert asked_for.fusion.identity == "uri"


# Engines that joined through a gateway


def test_nobody_asks_itself() -> None:
    """An engine that turns out to be this gateway is not asked."""
    plan = planned(members_of(FakeEngine("mirror", gateway_id="us"), FakeEngine("other", gateway_id="them")))
    assert (asked(plan), reasons(plan)) == (["other"], {"mirror": "loop"})


def test_the_name_of_a_gateway_stands_for_its_engines() -> None:
    """Named or weighed, a gateway means its engines; a weight of their own goes first."""
    members = members_of(FakeEngine("g/a"), FakeEngine("g/b"), FakeEngine("x"), groups={"g": ("g/a", "g/b")})
    plan = planned(members, x_gateway={"engines": ["g"]}, fusion={"weights": {"g": 3, "g/b": 5}})
    assert {engine_call.engine.id: engine_call.weight for engine_call in plan.engine_calls} == {"g/a": 3, "g/b": 5}
    assert reasons(plan) == {"x": "not_selected"}
    assert refused(members, fusion={"weights": {"h": 1}}).code == -32602
    assert refused(members, x_gateway={"engines": ["h"]}).code == -32602


def test_engines_that_are_sent_the_same_share_it() -> None:
    """Without options that depend on an engine, engines of one timeout and bound are sent one and the same params."""
    wide, also, narrow = FakeEngine("a"), FakeEngine("b"), FakeEngine("c", capabilities={"retrieve": {"maxK": 5}})
    plan = planned(members_of(wide, also, narrow), k=7, minScore=0.1)
    first, second, third = (engine_call.params for engine_call in plan.engine_calls)
    assert first is second
    assert third == {**first, "k": 5}
    assert first["query"]
    assert first["_meta"]["deadlineMs"]
    assert "minScore" not in first
