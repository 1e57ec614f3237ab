"""Trying once more: how long the pauses are, that extra work stays a share of the usual, and when the loop ends."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from app.resilience.retry import RetryBudget, RetryPace, ask_again
from tests.support.virtual_time import jumping_loop, virtually


class Fault(Exception):
    """What is worth another attempt."""


def test_pauses_double_up_to_the_longest() -> None:
    """Each pause is twice the one before, no more than the longest, times the jitter."""
    pace = RetryPace(0.1, 0.5, lambda: 0.5)
    assert [pace.pause(repeats) for repeats in range(5)] == [0.05, 0.1, 0.2, 0.25, 0.25]


def test_a_pause_that_was_asked_for_is_kept() -> None:
    """Who asks for a longer pause gets it whole; a shorter one than is due changes nothing."""
    pace = RetryPace(0.1, 0.5, lambda: 1.0)
    assert (pace.pause(0, 2.0), pace.pause(0, 0.01)) == (2.0, 0.1)


def test_repeats_stay_a_share_of_calls() -> None:
    """However many calls fail, repeats are a fifth of them and what was saved up before (B39)."""
    budget = RetryBudget(0.2, 10)
    spent = 0
    for _ in range(1000):
        budget.earn()
        spent += budget.spend()
    assert 200 <= spent <= 210


def test_nothing_is_saved_up_without_bound() -> None:
    """A long quiet time earns no more than the reserve."""
    budget = RetryBudget(0.5, 3)
    for _ in range(1000):
        budget.earn()
    assert sum(budget.spend() for _ in range(1000)) == 3
    assert repr(budget) == "<Allowance 0.0 of 3 repeats>"


def test_share_of_nothing_allows_nothing() -> None:
    """With a share of 0 there is no repeat, not even at first."""
    budget = RetryBudget(0, 10)
    budget.earn()
    assert not budget.spend()


def failing(times: int, then: str = "answer") -> tuple[Callable[[], Awaitable[str]], list[float]]:
    """An attempt that fails so often, and the moments at which it was made."""
    made: list[float] = []

    async def attempt() -> str:
        made.append(jumping_loop().time() - 1000)
        if len(made) <= times:
            raise Fault(f"attempt {len(made)}")
        return then

    return attempt, made


def test_it_is_repeated_after_each_pause() -> None:
    """Attempts are made as far apart as the pauses say, and the first answer is the answer."""

    async def story() -> None:
        attempt, made = failing(2)
        pauses = iter([0.5, 1.0, 2.0])
        assert await ask_again(attempt, Fault("before"), Fault, lambda fault: next(pauses)) == "answer"
        assert made == [0.5, 1.5, 3.5]

    virtually(story())


def test_without_a_pause_the_last_fault_is_raised() -> None:
    """Once there shall be no other attempt, the fault of the last one comes out; each is asked about once."""

    async def story() -> None:
        attempt, made = failing(9)
        asked: list[str] = []

        def pause(fault: BaseException) -> float | None:
            asked.append(str(fault))
            return 0.1 if len(asked) < 3 else None

        with pytest.raises(Fault, match="attempt 2"):
            await ask_again(attempt, Fault("before"), Fault, pause)
        assert asked == ["before", "attempt 1", "attempt 2"]
        assert len(made) == 2

    virtually(story())


def test_no_attempt_at_all_is_the_fault_before() -> None:
    """If the first fault is worth no other attempt, it is what comes out, and nothing was tried."""

    async def story() -> None:
        attempt, made = failing(0)
        with pytest.raises(Fault, match="before"):
            await ask_again(attempt, Fault("before"), Fault, lambda fault: None)
        assert made == []

    virtually(story())


def test_another_kind_of_fault_ends_it() -> None:
    """What is no fault of this kind is nobody's question: it comes out as it is."""

    async def story() -> None:
        async def attempt() -> str:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await ask_again(attempt, Fault("before"), Fault, lambda fault: 0.1)

    virtually(story())


@pytest.mark.parametrize("during", ["pause", "attempt"])
def test_cancellation_ends_it_at_once(during: str) -> None:
    """Cancelled in a pause or in an attempt, nothing more is tried."""

    async def story() -> None:
        made: list[None] = []

        async def attempt() -> str:
            made.append(None)
            await asyncio.Event().wait()
            return "never"

        pause = 60.0 if during == "pause" else 0.0
        asking = asyncio.create_task(ask_again(attempt, Fault("before"), Fault, lambda fault: pause))
        await asyncio.sleep(1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert len(made) == (during == "attempt")

    virtually(story())
