"""Callers that share one piece of work: who joins, who leaves, and what each of them gets."""

import asyncio

import pytest

from app.resilience.single_flight import SingleFlight

KEY = b"key"


class Work:
    """Work that ends when the test says so; counts its starts and cancellations."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.starts = 0
        self.cancelled = 0
        self.fault = fault
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.stopped = asyncio.Event()

    async def __call__(self) -> int:
        self.starts += 1
        number = self.starts
        self.begun.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            self.stopped.set()
            raise
        if self.fault is not None:
            raise self.fault
        return number


async def begun(flights: SingleFlight[int], work: Work, callers: int) -> list[asyncio.Task[tuple[int, bool]]]:
    """Callers of one key, all of which wait."""
    tasks = [asyncio.create_task(flights.run(KEY, work)) for _ in range(callers)]
    await work.begun.wait()
    return tasks


async def test_equal_callers_share_one_run() -> None:
    work, flights = Work(), SingleFlight[int](60)
    tasks = await begun(flights, work, 200)
    work.may_end.set()
    answers = await asyncio.gather(*tasks)
    assert work.starts == 1
    assert answers == [(1, False)] + [(1, True)] * 199


async def test_the_others_are_answered_when_the_first_leaves() -> None:
    work, flights = Work(), SingleFlight[int](60)
    first, *others = await begun(flights, work, 200)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    work.may_end.set()
    assert await asyncio.gather(*others) == [(1, True)] * 199
    assert (work.starts, work.cancelled) == (1, 0)


async def test_the_work_is_cancelled_with_its_last_caller_and_not_joined_afterwards() -> None:
    work, flights = Work(), SingleFlight[int](60)
    tasks = await begun(flights, work, 3)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    later = asyncio.create_task(flights.run(KEY, work))
    await work.stopped.wait()
    work.may_end.set()
    assert await later == (2, False)
    assert work.cancelled == 1


async def test_an_error_reaches_those_who_wait_and_nobody_after() -> None:
    work, flights = Work(ValueError("no answer")), SingleFlight[int](60)
    tasks = await begun(flights, work, 3)
    work.may_end.set()
    faults = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(fault) for fault in faults] == ["no answer"] * 3
    work.fault = None
    assert await flights.run(KEY, work) == (2, False)


@pytest.mark.parametrize("flights", [SingleFlight[int](0), SingleFlight[int](60, most_callers=1)])
async def test_nobody_joins_after_the_time_or_beyond_the_number(flights: SingleFlight[int]) -> None:
    work = Work()
    tasks = await begun(flights, work, 2)
    work.may_end.set()
    assert await asyncio.gather(*tasks) == [(1, False), (2, False)]


async def test_a_retired_flight_answers_its_callers_and_takes_no_more() -> None:
    work, flights = Work(), SingleFlight[int](60)
    tasks = await begun(flights, work, 1)
    flights.retire(KEY)
    later = asyncio.create_task(flights.run(KEY, work))
    work.may_end.set()
    assert await asyncio.gather(*tasks, later) == [(1, False), (2, False)]
