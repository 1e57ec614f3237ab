"""The bound on requests under way: nobody is let into a queue that is too slow to be worth waiting in."""

import asyncio

import pytest

from app.api.admission import Admission
from app.resilience import semaphore
from app.settings.schema import ServerSettings
from app.telemetry.metrics import Metrics


async def test_a_slow_queue_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places that get free once a second are no use to those who wait at most 100 ms: after the first such places only
    one request waits at a time, and all others are refused at once. When places get free quickly, the queue fills."""
    clock = [100.0]
    monkeypatch.setattr(semaphore, "perf_counter", lambda: clock[0])
    settings = ServerSettings(max_in_flight=1, max_waiting=3, max_wait_ms=100)
    admission = Admission(settings, Metrics("1").server)
    assert admission.try_enter()

    async def wait_for_places(seconds_per_place: float) -> int:
        """How many were let wait at once when places have got free at this rate for a while."""
        most = 0
        for _ in range(100):
            waiting = []
            while not admission.full:
                waiting.append(asyncio.create_task(admission.enter()))
                await asyncio.sleep(0)
            most = len(waiting)
            for task in waiting:
                clock[0] += seconds_per_place
                admission.leave()
                await task
        return most

    assert await wait_for_places(0.0) == 3
    assert await wait_for_places(1.0) == 1
    assert await wait_for_places(0.01) == 3
