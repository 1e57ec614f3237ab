"""Engines that send megabytes: what is held stays bounded, the loop turns, and memory does not stay behind."""

import asyncio
from typing import Any

import pytest

from app.api.admin_views import engines_view
from app.engines import transport
from app.main import COMPILED
from app.resilience import yield_limiter
from tests.support.listening_gateway import question
from tests.support.running_gateway import entry, running
from tests.support.scripted_engine import hit

MIB = 1_048_576


def large(engine: str, size: int = 2 * MIB) -> list[Any]:
    """An answer of about so many bytes."""
    return [hit(f"{engine}-{number}", 1 - number / 100, text="x" * (size // 20)) for number in range(20)]


async def test_answers_of_many_requests_are_read_in_turn(engines: Any) -> None:
    """With one mebibyte allowed, twelve answers of two are all read, if not at once; no engine is to blame."""
    entries = [entry(f"e{number}", await engines(results=large(f"e{number}"))) for number in range(3)]
    async with running(entries, {"engines": {"max_held_bytes": MIB}}) as gateway:
        await gateway.retrieve()  # connections are open
        results = await asyncio.gather(*[gateway.retrieve() for _ in range(4)])
        assert [len(result["hits"]) for result in results] == [10] * 4
        assert all("degraded" not in result["_meta"] for result in results)
        assert gateway.state.answer_bytes.held == 0
        assert await gateway.metric("rcp_gateway_answers_paused_total") > 0
        assert await gateway.metric("rcp_gateway_answer_bytes_held") == 0


async def test_a_request_that_cannot_begin_in_time_is_refused(engines: Any) -> None:
    """While too much is held for all of its time it is -32011, retryable and counted, and asks no engine."""
    engine = await engines()
    async with running([entry("e", engine)]) as gateway:
        holder = gateway.state.answer_bytes.try_enter()
        assert holder is not None
        holder.take(1 << 30)
        refusal = await gateway.post(question(None, query="q", _meta={"deadlineMs": 50}))
        assert (refusal.status_code, refusal.headers["retry-after"]) == (503, "1")
        error = refusal.json()["error"]
        assert (error["code"], error["data"]["retryable"]) == (-32011, True)
        assert await gateway.metric("rcp_gateway_admission_refusals_total", reason="memory") == 1
        assert engine.requests("retrieve") == []
        waiting = asyncio.create_task(gateway.retrieve())
        holder.release()
        assert len((await waiting)["hits"]) == 3


@pytest.mark.skipif(COMPILED, reason="calls between compiled modules cannot be replaced by a test")
async def test_one_turn_of_the_loop_reads_one_large_answer(engines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where reading one takes all the time that a turn has, the next is read in another turn, over all requests."""
    now, turn, reads = 0.0, 0, list[int]()

    def later() -> float:
        nonlocal now
        now += 1.0  # every look at the clock is long after the one before
        return now

    def tick() -> None:
        nonlocal turn
        turn += 1
        ticking[0] = asyncio.get_running_loop().call_soon(tick)

    def loads(body: Any) -> Any:
        reads.append(turn)
        return read(body)

    read = transport.envelope.loads_answer
    entries = [entry(f"e{number}", await engines(results=large(f"e{number}", 100_000))) for number in range(6)]
    async with running(entries) as gateway:
        monkeypatch.setattr(yield_limiter, "perf_counter", later)
        monkeypatch.setattr(transport.envelope, "loads_answer", loads)
        ticking = [asyncio.get_running_loop().call_soon(tick)]
        try:
            for _ in range(2):  # over fresh connections, and over open ones
                await asyncio.gather(gateway.retrieve(), gateway.retrieve())
        finally:
            ticking[0].cancel()
    assert len(reads) == 24
    assert len(set(reads)) == 24


@pytest.mark.skipif(COMPILED, reason="calls between compiled modules cannot be replaced by a test")
async def test_the_console_view_of_many_engines_is_made_in_slices(
    engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the view of one engine takes all the time that a turn has, the next is made in another turn."""
    now, turns = 0.0, 0

    def later() -> float:
        nonlocal now
        now += 1.0
        return now

    def tick() -> None:
        nonlocal turns
        turns += 1
        ticking[0] = asyncio.get_running_loop().call_soon(tick)

    url = await engines()
    async with running([entry(f"e{number}", url) for number in range(30)]) as gateway:
        monkeypatch.setattr(yield_limiter, "perf_counter", later)
        ticking = [asyncio.get_running_loop().call_soon(tick)]
        state = gateway.state
        try:
            view = await engines_view(state, {})
        finally:
            ticking[0].cancel()
    assert [engine["id"] for engine in view["engines"]] == [engine.id for engine in state.engines.engines]
    assert turns >= len(view["engines"]) - 1
