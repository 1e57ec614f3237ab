"""Counting together in Redis, and each its share while that is lost."""

import asyncio
from time import monotonic

from app.state.rate_limit import LocalLimiter, Reservation, Window
from app.state.redis import RedisConnection
from app.state.redis_rate_limit import SharedLimiter
from tests.support.redis_server import Relay
from tests.support.shared_state import Watched, back, linked, unique

WINDOW = Window(10, 60)


def counting(link: RedisConnection, watched: Watched, prefix: str, replicas: int = 2) -> SharedLimiter:
    """A limiter over the link."""
    return SharedLimiter(link, LocalLimiter(1000, monotonic), replicas, prefix, watched.metrics)


async def lost(relay: Relay, limiter: SharedLimiter) -> None:
    """Cut the relay; the next question finds out."""
    await relay.cut()
    await limiter.reserve("anything", 1, 0, 1)


async def test_two_count_together(redis_url: str) -> None:
    """What one lets through the other has less of, in windows and in days; other keys and prefixes are others'."""
    watched, prefix = Watched(), unique()
    async with linked(redis_url, watched) as here, linked(redis_url, watched) as there:
        both = [counting(here, watched, prefix), counting(there, watched, prefix)]
        waits = [await both[turn % 2].take("red", WINDOW, 1) for turn in range(12)]
        assert waits[:10] == [0.0] * 10
        assert all(50 < wait <= 60 for wait in waits[10:])
        assert await both[0].take("blue", WINDOW, 10) == 0
        assert await both[0].take("green", WINDOW, 11) > 0
        assert await counting(here, watched, unique()).take("red", WINDOW, 1) == 0
        reserved = [await both[turn % 2].reserve("red", 50, 10, 60) for turn in range(12)]
        held = [each for each in reserved if isinstance(each, Reservation)]
        assert len(held) == 5
        assert reserved[5:] == [1.0] * 7
        for each in held:
            await both[0].finish(each, 8)
        last = await both[1].reserve("red", 50, 10, 60)
        assert isinstance(last, Reservation)
        await both[1].finish(last, 10)
        left = await both[0].reserve("red", 50, 0, 60)
        assert isinstance(left, float)
        assert 86_300 < left <= 86_400


async def test_a_output_limit_from_two_gateways_passes_the_limit_and_no_more(redis_url: str) -> None:
    """However many ask at the same time, exactly the limit is let through."""
    watched, prefix = Watched(), unique()
    async with linked(redis_url, watched) as here, linked(redis_url, watched) as there:
        both = [counting(here, watched, prefix), counting(there, watched, prefix)]
        waits = await asyncio.gather(*(both[turn % 2].take("red", WINDOW, 1) for turn in range(40)))
        assert waits.count(0.0) == 10
        reserved = await asyncio.gather(*(both[turn % 2].reserve("red", 200, 10, 60) for turn in range(100)))
        assert sum(isinstance(each, Reservation) for each in reserved) == 20


async def test_a_window_slides(redis_url: str) -> None:
    """Whoever comes again when told is let in, and no sooner."""
    watched = Watched()
    async with linked(redis_url, watched) as link:
        limiter, window = counting(link, watched, unique()), Window(2, 0.2)
        assert await limiter.take("red", window, 2) == 0
        wait = await limiter.take("red", window, 1)
        assert 0 < wait <= 0.2
        while wait:
            await asyncio.sleep(wait)
            wait = await limiter.take("red", window, 1)
        assert await limiter.take("red", window, 2) > 0


async def test_a_reservation_of_a_gateway_that_died_expires(redis_url: str) -> None:
    """Nobody finishes it; what it held can be reserved again."""
    watched = Watched()
    async with linked(redis_url, watched) as link:
        limiter = counting(link, watched, unique())
        assert isinstance(await limiter.reserve("red", 10, 10, 0.05), Reservation)
        while not isinstance(await limiter.reserve("red", 10, 10, 0.05), Reservation):
            await asyncio.sleep(0.01)


async def test_alone_each_lets_through_its_share(relay: Relay) -> None:
    """While Redis is lost, one of two replicas lets through half; then all count together again."""
    watched = Watched()
    async with linked(relay.url, watched) as link:
        limiter = counting(link, watched, unique())
        before = await limiter.reserve("red", 10, 2, 60)
        assert isinstance(before, Reservation)
        await lost(relay, limiter)
        assert [not await limiter.take("red", WINDOW, 1) for _ in range(6)] == [True] * 5 + [False]
        await limiter.finish(before, 2)
        reserved = [await limiter.reserve("red", 10, 1, 60) for _ in range(6)]
        assert [isinstance(each, Reservation) for each in reserved] == [True] * 3 + [False] * 3
        assert watched.value("fallbacks_total", use="limits") > 12
        await relay.start()
        await back(link)
        assert [not await limiter.take("red", WINDOW, 1) for _ in range(11)] == [True] * 10 + [False]
        assert repr(limiter).startswith("<SharedLimiter of 2 replicas, <RedisConnection up")


async def test_what_a_limit_allows_at_once_is_not_refused_for_want_of_redis(relay: Relay) -> None:
    """A batch larger than a share goes through alone, once; one beyond the limit does not, nor does anybody starve."""
    watched = Watched()
    async with linked(relay.url, watched) as link:
        limiter = counting(link, watched, unique(), replicas=100)
        await lost(relay, limiter)
        assert not await limiter.take("red", WINDOW, 8)
        assert await limiter.take("red", WINDOW, 8)
        assert await limiter.take("blue", WINDOW, 11)
        assert not await limiter.take("green", WINDOW, 1)
