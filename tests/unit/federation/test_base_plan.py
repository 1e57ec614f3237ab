"""A plan made by an outline is the plan that would have been made without; an outline ends when anything of it does."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.federation.base_plan import MAX_OUTLINES
from app.federation.calls import RetrieveCall
from app.federation.membership import Members
from app.federation.planner import Plan, plan_retrieve
from app.federation.tenants import Tenant
from app.protocol.errors import BackendUnavailable
from app.settings.schema import FusionSettings, RetrieveSettings
from tests.support.fake_engine import FakeEngine, call_of, members_of

WISHES, BLEND = RetrieveSettings(), FusionSettings()
PASSED_ON = {"traceparent": "00-1"}


def engines(*, of: int = 3) -> list[FakeEngine]:
    """Engines of different bounds, times and weights, one of them a gateway, and one that does not retrieve."""
    wishes: list[dict[str, Any]] = [{}, {"timeout_ms": 500}, {"weight": 2.5, "timeout_ms": 500}]
    offers = [{"retrieve": {"maxK": 7}}, {"retrieve": {"scoreFloor": 0.25}}, {"retrieve": {}}]
    made = [FakeEngine(f"e{at}", capabilities=offers[at % 3], **wishes[at % 3]) for at in range(of)]
    return [*made, FakeEngine("g", gateway_id="us"), FakeEngine("t", capabilities={"transform": {}})]


def planned(members: Members, call: RetrieveCall, wishes: RetrieveSettings = WISHES) -> Plan:
    """The plan at 100 seconds."""
    return plan_retrieve(call, members, 100.0, wishes, BLEND)


@given(
    st.integers(1, 300),
    st.sampled_from([0.01, 0.3, 10.0]),
    st.sampled_from([None, 1, 5]),
    st.sampled_from([None, Tenant("t"), Tenant("t", weights={"e0": 3.0})]),
)
def test_an_base_plan_makes_no_difference(k: int, seconds: float, depth: int | None, tenant: Tenant | None) -> None:
    """Whatever is asked, by whom and in which time, after others or as the first."""
    asked = engines()
    members = members_of(*asked, disabled=["off"])
    meta = None if depth is None else {"federation": {"depth": depth}}
    call = replace(call_of("q", k=k, seconds=seconds, meta=meta), tenant=tenant, passed_on=PASSED_ON)
    for other in (call_of("other", k=k), replace(call_of("other", k=k), tenant=Tenant("u", weights={"e1": 9.0})), call):
        planned(members, other)
    assert members.outlines
    assert planned(members, call) == planned(members_of(*asked, disabled=["off"]), call)


def test_engines_alike_are_sent_the_very_same() -> None:
    """What engines with the same bounds and times are asked is one object, written once."""
    members = members_of(*engines(of=9))
    for _ in range(2):
        params = {id(engine_call.params) for engine_call in planned(members, call_of("q")).engine_calls}
        assert len(params) == 2


def test_other_wishes_end_it() -> None:
    """Settings that were read anew hold with the next plan, also where they are equal."""
    members = members_of(*engines())
    assert planned(members, call_of("q", k=3)).window == WISHES.window_min
    deeper = RetrieveSettings(window_min=WISHES.window_min * 2)
    assert planned(members, call_of("q", k=3), deeper).window == deeper.window_min
    assert planned(members, call_of("q", k=3)).window == WISHES.window_min


def test_whoever_was_not_reached_is_looked_at_each_time() -> None:
    """An engine without an advertisement may have one by the next plan, and its reason changes."""
    newcomer = FakeEngine("n", reached=False, down_reason="connect: refused")
    members = members_of(FakeEngine("a"), newcomer)
    assert planned(members, call_of("q")).skipped[0].detail == "connect: refused"
    newcomer.down_reason = "timeout"
    assert planned(members, call_of("q")).skipped[0].detail == "timeout"
    newcomer.entry = newcomer.entry.model_copy(update={"required": True})
    with pytest.raises(BackendUnavailable):
        planned(members, call_of("q"))
    assert not members.outlines


@pytest.mark.parametrize("more", [{"strict": False}, {"minScore": 0.5}, {"x_gateway": {"engines": ["e0"]}}])
def test_who_says_more_is_planned_for_alone(more: dict[str, Any]) -> None:
    """Only requests that say what they look for, and how much of it, share an outline."""
    members = members_of(*engines())
    planned(members, call_of("q", **more))
    assert not members.outlines


def test_a_path_is_looked_at_each_time() -> None:
    """A request that came through a gateway closes cycles of its own."""
    members = members_of(*engines(), FakeEngine("above", gateway_id="above"))
    planned(members, call_of("q"))
    plan = planned(members, call_of("q", meta={"federation": {"path": ["above"]}}))
    assert "above" not in [engine_call.engine.id for engine_call in plan.engine_calls]
    assert "above" in [engine_call.engine.id for engine_call in planned(members, call_of("q")).engine_calls]


def test_outlines_are_bounded() -> None:
    """There are no more than so many, however many different `k` are asked for."""
    members = members_of(*engines())
    for k in range(1, MAX_OUTLINES + 3):
        planned(members, call_of("q", k=k))
    assert 0 < len(members.outlines) <= MAX_OUTLINES


def test_an_base_plan_can_be_looked_at() -> None:
    """In an incident: what it is of."""
    members = members_of(*engines())
    planned(members, call_of("q", k=3))
    (base_plan,) = members.outlines.values()
    assert repr(base_plan) == "<Outline of k 3, 3 engines in 2 lots>"
    assert repr(base_plan.drafts[2]) == f"<Draft of e2: {WISHES.window_min} hits, weight 2.5>"
