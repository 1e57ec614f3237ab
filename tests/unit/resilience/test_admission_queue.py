"""Turns of the loop stay short: what would make one long waits for the next, in line."""

import asyncio
from contextlib import suppress
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
    assert repr(pace) == "<AdmissionQueue 4 waiting for 0.004 s>"
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
    assert repr(pace) == "<AdmissionQueue 0 waiting for 0.000 s>"


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


def test_nobody_waits_for_longer_than_a_share_of_its_time() -> None:
    """A request is refused while there is time left to say so, though nothing moves; at once if its time is over."""

    async def scenario() -> None:
        queue, loop = AdmissionQueue(), jumping_loop()
        queue._turning = True  # a turn that does not end: the queue does not move
        now = loop.time()
        with pytest.raises(TooLate):
            await queue.wait(now)
        assert loop.time() == now
        ends = await asyncio.gather(*(queue.wait(now + seconds) for seconds in (1, 10)), return_exceptions=True)
        assert [type(end) for end in ends] == [TooLate, TooLate]
        assert loop.time() == pytest.approx(now + 10 * module.WAIT_SHARE)

    virtually(scenario())


def test_the_newest_are_served_first_once_the_oldest_waits_too_long() -> None:
    """A queue that is longer than the deadlines of those in it serves whoever still has time; when it keeps up again,
    the oldest come first again."""

    async def scenario() -> None:
        queue, came = AdmissionQueue(), list[str]()

        async def work(name: str, seconds: float) -> None:
            with suppress(TooLate):
                await queue.wait(asyncio.get_running_loop().time() + seconds)
                came.append(name)

        queue._turning = True  # the queue does not move
        tasks = [asyncio.create_task(work(name, 10.0)) for name in "ab"]
        await asyncio.sleep(10 * module.WAIT_SHARE * module.OLDEST_FIRST_SHARE)
        tasks += [asyncio.create_task(work(name, 10.0)) for name in "cd"]
        await turns(1)
        queue._turn()
        await asyncio.wait(tasks)
        assert came == ["d", "c", "b", "a"]
        came.clear()
        await asyncio.gather(*(work(name, 10.0) for name in "ef"))
        assert came == ["e", "f"]

    virtually(scenario())
