"""Progress of a tool call: in order, complete before the result, and never in anybody's way."""

import asyncio
from typing import Any

from app.mcp.progress_reporter import McpProgressReporter

Told = list[tuple[float, float | None, str | None]]


def line(engine: str, status: str = "ok") -> dict[str, Any]:
    """The log line of a leg that ended."""
    return {"level": "debug", "message": f"{engine}: done", "data": {"engine": engine, "status": status}}


async def test_each_engine_that_answered_is_told_before_the_end() -> None:
    """Numbers rise by one, failures are passed over, and `finish` waits for the last."""
    told: Told = []

    async def report(*said: Any) -> None:
        await asyncio.sleep(0)
        told.append(said)

    reporter = McpProgressReporter(report)
    reporter.open()
    reporter.open()
    for engine, status in (("a", "ok"), ("b", "failed"), ("c", "ok")):
        reporter.tell({"stage": "recall"})
        reporter.log(line(engine, status))
    assert repr(reporter) == "<Telling of 0 engines, 2 to be told>"
    await reporter.finish()
    assert told == [(1, None, "a: done"), (2, None, "c: done")]
    assert repr(reporter) == "<Telling of 2 engines, 0 to be told>"


async def test_a_client_that_does_not_listen_is_left() -> None:
    """`end` lets go of what could not be told; without an engine asked there is nothing to wait for."""

    async def never(*said: Any) -> None:
        await asyncio.Event().wait()

    reporter = McpProgressReporter(never)
    await reporter.finish()
    reporter.open()
    reporter.log(line("a"))
    await asyncio.sleep(0)
    reporter.end()
    assert reporter._writer is not None
    await asyncio.wait([reporter._writer])
    assert reporter._writer.cancelled()
