"""Counting together in Redis, and each its share while that is lost; with the strategies that quotas use."""

from time import time

from limits import RateLimitItemPerDay, RateLimitItemPerSecond
from limits.aio.strategies import FixedWindowRateLimiter, SlidingWindowCounterRateLimiter

from app.state.counters import Counters
from app.state.link import Link
from app.state.shared_counters import SharedCounters
from tests.support.redis_server import Relay
from tests.support.shared_state import Watched, back, linked, unique

LIMIT = RateLimitItemPerSecond(10, 60)
DAY = RateLimitItemPerDay(10)


def counting(link: Link, watched: Watched, prefix: str, replicas: int = 2) -> SharedCounters:
    """Counters over the link."""
    return SharedCounters(link, Counters(1000, time), replicas, prefix, watched.metrics)


async def lost(relay: Relay, counters: SharedCounters) -> None:
    """Cut the relay; the next question finds out."""
    await relay.cut()
    await counters.get("anything")
    assert not await counters.check()


async def test_two_count_together(redis_url: str) -> None:
    """What one lets through the other has less of, in sliding windows and in days; other prefixes are others'."""
    watched, prefix = Watched(), unique()
    async with linked(redis_url, watched) as here, linked(redis_url, watched) as there:
        storages = [counting(here, watched, prefix), counting(there, watched, prefix)]
        for strategy, item in ((SlidingWindowCounterRateLimiter, LIMIT), (FixedWindowRateLimiter, DAY)):
            limiters = [strategy(storage) for storage in storages]
            taken = [await limiters[turn % 2].hit(item, "red") for turn in range(12)]
            assert taken == [True] * 10 + [False] * 2
            assert not await limiters[0].test(item, "red")
            assert await limiters[0].test(item, "blue")
            stats = await limiters[1].get_window_stats(item, "red")
            assert stats.remaining <= 0
            assert time() < stats.reset_time <= time() + 86_401
        assert await SlidingWindowCounterRateLimiter(counting(here, watched, unique())).hit(LIMIT, "red")


async def test_alone_each_lets_through_its_share(relay: Relay) -> None:
    """While Redis is lost, one of two replicas lets through half; then all count together again."""
    watched = Watched()
    async with linked(relay.url, watched) as link:
        storage = counting(link, watched, unique())
        await lost(relay, storage)
        for strategy, item in ((SlidingWindowCounterRateLimiter, LIMIT), (FixedWindowRateLimiter, DAY)):
            limiter = strategy(storage)
            assert [await limiter.hit(item, "red") for _ in range(6)] == [True] * 5 + [False]
            assert not await limiter.test(item, "red")
            assert (await limiter.get_window_stats(item, "red")).reset_time > time() - 1
        assert watched.value("fallbacks_total", use="limits") > 12
        await relay.start()
        await back(link)
        sliding = SlidingWindowCounterRateLimiter(storage)
        assert [await sliding.hit(LIMIT, "red") for _ in range(11)] == [True] * 10 + [False]


async def test_what_a_limit_allows_at_once_is_not_refused_for_want_of_redis(relay: Relay) -> None:
    """A batch larger than a share goes through alone, once; one beyond the limit does not, nor does anybody starve."""
    watched = Watched()
    async with linked(relay.url, watched) as link:
        storage = counting(link, watched, unique(), replicas=100)
        await lost(relay, storage)
        limiter = SlidingWindowCounterRateLimiter(storage)
        assert await limiter.hit(LIMIT, "red", cost=8)
        assert not await limiter.hit(LIMIT, "red", cost=8)
        assert not await limiter.hit(LIMIT, "blue", cost=11)
        assert await limiter.hit(LIMIT, "green")


async def test_forgetting(redis_url: str) -> None:
    """Counters can be cleared, one by one and of this process."""
    watched = Watched()
    async with linked(redis_url, watched) as link:
        storage = counting(link, watched, unique())
        for limiter, item in (
            (SlidingWindowCounterRateLimiter(storage), LIMIT),
            (FixedWindowRateLimiter(storage), DAY),
        ):
            assert await limiter.hit(item, "red", cost=10)
            await limiter.clear(item, "red")
            assert await limiter.hit(item, "red", cost=10)
        assert await storage.reset() == 0
        assert repr(storage).startswith("<SharedCounters of 2 replicas, <Link to Redis up")
