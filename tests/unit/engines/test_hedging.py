"""Asking a second replica: when a call is slow, and a race that leaves nobody behind."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from app.engines.call import race
from app.engines.policies import LEAST, REMEMBERED, HedgePolicy
from tests.support.virtual_time import jumping_loop, virtually


def test_slow_is_told_by_the_times_before() -> None:
    """The delay is the 95th percentile of the last answers, and unknown while there are few."""
    hedge = HedgePolicy(0.05)
    for number in range(LEAST - 1):
        hedge.took(number / 100)
    assert hedge.delay is None
    assert repr(hedge) == "<Hedge after unknown, <Allowance 1.0 of 1 repeats>>"
    hedge.took(0.19)
    assert hedge.delay == 0.19
    for _ in range(REMEMBERED):
        hedge.took(0.5)
    assert hedge.delay == 0.5


def after(seconds: float, outcome: str | Exception) -> Callable[[], Awaitable[str]]:
    """A runner that takes so long."""

    async def run() -> str:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            ENDED.append(seconds)
            raise
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return run


ENDED: list[float] = []
"""The runners that were cancelled."""


@pytest.fixture(autouse=True)
def nobody_ended() -> None:
    """Each test begins with nobody cancelled."""
    ENDED.clear()


@pytest.mark.parametrize(
    ("first", "second", "answer", "when", "ended"),
    [
        ((0.5, "a"), (0.1, "b"), "a", 0.5, []),
        ((9.0, "a"), (0.5, "b"), "b", 1.5, [9.0]),
        ((1.2, "a"), (5.0, "b"), "a", 1.2, [5.0]),
        ((1.2, ValueError("a")), (1.0, "b"), "b", 2.0, []),
        ((3.0, "a"), (1.0, ValueError("b")), "a", 3.0, []),
    ],
    ids=["quick", "hedge wins", "first wins", "first fails", "hedge fails"],
)
def test_race(
    first: tuple[float, str | Exception],
    second: tuple[float, str | Exception],
    answer: str,
    when: float,
    ended: list[float],
) -> None:
    """The first answer wins, a fault does not while the other may answer, and the loser is ended."""

    async def story() -> None:
        assert await race(after(*first)(), after(*second), 1.0) == answer
        assert jumping_loop().time() - 1000 == pytest.approx(when)
        assert ended == ENDED
        assert asyncio.all_tasks() == {asyncio.current_task()}

    virtually(story())


def test_both_failing_is_the_first_one_s_fault() -> None:
    """If nobody answers, the first one's fault is told."""

    async def story() -> None:
        with pytest.raises(ValueError, match="a"):
            await race(after(3.0, ValueError("a"))(), after(0.1, ValueError("b")), 1.0)

    virtually(story())


def test_a_hedge_may_be_declined() -> None:
    """Without a second the first is waited for."""

    async def story() -> None:
        assert await race(after(3.0, "a")(), lambda: None, 1.0) == "a"

    virtually(story())


def test_cancelled_race_ends_both() -> None:
    """Who cancels the race cancels both runners, and is held up until they are gone."""

    async def story() -> None:
        racing = asyncio.create_task(race(after(9.0, "a")(), after(8.0, "b"), 1.0))
        await asyncio.sleep(2)
        racing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await racing
        assert sorted(ENDED) == [8.0, 9.0]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    virtually(story())
