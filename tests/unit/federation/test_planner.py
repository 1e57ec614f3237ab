"""The plan: who is asked, why everybody else is not, and which error it is when nobody can."""

from app.protocol.errors import BackendUnavailable, CapabilityMissing, InvalidParams, OptionUnsupported
from tests.support.fake_engine import FakeEngine, members_of
from tests.support.planning import RETRIEVES, asked, planned, reasons, refused

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
    details = {outcome.engine: outcome.detail for outcome in (*plan.skipped, *plan.lost)}
    assert details["newcomer"] == "connect: refused"
    assert [(outcome.engine, outcome.status) for outcome in plan.lost] == [("newcomer", "failed")]
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
    assert plan.engine_calls[0].params["mmr"] == {"lambda": 0.3}
    assert plan.notes == ()


def test_lenient_asks_without_the_option_and_says_so() -> None:
    """With `strict: false` an engine that cannot is asked without the option, and a note names both."""
    members = members_of(
        FakeEngine("can", capabilities={"retrieve": {"mmr": True}}), FakeEngine("cannot", capabilities={"retrieve": {}})
    )
    plan = planned(members, mmr={"lambda": 0.3}, strict=False)
    params = {engine_call.engine.id: engine_call.params for engine_call in plan.engine_calls}
    assert params["can"]["mmr"] == {"lambda": 0.3}
    assert "mmr" not in params["cannot"]
    assert plan.notes == ("cannot: asked without 'mmr': mmr is not advertised",)


def test_lenient_drops_every_option_that_is_missing() -> None:
    """Several missing options are left out one by one, each with its note; the rest is asked for as usual."""
    engine_call_plan = planned(
        members_of(FakeEngine("docs", capabilities=RETRIEVES)),
        mode="sparse",
        unit="page",
        rerank={"method": "llm", "topN": 40},
        candidateK=80,
        seed=7,
        strict=False,
    )
    (engine_call,) = engine_call_plan.engine_calls
    assert not {"mode", "unit", "rerank"} & engine_call.params.keys()
    assert engine_call.params["seed"] == 7
    assert engine_call.params["strict"] is False
    assert engine_call.params["candidateK"] >= engine_call.params["k"]
    assert len(engine_call_plan.notes) == 3


def test_lenient_never_drops_a_filter() -> None:
    """A filter is never left out: an engine that cannot apply it is skipped, lenient or not."""
    tree = {"field": "lang", "op": "eq", "value": "de"}
    members = members_of(FakeEngine("a", capabilities={**RETRIEVES, "filter": {"fields": ["lang"]}}), FakeEngine("b"))
    plan = planned(members, filter=tree, strict=False)
    assert asked(plan) == ["a"]
    assert plan.engine_calls[0].params["filter"] == tree
    assert reasons(plan) == {"b": "filter"}


def test_lenient_never_drops_the_query() -> None:
    """An engine that cannot read the query's blocks is skipped, lenient or not."""
    image = {"type": "image", "mimeType": "image/png", "uri": "https://example.invalid/x.png"}
    members = members_of(FakeEngine("a", capabilities={"retrieve": {"modalities": ["text", "image"]}}), FakeEngine("b"))
    plan = planned(members, query=["what is", image], strict=False)
    assert asked(plan) == ["a"]
    assert plan.engine_calls[0].params["query"] == ["what is", image]
    assert reasons(plan) == {"b": "option"}


def test_lenient_with_a_word_outside_rcp() -> None:
    """A lenient request with a value that RCP does not know is asked without it; so is its fusion method."""
    plan = planned(members_of(FakeEngine("docs")), mode="telepathy", fusion={"method": "vibes"}, strict=False)
    assert "mode" not in plan.engine_calls[0].params
    assert plan.fusion.method == "rrf"
    assert plan.notes == (
        "fusion.method is not one of rrf, weighted, convex; the default was used",
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
        assert error.data["field"] == "filter.and[1].nosuch"


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
    assert error.data["field"] == "filter.year"


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


def test_engines_with_the_same_bounds_share_their_params() -> None:
    """Params that are equal are one object, so they are encoded once."""
    bounds = [{}, {"timeout_ms": 500}, {"weight": 2.5, "timeout_ms": 500}]
    members = members_of(*(FakeEngine(f"e{n}", capabilities=RETRIEVES, **bounds[n % 3]) for n in range(9)))
    plan = planned(members)
    assert len(plan.engine_calls) == 9
    assert len({id(engine_call.params) for engine_call in plan.engine_calls}) == 2


def test_an_engine_that_is_not_reached_is_looked_at_for_each_plan() -> None:
    """The reason is the current one, and one that becomes required makes the next plan fail."""
    newcomer = FakeEngine("n", reached=False, down_reason="connect: refused")
    members = members_of(FakeEngine("a"), newcomer)
    assert planned(members).skipped[0].detail == "connect: refused"
    newcomer.down_reason = "timeout"
    assert planned(members).skipped[0].detail == "timeout"
