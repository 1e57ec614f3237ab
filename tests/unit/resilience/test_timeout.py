"""The end of the time one piece of work has: told apart from every other cancellation, and leaving no trace."""

import asyncio

import pytest

from app.resilience.cancel_scope import Timeout
from tests.support.virtual_time import jumping_loop, turns, virtually


async def bounded(seconds: float, work: float) -> str:
    """Work for so long with so much time; say how it ended."""
    expiry = Timeout(asyncio.get_running_loop().time() + seconds)
    try:
        await asyncio.sleep(work)
    except asyncio.CancelledError:
        if not expiry.is_the_cause():
            raise
        return "late"
    finally:
        expiry.end()
    return "done"


def cancellations() -> int:
    """How many cancellations of the running task are still to be answered for."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


@pytest.mark.parametrize(("seconds", "work", "end"), [(2, 1, "done"), (1, 2, "late"), (0, 1, "late"), (-1, 1, "late")])
def test_work_ends_in_time_or_is_ended(seconds: float, work: float, end: str) -> None:
    """Work that is quicker than its deadline is untouched; any other is ended at the deadline, and never later."""

    async def story() -> None:
        loop = jumping_loop()
        started = loop.time()
        assert await bounded(seconds, work) == end
        assert loop.time() - started == min(work, max(seconds, 0))
        assert cancellations() == 0
        await asyncio.sleep(10)

    virtually(story())


def test_work_that_never_waits_is_not_ended() -> None:
    """Work that is over before the loop turns again is over, even when its deadline has passed."""

    async def story() -> None:
        expiry = Timeout(asyncio.get_running_loop().time() - 1)
        expiry.end()
        assert repr(expiry) == "<Timeout pending>"
        await turns()
        assert cancellations() == 0

    virtually(story())


def test_cancellation_from_outside_is_not_the_deadline() -> None:
    """Who is cancelled by somebody else stays cancelled."""

    async def story() -> None:
        task = asyncio.create_task(bounded(5, 9))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    virtually(story())


@pytest.mark.parametrize("first", ["outside", "deadline"])
def test_both_at_once_is_a_cancellation(first: str) -> None:
    """When the deadline and somebody else end the work in the same moment, the other's wish wins."""

    async def story() -> None:
        loop = jumping_loop()

        def cancel_at_the_deadline() -> None:
            loop.call_at(1001.0, lambda: task.cancel())

        if first == "outside":
            cancel_at_the_deadline()
        task = asyncio.create_task(bounded(1.0, 9))
        await turns(1)
        if first == "deadline":
            cancel_at_the_deadline()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    virtually(story())


def test_one_inside_another() -> None:
    """The nearer of two nested deadlines ends the inner work only; the outer goes on and keeps its own."""

    async def story() -> None:
        loop = jumping_loop()
        outer = Timeout(loop.time() + 3)
        ends: list[str] = []
        try:
            ends.append(await bounded(1, 9))
            ends.append(await bounded(9, 1))
            await asyncio.sleep(9)
        except asyncio.CancelledError:
            assert outer.is_the_cause()
            ends.append("outer")
        finally:
            outer.end()
        assert ends == ["late", "done", "outer"]
        assert loop.time() == 1003
        assert cancellations() == 0

    virtually(story())


def test_fault_in_the_moment_of_the_deadline_is_the_fault() -> None:
    """Work that turns its cancellation into an error of its own leaves no cancellation behind."""

    async def story() -> None:
        expiry = Timeout(asyncio.get_running_loop().time() + 1)
        try:
            try:
                await asyncio.sleep(9)
            except asyncio.CancelledError:
                raise ValueError from None
        except ValueError:
            pass
        finally:
            expiry.end()
        assert repr(expiry) == "<Timeout come>"
        assert cancellations() == 0
        await asyncio.sleep(1)

    virtually(story())


def test_asked_twice_it_is_settled() -> None:
    """The deadline answers for its cancellation once and no more."""

    async def story() -> None:
        expiry = Timeout(asyncio.get_running_loop().time() + 1)
        try:
            await asyncio.sleep(9)
        except asyncio.CancelledError:
            assert expiry.is_the_cause()
            assert not expiry.is_the_cause()
        finally:
            expiry.end()
            expiry.end()
        assert cancellations() == 0

    virtually(story())
