"""Turns of the loop stay short: what would make one long waits for the next, in line."""

import asyncio

import pytest

from app.resilience import pace as module
from app.resilience.pace import Pace
from tests.support.virtual_time import turns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the pace sees, in a list of one."""
    now = [100.0]
    monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    return now


async def test_a_turn_takes_work_for_so_long(clock: list[float]) -> None:
    """Work is begun until the turn's time is over; the next turn has its own."""
    pace = Pace()
    assert pace.may_begin()
    clock[0] += module.TURN_SECONDS * 0.9
    assert pace.may_begin()
    clock[0] += module.TURN_SECONDS * 0.2
    assert not pace.may_begin()
    await turns(1)
    assert pace.may_begin()


async def test_the_line_moves_by_one_in_each_turn(clock: list[float]) -> None:
    """Who waits comes in order, one in a turn, and nobody overtakes; who gave up takes no turn."""
    pace, came = Pace(), list[str]()

    async def work(name: str) -> None:
        await pace.wait()
        came.append(name)
        assert not pace.may_begin() or name == "d"

    assert pace.may_begin()
    tasks = {name: asyncio.create_task(work(name)) for name in "abcd"}
    await turns(1)
    assert repr(pace) == "<Pace 4 waiting>"
    assert not pace.may_begin()
    tasks["b"].cancel()
    seen = []
    while len(came) < 3:
        await turns(1)
        seen.append(len(came))
    assert came == ["a", "c", "d"]
    assert {1, 2, 3} <= set(seen), "one after the other"
    await asyncio.wait(tasks.values())
    await turns()
    assert pace.may_begin()
    assert repr(pace) == "<Pace 0 waiting>"


async def test_waiting_needs_no_work_before_it(clock: list[float]) -> None:
    """The line moves also where nobody has begun anything in this turn."""
    await Pace().wait()
