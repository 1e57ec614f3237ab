"""Bytes held at once stay bounded, nobody waits for ever, and memory goes back afterwards."""

import asyncio

import pytest

from app.resilience.byte_budget import GIVE_BACK_SECONDS, HELD, BudgetExhausted, ByteBudget, HeldBytes, hold
from tests.support.virtual_time import turns, virtually


def entered(budget: ByteBudget) -> HeldBytes:
    """A request that begins at once."""
    holder = budget.try_enter()
    assert holder is not None
    return holder


async def test_only_the_oldest_reads_beyond_the_limit() -> None:
    """At the limit all others pause; when the oldest ends the next oldest reads on, and with room everybody."""
    budget = ByteBudget(100)
    first, second, third = entered(budget), entered(budget), entered(budget)
    resumed: list[str] = []
    first.take(60)
    assert second.may_read()
    second.take(50)
    third.take(20)
    assert (first.may_read(), second.may_read(), third.may_read()) == (True, False, False)
    second.pause(lambda: resumed.append("second"))
    third.pause(lambda: resumed.append("third"))
    assert (first.waited, second.waited) == (False, True)
    first.take(40)
    assert budget.held == 170
    assert budget.try_enter() is None
    first.release()
    assert resumed == ["second", "third"]  # 70 are held: there is room for both
    second.take(60)
    third.pause(lambda: resumed.append("third again"))
    second.release()
    assert resumed[-1] == "third again"
    third.release()
    third.take(500)  # the end of an answer that nobody waits for any more
    assert budget.held == 0
    assert repr(budget) == "<ByteBudget 0/100 bytes held by 0, 0 waiting>"


def test_requests_wait_to_begin_until_their_deadline() -> None:
    """In turn, as soon as less than the limit is held; who cannot begin in time is refused, and holds nobody up."""

    async def story() -> None:
        budget, loop = ByteBudget(100), asyncio.get_running_loop()
        first = entered(budget)
        first.take(100)
        began: list[str] = []

        async def enter(name: str, deadline: float) -> None:
            (await budget.enter(deadline)).take(0)
            began.append(name)

        hasty = asyncio.create_task(enter("hasty", loop.time() + 1))
        patient = asyncio.create_task(enter("patient", loop.time() + 10))
        left = asyncio.create_task(enter("left", loop.time() + 10))
        await asyncio.sleep(2)
        with pytest.raises(BudgetExhausted):
            await hasty
        patient.cancel()
        await turns()
        assert began == []
        first.release()
        await left
        assert began == ["left"]
        assert patient.cancelled()

    virtually(story())


def test_memory_goes_back_after_large_answers_only() -> None:
    """A second after much was held, and not while it still is."""

    async def story() -> None:
        given: list[float] = []
        loop = asyncio.get_running_loop()
        budget = ByteBudget(1600, give_back=lambda: given.append(loop.time()))
        small = entered(budget)
        small.take(100)
        small.release()
        await asyncio.sleep(2 * GIVE_BACK_SECONDS)
        assert given == []
        large, other = entered(budget), entered(budget)
        large.take(800)
        other.take(800)
        large.release()
        await asyncio.sleep(2.5 * GIVE_BACK_SECONDS)
        assert given == []
        other.release()
        await asyncio.sleep(GIVE_BACK_SECONDS)
        assert len(given) == 1

    virtually(story())


async def test_answers_count_for_the_request_they_are_for() -> None:
    """`hold` finds the request that is being answered; outside of any nothing is counted."""
    budget = ByteBudget(100)
    hold(5)
    assert budget.held == 0
    holder = entered(budget)
    before = HELD.set(holder)
    hold(5)
    HELD.reset(before)
    assert (budget.held, holder.held) == (5, 5)
    assert repr(holder) == "<HeldBytes 5, 0 answers paused>"
