"""The plan: who is asked, with what, for how long, and why everybody else is not. Pure, so tables and properties."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.federation.membership import Members
from app.federation.plan import Leg, Plan, plan_retrieve
from app.protocol.errors import BackendUnavailable, CapabilityMissing, InvalidParams, OptionUnsupported, RcpError
from app.settings.schema import FusionSettings, RetrieveSettings
from tests.support.fake_engine import FakeEngine, call_of, members_of

NOW = 100.0


def planned(members: Members, *, wishes: RetrieveSettings | None = None, **call: Any) -> Plan:
    """The plan of one call that is accepted now."""
    return plan_retrieve(call_of(now=NOW, **call), members, NOW, wishes or RetrieveSettings(), FusionSettings())


def only_leg(*, capabilities: dict[str, Any] | None = None, **call: Any) -> Leg:
    """The one leg of a plan for one engine."""
    engine = FakeEngine("docs", capabilities=capabilities)
    (leg,) = planned(members_of(engine), **call).legs
    return leg


def refused(members: Members, **call: Any) -> RcpError:
    """The error of a call that nobody may be asked."""
    with pytest.raises(RcpError) as error:
        planned(members, **call)
    return error.value


def reasons(plan: Plan) -> dict[str, str | None]:
    """Engine id -> why it is not asked."""
    return {outcome.engine: outcome.kind for outcome in plan.skipped}


def asked(plan: Plan) -> list[str]:
    """Ids of the engines that are asked."""
    return [leg.engine.id for leg in plan.legs]


RETRIEVES: dict[str, Any] = {"retrieve": {"modes": ["dense"]}}


# Who is asked


def test_every_engine_that_retrieves_is_asked() -> None:
    """Without options, whoever advertises `retrieve` is asked, in the members' order."""
    plan = planned(members_of(FakeEngine("b"), FakeEngine("a"), FakeEngine("c", capabilities={"retrieve": {}})))
    assert asked(plan) == ["b", "a", "c"]
    assert plan.skipped == ()
    assert plan.notes == ()


def test_every_reason_to_leave_an_engine_out() -> None:
    """Each engine that is not asked is in the plan with its reason."""
    members = members_of(
        FakeEngine("good", capabilities={**RETRIEVES, "filter": {"fields": ["lang"]}}),
        FakeEngine("nofilter", capabilities=RETRIEVES),
        FakeEngine("sparse", capabilities={"retrieve": {"modes": ["sparse"]}, "filter": {"fields": ["lang"]}}),
        FakeEngine("embedder", capabilities={"embed": {"dimension": 3}}),
        FakeEngine("newcomer", reached=False, down_reason="connect: refused"),
        FakeEngine("gateway", gateway_id="above"),
        FakeEngine("unnamed"),
        disabled=["off"],
    )
    plan = planned(
        members,
        mode="dense",
        filter={"field": "lang", "op": "eq", "value": "de"},
        meta={"federation": {"depth": 2, "path": ["above"]}},
        x_gateway={"engines": ["good", "nofilter", "sparse", "embedder", "newcomer", "gateway", "off"]},
    )
    assert asked(plan) == ["good"]
    assert reasons(plan) == {
        "off": "disabled",
        "nofilter": "filter",
        "sparse": "option",
        "embedder": "capability",
        "newcomer": "unreached",
        "gateway": "loop",
        "unnamed": "not_selected",
    }
    details = {outcome.engine: outcome.detail for outcome in plan.skipped}
    assert details["newcomer"] == "connect: refused"
    assert details["nofilter"] == "filter field 'lang' is not advertised"
    assert details["sparse"] == "mode dense is not advertised"
    assert plan.notes == ("gateway: not asked: its gateway (above) is already in the federation path",)


def test_unreached_without_a_reason() -> None:
    """An engine that has not been tried yet says so."""
    plan = planned(members_of(FakeEngine("a"), FakeEngine("b", reached=False)))
    assert plan.skipped[0].detail == "not connected yet"


def test_required_engine_that_was_never_reached_fails_the_request() -> None:
    """A required engine without a first handshake is an error, not a clean success without it (B35)."""
    members = members_of(FakeEngine("a"), FakeEngine("b", reached=False, required=True, down_reason="connect: refused"))
    error = refused(members)
    assert isinstance(error, BackendUnavailable)
    assert "'b'" in error.message
    assert error.data["retryable"] is True


def test_required_engine_that_cannot_is_skipped() -> None:
    """A required engine that lacks an option is skipped like any other, which is no error (RCP §16.2)."""
    members = members_of(
        FakeEngine("a", capabilities=RETRIEVES), FakeEngine("b", capabilities={"retrieve": {}}, required=True)
    )
    assert reasons(planned(members, mode="dense")) == {"b": "option"}


def test_required_engine_that_is_not_selected_is_left_alone() -> None:
    """A request that names other engines does not need a required one, not even one that was never reached."""
    members = members_of(FakeEngine("a"), FakeEngine("b", reached=False, required=True))
    assert reasons(planned(members, x_gateway={"engines": ["a"]})) == {"b": "not_selected"}


def test_unknown_engine_in_the_selection_is_refused() -> None:
    """`x-gateway.engines` may only name configured engines; disabled ones are."""
    members = members_of(FakeEngine("a"), disabled=["off"])
    error = refused(members, x_gateway={"engines": ["a", "nobody"]})
    assert isinstance(error, InvalidParams)
    assert error.data["field"] == "x-gateway.engines"
    assert "'nobody'" in error.message
    assert asked(planned(members, x_gateway={"engines": ["a", "off"]})) == ["a"]


# Strict and lenient


def test_strict_routes_an_option() -> None:
    """Strict is the default: only engines that can honour the option are asked, and they are asked with it."""
    members = members_of(
        FakeEngine("can", capabilities={"retrieve": {"mmr": True}}), FakeEngine("cannot", capabilities={"retrieve": {}})
    )
    plan = planned(members, mmr={"lambda": 0.3})
    assert asked(plan) == ["can"]
    assert plan.legs[0].params["mmr"] == {"lambda": 0.3}
    assert plan.notes == ()


def test_lenient_asks_without_the_option_and_says_so() -> None:
    """With `strict: false` an engine that cannot is asked without the option, and a note names both."""
    members = members_of(
        FakeEngine("can", capabilities={"retrieve": {"mmr": True}}), FakeEngine("cannot", capabilities={"retrieve": {}})
    )
    plan = planned(members, mmr={"lambda": 0.3}, strict=False)
    params = {leg.engine.id: leg.params for leg in plan.legs}
    assert params["can"]["mmr"] == {"lambda": 0.3}
    assert "mmr" not in params["cannot"]
    assert plan.notes == ("cannot: asked without 'mmr': mmr is not advertised",)


def test_lenient_drops_every_option_that_is_missing() -> None:
    """Several missing options are left out one by one, each with its note; the rest is asked for as usual."""
    leg_plan = planned(
        members_of(FakeEngine("docs", capabilities=RETRIEVES)),
        mode="sparse",
        unit="page",
        rerank={"method": "llm", "topN": 40},
        candidateK=80,
        seed=7,
        strict=False,
    )
    (leg,) = leg_plan.legs
    assert not {"mode", "unit", "rerank"} & leg.params.keys()
    assert leg.params["seed"] == 7
    assert leg.params["strict"] is False
    assert leg.params["candidateK"] >= leg.params["k"]
    assert len(leg_plan.notes) == 3


def test_lenient_never_drops_a_filter() -> None:
    """A filter is never left out: an engine that cannot apply it is skipped, lenient or not."""
    tree = {"field": "lang", "op": "eq", "value": "de"}
    members = members_of(FakeEngine("a", capabilities={**RETRIEVES, "filter": {"fields": ["lang"]}}), FakeEngine("b"))
    plan = planned(members, filter=tree, strict=False)
    assert asked(plan) == ["a"]
    assert plan.legs[0].params["filter"] == tree
    assert reasons(plan) == {"b": "filter"}


def test_lenient_never_drops_the_query() -> None:
    """An engine that cannot read the query's blocks is skipped, lenient or not."""
    image = {"type": "image", "mimeType": "image/png", "uri": "https://example.invalid/x.png"}
    members = members_of(
        FakeEngine("a", capabilities={"retrieve": {"modalities": ["text", "image"]}}), FakeEngine("b")
    )
    plan = planned(members, query=["what is", image], strict=False)
    assert asked(plan) == ["a"]
    assert plan.legs[0].params["query"] == ["what is", image]
    assert reasons(plan) == {"b": "option"}


def test_lenient_with_a_word_outside_rcp() -> None:
    """A lenient request with a value that RCP does not know is asked without it; so is its fusion method."""
    plan = planned(members_of(FakeEngine("docs")), mode="telepathy", fusion={"method": "vibes"}, strict=False)
    assert "mode" not in plan.legs[0].params
    assert plan.fusion.method == "rrf"
    assert plan.notes == (
        "fusion.method is none of rrf, weighted, convex; the default was used",
        "docs: asked without 'mode': mode telepathy is not advertised",
    )


# When nobody can


def test_option_that_nobody_has() -> None:
    """An option that no engine advertises is -32005 with its name, and the detail says why for each."""
    error = refused(members_of(FakeEngine("a"), FakeEngine("b")), mmr={"lambda": 1})
    assert isinstance(error, OptionUnsupported)
    assert error.data["option"] == "mmr"
    assert error.data["detail"] == "a: mmr is not advertised; b: mmr is not advertised"


def test_filter_field_that_nobody_has() -> None:
    """A filter field that no engine advertises is -32602 with its name, strict or not."""
    members = members_of(FakeEngine("a", capabilities={**RETRIEVES, "filter": {"fields": ["lang"]}}), FakeEngine("b"))
    tree = {"and": [{"field": "lang", "op": "eq", "value": "de"}, {"field": "nosuch", "op": "exists"}]}
    for strict in (True, False):
        error = refused(members, filter=tree, strict=strict)
        assert isinstance(error, InvalidParams)
        assert error.data["field"] == "nosuch"


def test_filter_operator_that_nobody_has() -> None:
    """A filter whose field is there but whose operator nobody advertises is -32005."""
    filters = {"fields": {"lang": "keyword"}, "operators": ["eq"]}
    members = members_of(FakeEngine("a", capabilities={**RETRIEVES, "filter": filters}), FakeEngine("b"))
    error = refused(members, filter={"field": "lang", "op": "in", "value": ["de"]})
    assert isinstance(error, OptionUnsupported)
    assert error.data["option"] == "filter.operators"


def test_filter_value_that_fits_nobody() -> None:
    """A value of the wrong shape is -32602 with the field."""
    members = members_of(FakeEngine("a", capabilities={**RETRIEVES, "filter": {"fields": {"year": "int"}}}))
    error = refused(members, filter={"field": "year", "op": "eq", "value": "late"})
    assert isinstance(error, InvalidParams)
    assert error.data["field"] == "year"


def test_filter_fields_on_different_engines() -> None:
    """Fields that all exist but never in one engine are no mistake of the caller's: -32005."""
    members = members_of(
        FakeEngine("a", capabilities={**RETRIEVES, "filter": {"fields": ["x"]}}),
        FakeEngine("b", capabilities={**RETRIEVES, "filter": {"fields": ["y"]}}),
    )
    error = refused(members, filter={"or": [{"field": "x", "op": "exists"}, {"field": "y", "op": "exists"}]})
    assert isinstance(error, OptionUnsupported)
    assert error.data["option"] == "filter"


def test_option_wins_where_a_filter_fits_somebody() -> None:
    """If some engine could apply the filter but not the option, the option is what is missing."""
    members = members_of(FakeEngine("a", capabilities={**RETRIEVES, "filter": {"fields": ["lang"]}}), FakeEngine("b"))
    error = refused(members, filter={"field": "lang", "op": "exists"}, mode="sparse", unit="page")
    assert isinstance(error, OptionUnsupported)
    assert error.data["option"] == "mode"


def test_nobody_retrieves() -> None:
    """Engines without `retrieve`, or no engines, come to -32003."""
    assert isinstance(refused(members_of(FakeEngine("a", capabilities={"embed": {}}))), CapabilityMissing)
    assert isinstance(refused(members_of()), CapabilityMissing)


def test_nobody_reached_yet() -> None:
    """While no engine has been reached the request fails as unavailable, and may be tried again."""
    error = refused(members_of(FakeEngine("a", reached=False, down_reason="connect: refused")))
    assert isinstance(error, BackendUnavailable)
    assert error.data == {"retryable": True, "detail": "a: connect: refused"}


def test_excluded_field_is_not_asked_for() -> None:
    """An engine whose type for a field lost in the merged advertisement is not asked for that field."""
    members = members_of(
        FakeEngine("a", priority=1, capabilities={**RETRIEVES, "filter": {"fields": {"year": "int"}}}),
        FakeEngine("b", capabilities={**RETRIEVES, "filter": {"fields": {"year": "keyword", "lang": "keyword"}}}),
    )
    assert members.excluded_fields == {"b": frozenset({"year"})}
    assert asked(planned(members, filter={"field": "year", "op": "gte", "value": 2020})) == ["a"]
    assert asked(planned(members, filter={"field": "lang", "op": "eq", "value": "de"})) == ["b"]
    assert isinstance(refused(members, filter={"field": "year", "op": "eq", "value": "2020"}), InvalidParams)


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
    leg = only_leg(capabilities={"retrieve": offer}, **({} if k is None else {"k": k}))
    assert leg.params["k"] == leg.asked == expected


def test_k_is_clamped_to_ours() -> None:
    """A k above our own bound is clamped, not refused."""
    plan = planned(members_of(FakeEngine("a", capabilities={"retrieve": {}}), max_k=30), k=1000)
    assert plan.k == 30
    assert plan.legs[0].asked == 60


@given(st.integers(1, 10), st.integers(1, 500) | st.none())
def test_smaller_k_asks_the_same(k: int, max_k: int | None) -> None:
    """Up to the default k every k asks an engine for the same, so its answers are prefixes of each other."""
    capabilities = {"retrieve": {} if max_k is None else {"maxK": max_k}}
    assert only_leg(capabilities=capabilities, k=k).params == only_leg(capabilities=capabilities, k=10).params


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
        leg = only_leg(capabilities=capabilities, strict=strict, **params)
    except OptionUnsupported:
        assert strict
        assert not capabilities["retrieve"]["rerankBuiltin"]
        return
    sent = leg.params
    assert sent["k"] == leg.asked >= 1
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
    leg = only_leg(capabilities=capabilities, k=3, rerank={"method": "llm", "topN": 4}, strict=False)
    assert "rerank" not in leg.params
    assert leg.asked == 20


# What is sent


def test_own_options_are_not_forwarded() -> None:
    """What the gateway does itself never reaches an engine (decision 4)."""
    leg = only_leg(
        minScore=0.5, tokenBudget=100, cursor="c", sessionId="s", x_gateway={"identity": "id"}, meta={"progressToken": 1}
    )
    assert leg.params.keys() == {"query", "k", "_meta"}
    assert leg.params["_meta"].keys() == {"federation", "deadlineMs"}


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
    leg = only_leg(capabilities=capabilities, **sent, mmr=None)
    assert {key: value for key, value in leg.params.items() if key not in ("query", "k", "_meta")} == sent


@pytest.mark.parametrize("own", [{"tokenBudget": 100}, {"x_gateway": {"identity": "content"}}], ids=["budget", "content"])
def test_text_is_asked_for_where_the_gateway_needs_it(own: dict[str, Any]) -> None:
    """`includeText: false` is not forwarded while the gateway itself needs the text to do what was asked."""
    assert only_leg(includeText=False).params["includeText"] is False
    assert "includeText" not in only_leg(includeText=False, **own).params


def test_engines_share_no_params() -> None:
    """What is changed for one engine never shows at another."""
    members = members_of(
        FakeEngine("a", capabilities={"retrieve": {"maxK": 5, "rerankBuiltin": True}}),
        FakeEngine("b", capabilities={"retrieve": {"rerankBuiltin": True}}),
    )
    plan = planned(members, k=3, rerank={"topN": 4}, candidateK=4)
    first, second = (leg.params for leg in plan.legs)
    assert (first["k"], first["rerank"], first["candidateK"]) == (5, {"topN": 5}, 5)
    assert (second["k"], second["rerank"], second["candidateK"]) == (20, {"topN": 20}, 20)


# Time


@pytest.mark.parametrize(
    ("seconds", "timeout_ms", "expected"),
    [(10.0, 2000, 2.0), (10.0, 10_000, 9.9), (10.0, 60_000, 9.9), (0.5, 2000, 0.4), (0.1, 2000, 0.08)],
)
def test_leg_gets_its_own_timeout_or_what_remains(seconds: float, timeout_ms: int, expected: float) -> None:
    """An engine has the smaller of its own timeout and what remains less the reserve (B28)."""
    engine = FakeEngine("docs", timeoutMs=timeout_ms)
    plan = planned(members_of(engine), seconds=seconds)
    (leg,) = plan.legs
    assert leg.seconds == pytest.approx(expected)
    assert leg.deadline == pytest.approx(NOW + expected)
    assert leg.params["_meta"]["deadlineMs"] == pytest.approx(expected * 1000, abs=1)
    assert plan.cut_by_caller is (expected * 1000 < timeout_ms)


@given(st.integers(2, 20_000), st.integers(1, 30_000), st.sampled_from([0, 1, 100, 5000]))
def test_less_time_is_passed_on_than_there_is(deadline_ms: int, timeout_ms: int, reserve_ms: int) -> None:
    """Every engine is told strictly less time than the caller has, in whole milliseconds and at least one (RCP §16)."""
    engine = FakeEngine("docs", timeoutMs=timeout_ms)
    wishes = RetrieveSettings(reserve_ms=reserve_ms)
    (leg,) = planned(members_of(engine), wishes=wishes, meta={"deadlineMs": deadline_ms}, seconds=60.0).legs
    told = leg.params["_meta"]["deadlineMs"]
    assert type(told) is int
    assert 1 <= told < deadline_ms
    assert told <= timeout_ms


def test_each_timeout_has_its_own_deadline() -> None:
    """Engines with different timeouts are told different deadlines."""
    members = members_of(FakeEngine("a", timeoutMs=100), FakeEngine("b", timeoutMs=900), FakeEngine("c", timeoutMs=100))
    plan = planned(members)
    assert [leg.params["_meta"]["deadlineMs"] for leg in plan.legs] == [100, 900, 100]


# Loops


def test_depth_and_path_go_down_the_line() -> None:
    """An engine gets one level less, and our identity at the end of the path (RCP §16)."""
    leg = only_leg(meta={"federation": {"depth": 2, "path": ["top"]}})
    assert leg.params["_meta"]["federation"] == {"depth": 1, "path": ["top", "us"]}


@pytest.mark.parametrize(("stated", "expected"), [(None, 2), (1, 0), (3, 2), (4, 2), (10**9, 2)])
def test_depth_is_bounded_by_ours(stated: int | None, expected: int) -> None:
    """A caller that states no depth gets ours, and none gets more."""
    meta = None if stated is None else {"federation": {"depth": stated}}
    assert only_leg(meta=meta).params["_meta"]["federation"]["depth"] == expected


def test_depth_is_never_negative() -> None:
    """A gateway whose own depth is 0 still asks its engines, and tells them to ask nobody."""
    call = call_of(now=NOW)
    call = type(call)(call.params, call.meta, call.started, call.deadline, call.request_id, default_depth=0)
    plan = plan_retrieve(call, members_of(FakeEngine("a")), NOW, RetrieveSettings(), FusionSettings())
    assert plan.legs[0].params["_meta"]["federation"] == {"depth": 0, "path": ["us"]}


@pytest.mark.parametrize(
    ("federation", "reason"),
    [({"depth": 0}, "depth"), ({"depth": 3, "path": ["x", "us", "y"]}, "loop")],
    ids=["no depth left", "we are in the path"],
)
def test_nothing_is_forwarded_in_a_loop(federation: dict[str, Any], reason: str) -> None:
    """At depth 0, or with our identity in the path, nobody is asked, and the success says so (decision 3)."""
    members = members_of(FakeEngine("a"), FakeEngine("b", reached=False, required=True), disabled=["off"])
    plan = planned(members, meta={"federation": federation})
    assert plan.legs == ()
    assert reasons(plan) == {"a": reason, "b": reason, "off": reason}
    (note,) = plan.notes
    assert note.startswith("no engine was asked: ")


def test_only_cycles_are_an_empty_success() -> None:
    """If whoever could be asked would close a cycle, nobody is asked, and that is no error."""
    members = members_of(FakeEngine("a", gateway_id="top"), FakeEngine("b", capabilities={"embed": {}}))
    plan = planned(members, meta={"federation": {"depth": 3, "path": ["top"]}})
    assert plan.legs == ()
    assert reasons(plan) == {"a": "loop", "b": "capability"}
    assert len(plan.notes) == 1


def test_gateway_below_is_asked() -> None:
    """An engine that is a gateway itself, and not in the path, is asked like any other."""
    engine = FakeEngine("below", gateway_id="other")
    assert asked(planned(members_of(engine), meta={"federation": {"depth": 1, "path": ["top"]}})) == ["below"]


def test_meta_of_the_caller_is_passed_on() -> None:
    """What the door lets through of the caller's `_meta` reaches every engine; ours wins."""
    call = call_of(now=NOW)
    passed_on = {"traceId": "t", "federation": "forged", "deadlineMs": 10**9}
    call = type(call)(call.params, call.meta, call.started, call.deadline, call.request_id, passed_on=passed_on)
    plan = plan_retrieve(call, members_of(FakeEngine("a")), NOW, RetrieveSettings(), FusionSettings())
    assert plan.legs[0].params["_meta"] == {
        "traceId": "t",
        "federation": {"depth": 2, "path": ["us"]},
        "deadlineMs": 2000,
    }


# Fusion


def test_weights_of_the_registry_and_of_the_request() -> None:
    """A weight in the request overrides the registry's for that engine only (B07)."""
    members = members_of(FakeEngine("a", weight=2.0), FakeEngine("b", weight=3.0))
    assert [leg.weight for leg in planned(members).legs] == [2.0, 3.0]
    plan = planned(members, fusion={"weights": {"a": 0}})
    assert [leg.weight for leg in plan.legs] == [0, 3.0]


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
    by_id = {leg.engine.id: leg for leg in plan.legs}
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
    leg = only_leg(capabilities={"retrieve": {"fusion": offered}}, fusion=fusion)
    assert leg.params.get("fusion") == sent


def test_blend_comes_from_request_then_settings() -> None:
    """The request's fusion options go before the settings'."""
    members = members_of(FakeEngine("a", capabilities={"retrieve": {"scoreFloor": 0.25}}))
    blend = FusionSettings(method="weighted", rrf_k=7, confidence_weight=0.5)
    plain = plan_retrieve(call_of(now=NOW), members, NOW, RetrieveSettings(), blend)
    assert (plain.fusion.method, plain.fusion.rrf_k, plain.fusion.confidence_weight) == ("weighted", 7, 0.5)
    assert plain.fusion.identity == "id"
    assert plain.legs[0].score_floor == 0.25
    call = call_of(
        now=NOW, fusion={"method": "convex", "rrfK": 9}, x_gateway={"confidenceWeight": 0, "identity": "uri"}
    )
    asked_for = plan_retrieve(call, members, NOW, RetrieveSettings(), blend)
    assert (asked_for.fusion.method, asked_for.fusion.rrf_k, asked_for.fusion.confidence_weight) == ("convex", 9, 0)
    assert asked_for.fusion.identity == "uri"


# All of it at once

OFFERS = st.fixed_dictionaries(
    {},
    optional={
        "maxK": st.integers(1, 300),
        "modes": st.lists(st.sampled_from(["dense", "sparse", "hybrid"]), max_size=3),
        "modalities": st.lists(st.sampled_from(["text", "image", "code"]), max_size=3),
        "units": st.lists(st.sampled_from(["chunk", "page"]), max_size=2),
        "levels": st.integers(1, 4),
        "mmr": st.booleans(),
        "rerankBuiltin": st.booleans(),
        "fusion": st.lists(st.sampled_from(["rrf", "weighted", "convex"]), max_size=3),
        "snapshots": st.booleans(),
        "scoreFloor": st.floats(-1, 1),
    },
)
ADVERTISEMENTS = st.fixed_dictionaries(
    {},
    optional={
        "retrieve": OFFERS,
        "rerank": st.fixed_dictionaries({"methods": st.just(["llm"])}, optional={"maxCandidates": st.integers(1, 60)}),
        "filter": st.fixed_dictionaries(
            {"fields": st.dictionaries(st.sampled_from(["lang", "year"]), st.sampled_from(["keyword", "int"]))},
            optional={"operators": st.lists(st.sampled_from(["eq", "in", "gte"]))},
        ),
        "transform": st.just({"methods": ["hyde"]}),
        "embed": st.just({"dimension": 3}),
    },
)
LEAVES = st.sampled_from(
    [
        {"field": "lang", "op": "eq", "value": "de"},
        {"field": "year", "op": "gte", "value": 2020},
        {"field": "year", "op": "in", "value": [1, 2]},
        {"field": "nosuch", "op": "exists", "value": True},
    ]
)
PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "k": st.integers(1, 400),
        "mode": st.sampled_from(["dense", "sparse", "hybrid"]),
        "modality": st.sampled_from(["text", "image", "code"]),
        "unit": st.sampled_from(["chunk", "page"]),
        "level": st.integers(0, 4),
        "mmr": st.just({"lambda": 0.5}),
        "rerank": st.sampled_from([{"method": "llm"}, {"method": "llm", "topN": 400}, {}, False]),
        "candidateK": st.integers(400, 500),
        "rewrite": st.sampled_from(["hyde", "rewrite", False]),
        "recency": st.sampled_from([{"field": "year"}, {}, {"field": "nosuch"}]),
        "indexVersion": st.just("v"),
        "includeVectors": st.booleans(),
        "filter": LEAVES | st.lists(LEAVES, min_size=1, max_size=3).map(lambda leaves: {"and": leaves}),
        "fusion": st.sampled_from([{"method": "weighted", "weights": {"dense": 1}}, {"rrfK": 5}, {"weights": {"e0": 2}}]),
        "minScore": st.floats(0, 1),
        "tokenBudget": st.integers(1, 99),
        "includeText": st.booleans(),
    },
)


@settings(max_examples=300)
@given(
    advertisements=st.lists(ADVERTISEMENTS | st.none(), min_size=1, max_size=5),
    params=PARAMS,
    strict=st.booleans(),
    chosen=st.none() | st.sets(st.integers(0, 4), min_size=1),
    meta=st.none() | st.fixed_dictionaries({"federation": st.sampled_from([{"depth": 0}, {"path": ["g"]}, {"path": ["us"]}])}),
)
def test_everybody_is_asked_or_skipped_exactly_once(
    advertisements: list[dict[str, Any] | None],
    params: dict[str, Any],
    strict: bool,
    chosen: set[int] | None,
    meta: dict[str, Any] | None,
) -> None:
    """Whatever is advertised and asked: an RcpError, or a plan in which every engine of the registry stands exactly
    once, each skip has a reason, the funnel holds, and nothing of ours leaks."""
    engines = [
        FakeEngine(f"e{number}", capabilities=said, reached=said is not None, gateway_id="g" if number == 1 else None)
        for number, said in enumerate(advertisements)
    ]
    members = members_of(*engines, disabled=["off"])
    names = {engine.id for engine in engines} | {"off"}
    selection = {} if chosen is None else {"x_gateway": {"engines": [f"e{number % len(engines)}" for number in chosen]}}
    try:
        plan = planned(members, meta=meta, strict=strict, **selection, **params)
    except RcpError as error:
        assert error.code in (-32003, -32005, -32010, -32602)
        assert error.message
        return
    stood = asked(plan) + [outcome.engine for outcome in plan.skipped]
    assert len(stood) == len(set(stood))
    assert set(stood) == names
    for outcome in plan.skipped:
        assert outcome.status == "skipped"
        assert outcome.kind
        assert outcome.detail
    for leg in plan.legs:
        sent = leg.params
        rerank = sent.get("rerank") or {}
        top = rerank.get("topN", sent["k"])
        assert sent.get("candidateK", top) >= top >= sent["k"] >= 1
        offer = leg.engine.advertisement.retrieve if leg.engine.advertisement else None
        assert offer is not None
        assert offer.max_k is None or sent["k"] <= offer.max_k
        assert not {"minScore", "tokenBudget", "x-gateway", "cursor", "sessionId"} & sent.keys()
        assert sent.get("filter") == params.get("filter")
        if strict:
            unfit = {key for key in ("mode", "unit", "level", "mmr", "indexVersion") if params.get(key) != sent.get(key)}
            assert not unfit
        assert repr(leg.engine) in repr(plan)
