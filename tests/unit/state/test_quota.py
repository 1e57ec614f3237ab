"""How much may still be asked: what counts together, when it counts anew, and how large the tables become."""

from typing import Any

import pytest

from app.settings.tenants import LimitsEntry
from app.state.counters import Counters
from app.state.quota import Owner, Quotas, Reached, _amount, at_once

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
        (10, 15, (20, 2)),
        (0.5, None, (1, 2)),
        (2.5, None, (5, 2)),
        (0.01, 3, (3, 300)),
    ],
)
def test_rate_and_burst_are_one_window(rps: float, burst: int | None, expected: tuple[int, int]) -> None:
    """`burst` at once and `rps` on average: so many in a window of whole seconds."""
    assert _amount(rps, burst) == expected


async def test_requests_within_a_window(clock: Clock) -> None:
    """A window's worth passes at once, then nothing, then as much as has slid out of it."""
    quotas, wishes = Quotas(10, clock=clock), limits(rps=2, burst=4)
    assert [await quotas.take(RED, wishes, 1) for _ in range(4)] == [None] * 4
    reached = await quotas.take(RED, wishes, 1)
    assert reached is not None
    assert reached.bound == "requests"
    assert 0 < reached.seconds <= 2
    assert await quotas.take(BLUE, wishes, 4) is None
    clock.now += 3
    assert await quotas.take(RED, wishes, 2) is None
    assert await quotas.take(RED, wishes, 1) is not None
    clock.now += 10
    assert await quotas.take(RED, wishes, 4) is None


async def test_requests_at_once() -> None:
    """Places are given back; a refused batch takes none."""
    quotas, wishes = Quotas(10), limits(concurrent=3)
    assert await quotas.take(RED, wishes, 2) is None
    assert await quotas.take(RED, wishes, 2) == Reached("concurrent", 1.0)
    assert await quotas.take(RED, wishes, 1) is None
    assert repr(quotas) == "<Quotas 3 limited requests under way of 1 owners>"
    quotas.give_back(RED, wishes, 2)
    quotas.give_back(RED, wishes, 1)
    assert repr(quotas) == "<Quotas 0 limited requests under way of 0 owners>"


async def test_what_one_limit_refuses_counts_against_no_other(clock: Clock) -> None:
    """A request that the rate refuses holds no place."""
    quotas, wishes = Quotas(10, clock=clock), limits(rps=1, concurrent=5)
    assert await quotas.take(RED, wishes, 1) is None
    quotas.give_back(RED, wishes, 1)
    assert (await quotas.take(RED, wishes, 1) or Reached("hits", 0)).bound == "requests"
    assert "0 limited requests" in repr(quotas)


async def test_hits_of_a_day(clock: Clock) -> None:
    """Hits are counted once answered; a day after the first of them the count begins anew."""
    quotas, wishes = Quotas(10, clock=clock), limits(hits_per_day=10)
    for _ in range(2):
        assert await quotas.take(RED, wishes, 1) is None
        await quotas.add_hits(RED, wishes, 7)
    assert await quotas.take(RED, wishes, 1) == Reached("hits", 86_400.0)
    clock.now += 86_399
    assert await quotas.take(RED, wishes, 1) == Reached("hits", 1.0)
    clock.now += 1
    assert await quotas.take(RED, wishes, 1) is None


async def test_a_store_that_fails_keeps_no_places() -> None:
    """If counting raises, the places are given back."""

    class Broken(Counters):
        STORAGE_SCHEME = None

        async def acquire_sliding_window_entry(self, *args: Any, **more: Any) -> bool:
            raise ConnectionError

    quotas = Quotas(10, lambda most, clock: Broken(most, clock))
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
    assert len(quotas._addresses.requests.storage) == 200  # type: ignore[arg-type]


def test_the_largest_batch() -> None:
    """What can never pass is known beforehand."""
    assert at_once(limits()) is None
    assert at_once(limits(hits_per_day=5)) is None
    assert at_once(limits(rps=1, burst=9)) == 9
    assert at_once(limits(rps=1, burst=9, concurrent=4)) == 4
    assert limits().none
    assert not limits(concurrent=1).none


async def test_counters_end_and_are_forgotten(clock: Clock) -> None:
    """A counter ends with its time, can be cleared, and the least recently used go first."""
    counters = Counters(3, clock)
    assert [await counters.incr("a", 10, 2), await counters.incr("a", 99)] == [2, 3]
    assert await counters.get_expiry("a") == clock.now + 10
    assert await counters.get_expiry("nobody") == clock.now
    clock.now += 10
    assert await counters.get("a") == 0
    for key in "abc":
        await counters.incr(key, 10)
    await counters.get("a")
    await counters.incr("d", 10)
    assert [await counters.get(key) for key in "abcd"] == [1, 0, 1, 1]
    await counters.clear("a")
    assert await counters.check()
    assert repr(counters) == "<Counters 2/3>"
    assert await counters.reset() == 2
    assert await counters.acquire_sliding_window_entry("w", 1, 10)
    await counters.clear_sliding_window("w", 10)
    assert await counters.get_sliding_window("w", 10) == (0, 0.0, 0, 20.0)
    assert issubclass(counters.base_exceptions, Exception)
