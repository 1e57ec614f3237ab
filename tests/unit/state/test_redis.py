"""The link to Redis: bounded, lost at once, back by itself."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.exceptions import ResponseError

from app.protocol.errors import StateUnreachable
from app.state.redis import RedisConnection
from tests.support.redis_server import Relay
from tests.support.shared_state import Watched, back, linked, unique
from tests.support.virtual_time import jumping_loop, turns, virtually

PATIENCE = 0.04


async def test_it_asks(redis_url: str) -> None:
    """What is asked of the client is answered."""
    async with linked(redis_url, Watched()) as link:
        assert await link.ask(lambda redis: redis.ping())
        assert repr(link) == "<RedisConnection up, lost 0 times>"


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


async def test_a_frozen_redis_is_noticed_and_comes_back(relay: Relay) -> None:
    """All who ask together fall back, whoever comes later does not even ask, and it comes back by itself."""
    watched = Watched()
    async with linked(relay.url, watched, PATIENCE) as link:
        await back(link)
        relay.freeze()
        lost = await asyncio.gather(*(link.ask(lambda redis: redis.ping()) for _ in range(50)), return_exceptions=True)
        assert {type(fault) for fault in lost} == {StateUnreachable}
        with pytest.raises(StateUnreachable):
            await link.ask(_never_asked)
        assert not link.up
        assert "down for" in repr(link)
        assert watched.value("degraded") == 1
        assert watched.value("failures_total", reason="timeout") >= 50
        relay.thaw()
        await back(link)
        assert watched.value("degraded") == 0


class Alone(RedisConnection):
    """A link on virtual time whose Redis is what is asked; once lost it is not probed."""

    def __init__(self) -> None:
        super().__init__("redis://127.0.0.1:1/0", 1, PATIENCE, "probe", Watched().metrics, jumping_loop().time)

    async def _recover(self) -> None:
        pass

    async def waited(self, question: Callable[[Any], Awaitable[Any]]) -> tuple[bool, float]:
        """Whether it was answered, and the milliseconds until that was known."""
        began = self._clock()
        try:
            await self.ask(question)
        except StateUnreachable:
            return False, round(1000 * (self._clock() - began), 3)
        return True, round(1000 * (self._clock() - began), 3)


def _never_asked(redis: Any) -> Awaitable[None]:
    raise AssertionError("a link that is lost is not asked")


async def _frozen(redis: Any) -> None:
    await asyncio.Event().wait()


def _after(seconds: float) -> Callable[[Any], Awaitable[None]]:
    return lambda _: asyncio.sleep(seconds)


def test_nobody_waits_longer_than_the_patience_and_all_are_let_go_together() -> None:
    """Of callers that ask 1 ms after one another the first waits 40 ms, the others what is left, later ones nothing."""

    async def work() -> list[tuple[bool, float]]:
        link = Alone()

        async def caller(number: int) -> tuple[bool, float]:
            await asyncio.sleep(number / 1000)
            return await link.waited(_frozen)

        waits = await asyncio.gather(*(caller(number) for number in range(50)))
        await link.close()
        return waits

    waits = virtually(work())
    assert [answered for answered, _ in waits] == [False] * 50
    assert [wait for _, wait in waits] == [max(0, 40 - number) for number in range(50)]


def test_a_request_of_many_questions_waits_once() -> None:
    """Six questions one after the other, half of them answered before Redis freezes, cost one patience in all."""

    async def work() -> list[tuple[bool, float]]:
        link = Alone()
        waits = [await link.waited(question) for question in [_after(0)] * 3 + [_frozen] * 3]
        await link.close()
        return waits

    assert [wait for _, wait in virtually(work())] == [0, 0, 0, 40, 0, 0]


def test_silence_is_counted_and_not_the_time_of_one_answer() -> None:
    """While Redis answers others, a question that takes thrice the patience is answered; once it is silent, nobody
    waits longer than the patience from its last word on."""

    async def work() -> None:
        link = Alone()
        slow = asyncio.create_task(link.waited(_after(3 * PATIENCE)))
        for _ in range(14):
            assert await link.waited(_after(0.01)) == (True, 10)
        assert await slow == (True, 120)
        assert link.up
        last, early = asyncio.create_task(link.waited(_after(0.02))), asyncio.create_task(link.waited(_frozen))
        assert await last == (True, 20)
        assert await early == (False, 60)
        assert not link.up
        await link.close()

    virtually(work())


def test_one_question_is_not_waited_for_without_end() -> None:
    """A question that alone is never answered, though others are, loses the link after five times the patience."""

    async def work() -> None:
        link = Alone()
        stuck = asyncio.create_task(link.waited(_frozen))
        while link.up:
            await link.waited(_after(0.01))
        assert await stuck == (False, 5 * 40)
        await link.close()

    virtually(work())


def test_what_came_during_a_long_turn_is_read() -> None:
    """An answer that was there when the patience ended, and that this process was too busy to read, is taken."""

    async def work() -> None:
        link, come = Alone(), asyncio.Event()

        async def unread(redis: Any) -> None:
            await come.wait()
            await turns(3)  # of a connection, its reader and the library

        def busy() -> None:
            jumping_loop().now += 1.0
            come.set()

        jumping_loop().call_later(PATIENCE / 2, busy)
        assert await link.waited(unread) == (True, 1020)
        assert link.up
        await link.close()

    virtually(work())


async def test_an_outage_leaves_no_connection_behind(relay: Relay) -> None:
    """Calls that were given up do not use up the connections: after many of them, as many calls as ever go through."""
    async with linked(relay.url, Watched(), PATIENCE, connections=4) as link:
        for _ in range(3):
            await back(link)
            relay.freeze()
            await asyncio.gather(*(link.ask(lambda redis: redis.ping()) for _ in range(20)), return_exceptions=True)
            relay.thaw()
        await back(link)
        link._patience = 10.0
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
