"""Asking rerankers: one after the other, within the deadline, and what is left of it."""

import asyncio
from typing import Any

import pytest

from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.outcome import answered
from app.federation.rerank_plan import RerankPlan
from app.federation.result_set import ResultSet, dump_result_set, load_result_set, result_set_of
from app.federation.union_reranking import rerank_union
from app.protocol.errors import CALL_KINDS, BadStatus, LegTimeout
from app.settings.schema import GatewaySettings
from app.telemetry.metrics import Metrics
from tests.support.fake_engine import FakeEngine, call_of, hits, members_of, never
from tests.support.planning import planned
from tests.support.virtual_time import virtually

JUDGE = {"rerank": {"methods": ["llm"]}}


def stocked(*ids: Any) -> ResultSet:
    """A stock of one engine's hits."""
    call = call_of(now=100.0)
    plan = planned(members_of(FakeEngine("docs")))
    result_set = result_set_of(plan, [answered("docs", {"hits": hits(*ids)}, 0.1, 1)], call.params)
    assert result_set is not None
    return result_set


async def settled(
    result_set: ResultSet, *judges: FakeEngine, seconds: float = 10.0, metrics: Metrics | None = None
) -> ResultSet:
    """The stock after these were asked."""
    members = members_of(*judges)
    metrics = metrics or Metrics("test")
    metrics.declare_engines(members.ids(), CALL_KINDS)
    call = call_of(now=asyncio.get_running_loop().time(), seconds=seconds)
    union = RerankPlan(judges, 3, {"query": "q"})
    return await rerank_union(call, members, GatewaySettings(), RetrieveInstrumentation(metrics), union, result_set)


def test_the_order_and_the_verdict() -> None:
    """The stock is another value, which survives as plain data."""
    before = stocked(1, 2, 3, 4)

    async def story() -> ResultSet:
        return await settled(before, FakeEngine("j", {"scores": [1, 2, 3]}, capabilities=JUDGE))

    after = virtually(story())
    assert after.fusion.keys() == ["3", "2", "1", "4"]
    assert before.fusion.keys() == ["1", "2", "3", "4"]
    assert after.verdict is not None
    assert after.verdict[:3] == ("j", 3, 3)
    again = load_result_set(dump_result_set(after))
    assert again.fusion.hits() == after.fusion.hits()
    assert again.verdict == after.verdict


def test_the_next_one_after_any_failure() -> None:
    """Each failure is noted; the last has the word."""
    judges = [
        FakeEngine("a", BadStatus("503"), capabilities=JUDGE),
        FakeEngine("b", LegTimeout("late"), capabilities=JUDGE),
        FakeEngine("c", {"scores": [3, 2, 1]}, capabilities=JUDGE),
    ]

    async def story() -> ResultSet:
        return await settled(stocked(1, 2, 3), *judges)

    verdict = virtually(story()).verdict
    assert verdict is not None
    assert verdict.engine == "c"
    assert [note[:12] for note in verdict.notes] == ["rerank: a: h", "rerank: b: t"]
    assert [told["id"] for told in verdict.asked] == ["a", "b", "c"]


def test_time_that_is_up() -> None:
    """With no time left nobody is asked: the order stands, and nobody is to blame."""
    judge = FakeEngine("a", {"scores": [1, 2, 3]}, capabilities=JUDGE)

    async def story() -> ResultSet:
        return await settled(stocked(1, 2, 3), judge, seconds=0.002)

    after = virtually(story())
    assert after.verdict is not None
    assert list(after.verdict.notes) == ["rerank: the fused order stands, for no time was left"]
    assert after.degraded == []
    assert judge.asked == []


async def test_a_cancelled_rerank_is_counted() -> None:
    """Whoever waits is gone at once, and the leg is one that was cancelled."""
    metrics = Metrics("test")
    judge = FakeEngine("j", never, capabilities=JUDGE)
    task = asyncio.create_task(settled(stocked(1, 2), judge, metrics=metrics))
    while not judge.asked:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert judge.ended == ["cancelled"]
    assert metrics.registry.get_sample_value("rcp_gateway_legs_total", {"engine": "j", "outcome": "cancelled"}) == 1
