"""Turns of the loop stay short: what would make one long waits for the next, in line."""

import asyncio
from itertools import pairwise

import pytest

from app.resilience import admission_queue as module
from app.resilience.admission_queue import AdmissionQueue, TooLate
from tests.support.virtual_time import jumping_loop, turns, virtually

FOR_EVER = float("inf")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the pace sees, in a list of one."""
    now = [100.0]
    monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    return now


async def test_a_turn_takes_work_for_so_long(clock: list[float]) -> None:
    """Work is begun until the turn's time is over; the next turn has its own."""
    pace = AdmissionQueue()
    assert pace.may_begin()
    clock[0] += module.TURN_SECONDS * 0.9
    assert pace.may_begin()
    clock[0] += module.TURN_SECONDS * 0.2
    assert not pace.may_begin()
    await turns(1)
    assert pace.may_begin()


async def test_the_line_moves_by_one_in_each_turn(clock: list[float]) -> None:
    """Who waits comes in order, one in a turn, and nobody overtakes; who gave up takes no turn."""
    pace, came = AdmissionQueue(), list[str]()

    async def work(name: str) -> None:
        await pace.wait(FOR_EVER)
        came.append(name)
        assert not pace.may_begin() or name == "d"

    assert pace.may_begin()
    tasks = {name: asyncio.create_task(work(name)) for name in "abcd"}
    await turns(1)
    assert repr(pace) == "<Pace 4 waiting for 0.004 s>"
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
    assert repr(pace) == "<Pace 0 waiting for 0.000 s>"


async def test_waiting_needs_no_work_before_it(clock: list[float]) -> None:
    """The line moves also where nobody has begun anything in this turn."""
    await AdmissionQueue().wait(FOR_EVER)


async def test_long_turns_begin_more(clock: list[float]) -> None:
    """Where turns are long for another reason, one piece of work in each would be too little: a share of their time is
    spent on the queue."""
    pace, came = AdmissionQueue(), list[int]()

    async def work(number: int) -> None:
        await pace.wait(FOR_EVER)
        clock[0] += module.TURN_SECONDS / 2
        came.append(number)

    tasks = [asyncio.create_task(work(number)) for number in range(200)]
    seen = [0]
    while len(came) < 200:
        clock[0] += 0.1  # somebody else's work
        await turns(1)
        if len(came) > seen[-1]:
            seen.append(len(came))
    await asyncio.wait(tasks)
    assert came == list(range(200))
    steps = [after - before for before, after in pairwise(seen)]
    most = module.LONGEST_SECONDS / (module.TURN_SECONDS / 2)
    assert steps[0] == 1
    assert max(steps) > 2
    assert max(steps) <= most


def test_nobody_waits_who_cannot_be_served_in_time() -> None:
    """Whoever would come too late by the rate at which the queue moves is refused at once, and whoever has waited until
    its time is refused then, though nothing moves; those behind keep their order."""

    async def scenario() -> None:
        pace, loop = AdmissionQueue(), jumping_loop()
        pace._turning = True  # a turn that does not end: the queue does not move
        now = loop.time()
        waiting = [asyncio.create_task(pace.wait(now + 60 + number)) for number in range(100)]
        await turns(1)
        assert pace.expected_wait == pytest.approx(100 * module.TURN_SECONDS)
        with pytest.raises(TooLate) as refused:
            await pace.wait(now + 0.09)
        assert refused.value.seconds == pytest.approx(0.1)
        assert loop.time() == now
        pace._refusals = 0.0  # many have been refused in this second: the next wait until their time is over
        ends = await asyncio.gather(pace.wait(now + 0.05), return_exceptions=True)
        assert [type(end) for end in ends] == [TooLate]
        assert loop.time() == pytest.approx(now + 0.05)
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(end, TooLate) for end in ends)
        assert loop.time() == pytest.approx(now + 159)

    virtually(scenario())
