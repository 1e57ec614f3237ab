"""How much may still be asked: what counts together, when it counts anew, and how large the tables become."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.settings.tenants_file import LimitsEntry
from app.state.quotas import Owner, Quotas, Reached, at_once, window_of
from app.state.rate_limit import LocalLimiter, Reservation, Window

RED, BLUE = Owner("red"), Owner("blue")


class Clock:
    """Seconds since the epoch, at the beginning of a window of any length that is tested."""

    def __init__(self) -> None:
        self.now = 1_000_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock()


def limits(**more: Any) -> LimitsEntry:
    """Limits as the tenants file has them."""
    return LimitsEntry.model_validate(more)


@pytest.mark.parametrize(
    ("rps", "burst", "expected"),
    [
        (10, None, (10, 1)),
        (10, 50, (50, 5)),
        (10, 15, (15, 1.5)),
        (0.5, None, (1, 2)),
        (2.5, None, (3, 1.2)),
        (0.01, 3, (3, 300)),
    ],
)
def test_rate_and_burst_are_one_window(rps: float, burst: int | None, expected: tuple[int, float]) -> None:
    """`burst` at once and `rps` on average: so many in any window."""
    assert window_of(rps, burst) == pytest.approx(expected)


async def test_requests_within_a_window(clock: Clock) -> None:
    """A window's worth passes at once, then nothing, then as much as has slid out of it."""
    quotas, wishes = Quotas(10, clock=clock), limits(rps=2, burst=4)
    assert [await quotas.take(RED, wishes, 1) for _ in range(4)] == [None] * 4
    reached = await quotas.take(RED, wishes, 1)
    assert reached is not None
    assert reached.bound == "requests"
    assert 0 < reached.seconds <= 2
    assert await quotas.take(BLUE, wishes, 4) is None
    clock.now += 1
    assert await quotas.take(RED, wishes, 1) == Reached("requests", 1.0)
    clock.now += 1
    assert await quotas.take(RED, wishes, 3) is None
    clock.now += 1.5
    assert await quotas.take(RED, wishes, 1) is None
    assert await quotas.take(RED, wishes, 1) == Reached("requests", 0.5)
    clock.now += 10
    assert await quotas.take(RED, wishes, 4) is None


async def test_requests_at_once() -> None:
    """Places are given back; a refused batch takes none."""
    quotas, wishes = Quotas(10), limits(concurrent=3)
    assert await quotas.take(RED, wishes, 2) is None
    assert await quotas.take(RED, wishes, 2) == Reached("concurrent", 1.0)
    assert await quotas.take(RED, wishes, 1) is None
    assert repr(quotas) == "<Quotas 3 limited requests in progress of 1 owners>"
    quotas.give_back(RED, wishes, 2)
    quotas.give_back(RED, wishes, 1)
    assert repr(quotas) == "<Quotas 0 limited requests in progress of 0 owners>"


async def test_what_one_limit_refuses_counts_against_no_other(clock: Clock) -> None:
    """A request that the rate refuses holds no place."""
    quotas, wishes = Quotas(10, clock=clock), limits(rps=1, concurrent=5)
    assert await quotas.take(RED, wishes, 1) is None
    quotas.give_back(RED, wishes, 1)
    assert (await quotas.take(RED, wishes, 1) or Reached("hits", 0)).bound == "requests"
    assert "0 limited requests" in repr(quotas)


async def answered(quotas: Quotas, wishes: LimitsEntry, asked: int, hits: int) -> None:
    """One request that reserves and releases."""
    reserved = await quotas.reserve_hits(RED, wishes, asked, 15)
    assert isinstance(reserved, Reservation)
    await quotas.release_hits(RED, reserved, hits)


async def test_hits_of_a_day(clock: Clock) -> None:
    """Hits are reserved before they are answered; a day after the first of them the count begins anew."""
    quotas, wishes = Quotas(10, clock=clock), limits(hits_per_day=10)
    assert await quotas.reserve_hits(RED, limits(rps=1), 7, 15) is None
    await answered(quotas, wishes, 10, 7)
    assert await quotas.reserve_hits(RED, wishes, 4, 15) == Reached("hits", 86_400.0)
    assert await quotas.take(RED, wishes, 1) is None
    await answered(quotas, wishes, 3, 3)
    assert await quotas.take(RED, wishes, 1) == Reached("hits", 86_400.0)
    clock.now += 86_399
    assert await quotas.take(RED, wishes, 1) == Reached("hits", 1.0)
    clock.now += 1
    assert await quotas.take(RED, wishes, 1) is None


async def test_what_is_reserved_is_not_given_twice(clock: Clock) -> None:
    """Requests in flight together cannot exceed what is left; what they do not use is given back."""
    quotas, wishes = Quotas(10, clock=clock), limits(hits_per_day=200)
    reserved = [await quotas.reserve_hits(RED, wishes, 10, 15) for _ in range(100)]
    held = [each for each in reserved if isinstance(each, Reservation)]
    assert len(held) == 20
    assert {each for each in reserved if not isinstance(each, Reservation)} == {Reached("hits", 1.0)}
    for number, each in enumerate(held):
        await quotas.release_hits(RED, each, number % 2 * 10)  # half of them fail
    assert sum([isinstance(await quotas.reserve_hits(RED, wishes, 10, 15), Reservation) for _ in range(100)]) == 10


async def test_a_store_that_fails_keeps_no_places() -> None:
    """If counting raises, the places are given back."""

    class Broken(LocalLimiter):
        async def take(self, *args: Any, **more: Any) -> float:
            raise ConnectionError

    quotas = Quotas(10, Broken)
    with pytest.raises(ConnectionError):
        await quotas.take(RED, limits(rps=1, concurrent=1), 1)
    assert "0 limited requests" in repr(quotas)


async def test_addresses_do_not_push_out_tenants(clock: Clock) -> None:
    """However many addresses come, what is counted of tenants stays, and the table of addresses is bounded."""
    quotas, wishes = Quotas(50, clock=clock), limits(rps=1)
    assert await quotas.take(RED, wishes, 1) is None
    for number in range(20_000):
        assert await quotas.take(Owner("anonymous", f"{number}"), wishes, 1) is None
    assert await quotas.take(RED, wishes, 1) is not None
    assert quotas._addresses is not None
    assert repr(quotas._addresses) == "<LocalLimiter 200/200>"


def test_the_largest_batch() -> None:
    """What can never pass is known beforehand."""
    assert at_once(limits()) is None
    assert at_once(limits(hits_per_day=5)) is None
    assert at_once(limits(rps=1, burst=9)) == 9
    assert at_once(limits(rps=1, burst=9, concurrent=4)) == 4
    assert limits().none
    assert not limits(concurrent=1).none


@given(
    st.lists(st.tuples(st.floats(0, 0.5), st.integers(1, 4)), min_size=1, max_size=60),
    st.integers(1, 12),
    st.floats(0.2, 3),
)
def test_no_window_holds_more_than_its_limit(steps: list[tuple[float, int]], most: int, seconds: float) -> None:
    """However requests come, no window of that length, wherever it begins, holds more; and whoever comes again when
    told is let in."""

    async def scenario() -> None:
        clock, window = Clock(), Window(most, seconds)
        limiter, passed = LocalLimiter(10, clock), list[tuple[float, int]]()
        for pause, count in steps:
            clock.now += pause
            wait = await limiter.take("k", window, count)
            if wait and count <= most:
                clock.now += wait * (1 + 1e-6) + 1e-6
                assert await limiter.take("k", window, count) == 0
                wait = 0.0
            if not wait:
                passed.append((clock.now, count))
        for begin, _ in passed:
            assert sum(count for at, count in passed if begin <= at < begin + seconds * (1 - 1e-9)) <= most

    asyncio.run(scenario())


async def test_a_steady_caller_at_the_limit_is_served_at_the_limit(clock: Clock) -> None:
    """Ten a second are what `rps: 10` lets through of a flood, in every second and on average."""
    limiter, window = LocalLimiter(10, clock), window_of(10, None)
    passed = []
    for _ in range(10_000):
        clock.now += 0.001
        if not await limiter.take("k", window, 1):
            passed.append(clock.now)
    assert len(passed) in (100, 101)
    assert max(sum(begin <= at < begin + 0.999 for at in passed) for begin in passed) == 10
    assert repr(limiter) == "<LocalLimiter 1/10>"


async def test_a_window_takes_little_memory_at_any_rate(clock: Clock) -> None:
    """A million requests a second are not a million entries."""
    limiter, window = LocalLimiter(10, clock), Window(1_000_000, 1)
    for _ in range(20_000):
        clock.now += 0.0001
        assert not await limiter.take("k", window, 10)
    assert len(limiter._entries["k"].times) <= 1100
