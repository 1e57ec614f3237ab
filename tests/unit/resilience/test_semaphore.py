"""The gate: fair, bounded, and no place is ever lost or given twice, whoever is cancelled when."""

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.resilience.semaphore import BoundedSemaphore, SemaphoreQueueFull
from tests.support.virtual_time import turns, virtually


def waiters(gate: BoundedSemaphore, names: Iterable[str], entered: list[str]) -> dict[str, asyncio.Task[None]]:
    """A task per name that waits at the gate and writes its name down once it is in."""

    async def wait(name: str) -> None:
        await gate.enter()
        entered.append(name)

    return {name: asyncio.create_task(wait(name)) for name in names}


async def test_room_is_taken_at_once() -> None:
    """Entering does not wait while there is room."""
    gate = BoundedSemaphore(2, queue=1)
    assert gate.try_enter()
    await gate.enter()
    assert gate.in_flight == 2
    assert not gate.try_enter()
    assert repr(gate) == "<BoundedSemaphore 2/2 in flight, 0/1 waiting>"


async def test_first_come_first_served() -> None:
    """Places are handed over in the order of arrival."""
    gate = BoundedSemaphore(1, queue=3)
    assert gate.try_enter()
    entered: list[str] = []
    waiters(gate, "abc", entered)
    await turns()
    assert gate.waiting == 3
    for _ in range(3):
        gate.leave()
        await turns()
    assert entered == ["a", "b", "c"]
    assert (gate.in_flight, gate.waiting) == (1, 0)
    gate.leave()
    assert gate.in_flight == 0


async def test_the_expected_wait_follows_the_rate_of_completed_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that was given up frees a place, but does not make the queue look faster."""
    clock = [100.0]
    monkeypatch.setattr("app.resilience.semaphore.perf_counter", lambda: clock[0])
    gate = BoundedSemaphore(2, queue=10)
    assert (gate.expected_wait, gate.expected_seconds) == (0.0, 0.0)

    async def pass_through(times: int, seconds: float, *, completed: bool) -> None:
        for _ in range(times):
            while gate.in_flight < gate.limit:
                assert gate.try_enter()
            clock[0] += seconds
            gate.leave(completed=completed)
        while gate.in_flight < gate.limit:
            assert gate.try_enter()

    await pass_through(200, 0.1, completed=True)
    assert gate.expected_wait == pytest.approx(0.1, rel=0.01)
    assert gate.expected_seconds == pytest.approx(0.2, rel=0.01)
    await pass_through(50, 0.001, completed=False)
    assert gate.expected_seconds >= 0.19
    gate.leave()
    assert gate.expected_wait == 0.0


async def test_nobody_jumps_the_queue() -> None:
    """A place on its way to the first who waits cannot be taken by one who comes later."""
    gate = BoundedSemaphore(1, queue=2)
    assert gate.try_enter()
    entered: list[str] = []
    waiters(gate, "a", entered)
    await turns()
    gate.leave()
    assert not gate.try_enter()
    assert entered == []
    await turns()
    assert entered == ["a"]
    assert gate.in_flight == 1


async def test_full_queue_refuses_at_once() -> None:
    """Whoever finds the queue full is refused without waiting, and need not leave."""
    gate = BoundedSemaphore(1, queue=1)
    assert gate.try_enter()
    entered: list[str] = []
    queue = waiters(gate, "a", entered)
    await turns()
    with pytest.raises(SemaphoreQueueFull):
        await gate.enter()
    assert (gate.in_flight, gate.waiting) == (1, 1)
    gate.leave()
    await queue["a"]
    assert gate.in_flight == 1


async def test_no_queue_at_all() -> None:
    """With a queue of 0 the gate either lets in or refuses."""
    gate = BoundedSemaphore(1, queue=0)
    await gate.enter()
    with pytest.raises(SemaphoreQueueFull):
        await gate.enter()
    gate.leave()
    await gate.enter()
    assert gate.in_flight == 1


async def test_cancelled_while_waiting() -> None:
    """One who gives up in the queue frees its room there and takes no place."""
    gate = BoundedSemaphore(1, queue=2)
    assert gate.try_enter()
    entered: list[str] = []
    queue = waiters(gate, "ab", entered)
    await turns()
    queue["a"].cancel()
    await turns()
    assert gate.waiting == 1
    gate.leave()
    await turns()
    assert entered == ["b"]
    gate.leave()
    assert gate.in_flight == 0


async def test_cancelled_after_the_place_was_handed_over() -> None:
    """One who is cancelled between being let in and noticing it passes the place on."""
    gate = BoundedSemaphore(1, queue=2)
    assert gate.try_enter()
    entered: list[str] = []
    queue = waiters(gate, "ab", entered)
    await turns()
    gate.leave()
    queue["a"].cancel()
    await turns()
    assert queue["a"].cancelled()
    assert entered == ["b"]
    assert (gate.in_flight, gate.waiting) == (1, 0)


async def test_cancelled_before_the_place_was_handed_over() -> None:
    """leave() passes over one who was cancelled and has not run since."""
    gate = BoundedSemaphore(1, queue=2)
    assert gate.try_enter()
    entered: list[str] = []
    queue = waiters(gate, "ab", entered)
    await turns()
    queue["a"].cancel()
    gate.leave()
    await turns()
    assert queue["a"].cancelled()
    assert entered == ["b"]
    assert (gate.in_flight, gate.waiting) == (1, 0)


async def test_all_who_wait_are_cancelled_at_once() -> None:
    """A whole queue that gives up leaves a gate that works as before."""
    gate = BoundedSemaphore(1, queue=50)
    assert gate.try_enter()
    queue = waiters(gate, (str(number) for number in range(50)), [])
    await turns()
    for task in queue.values():
        task.cancel()
    gate.leave()
    await turns()
    assert (gate.in_flight, gate.waiting) == (0, 0)
    assert gate.try_enter()


Step = tuple[str, int]
Steps = st.lists(
    st.tuples(st.sampled_from(["enter", "try_enter", "leave", "cancel", "turn"]), st.integers(0, 7)), max_size=60
)


@given(Steps, st.integers(1, 3), st.integers(0, 4))
def test_no_place_is_lost_or_doubled(steps: list[Step], limit: int, queue: int) -> None:
    """However entering, leaving and cancelling interleave: holders never exceed the limit, arrivals keep their order,
    and when all is over the gate is empty."""
    virtually(_interleave(steps, limit, queue))


async def _interleave(steps: list[Step], limit: int, queue: int) -> None:
    gate = BoundedSemaphore(limit, queue)
    held: list[int] = []
    served: list[int] = []
    tasks: dict[int, asyncio.Task[None]] = {}

    async def principal(number: int) -> None:
        if gate.try_enter():
            assert gate.waiting == 0, "who comes later overtakes nobody who waits"
            held.append(number)
            return
        try:
            await gate.enter()
        except SemaphoreQueueFull:
            assert gate.in_flight == limit
            return
        held.append(number)
        served.append(number)
        assert len(held) <= gate.in_flight <= limit

    for number, (act, choice) in enumerate(steps):
        running = [task for task in tasks.values() if not task.done()]
        if act == "enter":
            tasks[number] = asyncio.create_task(principal(number))
        elif act == "try_enter" and gate.try_enter():
            held.append(number)
        elif act == "leave" and held:
            held.pop(choice % len(held))
            gate.leave()
        elif act == "cancel" and running:
            running[choice % len(running)].cancel()
        elif act == "turn":
            await turns(1 + choice % 3)
        assert gate.in_flight <= limit
        assert gate.waiting <= queue
    await turns()
    assert served == sorted(served)
    assert gate.in_flight == len(held)
    while held:
        held.pop()
        gate.leave()
        await turns(2)
    assert (gate.in_flight, gate.waiting) == (0, 0)
    await asyncio.gather(*tasks.values(), return_exceptions=True)
