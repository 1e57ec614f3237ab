"""The work of one answer grows no faster than engines x hits; counted in calls, not in time."""

import asyncio
import sys
from typing import Any

import pytest

from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.retrieve import retrieve
from app.protocol.errors import CALL_KINDS
from app.settings.schema import GatewaySettings
from app.telemetry.metrics import Metrics
from tests.support.fake_engine import FakeEngine, Json, call_of, members_of

SLACK = 1.15
"""For the sort of the fused order, n log n, and for what differs by chance."""


def ranked(engine: int, k: int) -> list[Json]:
    """What an engine answers: half of the documents are everybody's, each with a text of its own."""
    return [
        {
            "id": f"shared-{rank}" if rank % 2 else f"{engine}-{rank}",
            "score": 1.0 - rank / 1000,
            "confidence": 0.9 - rank / 1000,
            "text": f"what engine {engine} holds of {rank}",
            "meta": {"lang": "en"},
            "citation": {"uri": f"https://docs.example/{rank}"},
        }
        for rank in range(k)
    ]


async def calls_of(engines: int, k: int) -> int:
    """Calls of Python and C functions that one answer takes, its sampled observation and the report included."""
    peers = [FakeEngine(f"e{number:03}", {"hits": ranked(number, 2 * k)}) for number in range(engines)]
    members = members_of(*peers)
    metrics = Metrics("test")
    metrics.declare_engines(members.ids(), CALL_KINDS)
    instrumentation = RetrieveInstrumentation(metrics)
    call = call_of(now=asyncio.get_running_loop().time(), k=k, x_gateway={"explain": True})
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        result = (await retrieve(call, members, GatewaySettings(), instrumentation)).result
    finally:
        sys.setprofile(before)
    assert len(result["hits"]) == k  # type: ignore[arg-type]
    return calls


@pytest.mark.parametrize(("engines", "k"), [(16, 50), (50, 20)])
async def test_work_is_linear_in_engines_and_in_hits(engines: int, k: int) -> None:
    """Twice the engines, or twice the hits, are at most twice the calls: 32 x 50 and 100 x 20 are not special."""
    await calls_of(engines, k)  # what is made once per process
    once = await calls_of(engines, k)
    assert await calls_of(2 * engines, k) <= 2 * SLACK * once
    assert await calls_of(engines, 2 * k) <= 2 * SLACK * once
