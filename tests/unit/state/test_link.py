"""The link to Redis: bounded, lost at once, back by itself."""

import asyncio
from time import perf_counter

import pytest
from redis.exceptions import ResponseError

from app.protocol.errors import StateUnreachable
from tests.support.redis_server import Relay
from tests.support.shared_state import Watched, back, linked, unique

PATIENCE = 0.04


async def test_it_asks(redis_url: str) -> None:
    """What is asked of the client is answered."""
    async with linked(redis_url, Watched()) as link:
        assert await link.ask(lambda redis: redis.ping())
        assert repr(link) == "<Link to Redis up, 0 times lost>"


async def test_a_swap_happens_only_from_what_is_expected(redis_url: str) -> None:
    """Expecting nothing there must be nothing; expecting a beginning the value must begin so."""
    key = unique()
    async with linked(redis_url, Watched()) as link:
        assert await link.swap(key, b"", b"one:1", 10_000)
        assert not await link.swap(key, b"", b"two:2", 10_000)
        assert not await link.swap(key, b"two:", b"two:2", 10_000)
        assert await link.swap(key, b"one:", b"three", 10_000)
        assert await link.ask(lambda redis: redis.get(key)) == b"three"
        assert 0 < await link.ask(lambda redis: redis.pttl(key)) <= 10_000


async def test_a_frozen_redis_is_waited_for_once(relay: Relay) -> None:
    """All who ask together wait no longer than the patience, whoever comes later does not wait, and it comes back."""
    watched = Watched()
    async with linked(relay.url, watched, PATIENCE) as link:
        await back(link)
        relay.freeze()
        began = perf_counter()
        lost = await asyncio.gather(*(link.ask(lambda redis: redis.ping()) for _ in range(50)), return_exceptions=True)
        took = perf_counter() - began
        assert {type(fault) for fault in lost} == {StateUnreachable}
        assert took < 50 * PATIENCE / 10  # one wait for all, on a busy machine too
        began = perf_counter()
        with pytest.raises(StateUnreachable):
            await link.ask(lambda redis: redis.ping())
        assert perf_counter() - began < PATIENCE
        assert not link.up
        assert "lost for" in repr(link)
        assert watched.value("degraded") == 1
        assert watched.value("failures_total", reason="timeout") >= 50
        relay.thaw()
        await back(link)
        assert watched.value("degraded") == 0


async def test_an_outage_leaves_no_connection_behind(relay: Relay) -> None:
    """Calls that were given up do not use up the connections: after many of them, as many calls as ever go through."""
    async with linked(relay.url, Watched(), PATIENCE, connections=4) as link:
        for _ in range(3):
            await back(link)
            relay.freeze()
            await asyncio.gather(*(link.ask(lambda redis: redis.ping()) for _ in range(20)), return_exceptions=True)
            relay.thaw()
        await back(link)
        link._patience = 5.0
        assert all(await asyncio.gather(*(link.ask(lambda redis: redis.ping()) for _ in range(20))))
        assert relay.open <= 4 + 1  # one that is being given up may still be there


async def test_a_redis_that_is_gone_and_comes_back(relay: Relay) -> None:
    """A cut connection is opened anew without a word; while nobody listens the link is lost, and then it is back."""
    watched = Watched()
    async with linked(relay.url, watched) as link:
        await relay.cut()
        await relay.start()
        assert await link.ask(lambda redis: redis.ping())
        assert link.up
        await relay.cut()
        with pytest.raises(StateUnreachable):
            await link.ask(lambda redis: redis.ping())
        assert watched.value("failures_total", reason="connection") >= 1
        await relay.start()
        await back(link)
        assert await link.ask(lambda redis: redis.ping())


async def test_a_gateway_starts_without_redis(relay: Relay) -> None:
    """At start the link says at once that nobody is there, and recovers when somebody is."""
    await relay.cut()
    async with linked(relay.url, Watched()) as link:
        assert not link.up
        await relay.start()
        await back(link)


async def test_an_error_as_the_answer_is_an_outage_too(redis_url: str) -> None:
    """A Redis that refuses (no memory, read-only, no right) is of no use; a probe that succeeds ends that."""
    watched = Watched()

    async def refuse(redis: object) -> None:
        raise ResponseError("OOM command not allowed")

    async with linked(redis_url, watched) as link:
        with pytest.raises(StateUnreachable):
            await link.ask(refuse)
        assert watched.value("failures_total", reason="refused") == 1
        await back(link)


async def test_a_client_that_fails_in_its_own_way_fails_no_request(redis_url: str) -> None:
    """Whatever the library raises, who asks falls back, and the link recovers."""

    async def broken(redis: object) -> None:
        raise AttributeError("a fault of the library's")

    async with linked(redis_url, Watched()) as link:
        with pytest.raises(StateUnreachable):
            await link.ask(broken)
        await back(link)


async def test_what_began_before_an_outage_says_nothing_about_after(relay: Relay) -> None:
    """A call that began before the link was lost, and fails after it is back, does not lose it again."""
    async with linked(relay.url, Watched()) as link:
        release = asyncio.Event()

        async def late(redis: object) -> None:
            await release.wait()
            raise ResponseError("late")

        asking = asyncio.create_task(link.ask(late))
        await asyncio.sleep(0)
        await relay.cut()
        with pytest.raises(StateUnreachable):
            await link.ask(lambda redis: redis.ping())
        await relay.start()
        await back(link)
        release.set()
        with pytest.raises(StateUnreachable):
            await asking
        assert link.up
