"""A store that gateways share, over a real Redis: what one keeps the other finds, and what an outage does to that."""

import asyncio
from typing import Any

import pytest

from app.state.redis import RedisConnection
from app.state.redis_store import RedisStore
from app.state.store import MemoryStore
from tests.support.redis_server import Relay
from tests.support.shared_state import Watched, back, linked, store_on, unique

Json = dict[str, Any]


def unchanged(value: Any) -> Any:
    return value


async def cut(relay: Relay, link: RedisConnection) -> None:
    """Cut the relay, and let the link notice."""
    await relay.cut()
    await MissingStore.noticed(link)


class MissingStore:
    """Lets a link notice that nobody is there."""

    @staticmethod
    async def noticed(link: RedisConnection) -> None:
        await asyncio.gather(link.ask(lambda redis: redis.ping()), return_exceptions=True)
        assert not link.up


async def test_what_one_keeps_another_finds(redis_url: str) -> None:
    """Values, changes and deletions of one process are those of all that have the same namespace, and of no other."""
    watched, name = Watched(), unique()
    async with linked(redis_url, watched) as here, linked(redis_url, watched) as there:
        one, two = store_on(here, watched, name), store_on(there, watched, name)
        other = store_on(there, watched, unique())
        await one.put("k", {"a": [1, "ü", None]}, 60, unchanged)
        assert await two.get("k", unchanged) == {"a": [1, "ü", None]}
        assert await other.get("k", unchanged) is None
        await two.delete("k")
        assert await one.get("k", unchanged) is None
        assert not one.degraded


async def test_values_end(redis_url: str) -> None:
    """Every key has an end, and begins with its namespace."""
    watched, name = Watched(), unique()
    async with linked(redis_url, watched) as link:
        store = store_on(link, watched, name)
        await store.put("brief", 1, 0.01, unchanged)
        await store.put("long", 1, 60, unchanged)
        await store.change("changed", lambda value: 1, 60, unchanged, unchanged, size=lambda value: 1)
        await asyncio.sleep(0.05)
        assert await store.get("brief", unchanged) is None
        keys = await link.ask(lambda redis: redis.keys(f"{name}*"))
        assert sorted(keys) == [f"{name}:pages:changed".encode(), f"{name}:pages:long".encode()]
        for key in keys:
            assert 0 < await link.ask(lambda redis, key=key: redis.pttl(key)) <= 60_000


async def test_of_two_changes_none_is_lost(redis_url: str) -> None:
    """Twenty changes from two processes at the same time are all there in the end."""
    watched, name = Watched(), unique()
    async with linked(redis_url, watched) as here, linked(redis_url, watched) as there:
        stores = [store_on(here, watched, name), store_on(there, watched, name)]

        async def add(number: int) -> None:
            def change(value: Json | None) -> Json:
                return {**(value or {}), str(number): True}

            await stores[number % 2].change("k", change, 60, unchanged, unchanged, size=len)

        await asyncio.gather(*(add(number) for number in range(12)))
        assert await stores[0].get("k", unchanged) == {str(number): True for number in range(12)}


async def test_a_change_may_leave_things_as_they_are(redis_url: str) -> None:
    """None writes nothing, and what is there is given back: the first of two claims holds."""
    watched, name = Watched(), unique()
    async with linked(redis_url, watched) as link:
        store = store_on(link, watched, name)
        claims = [
            await store.change(
                "k", lambda value, mine=mine: None if value else mine, 60, unchanged, unchanged, size=len
            )
            for mine in ("first", "second")
        ]
        assert claims == ["first", "first"]


@pytest.mark.parametrize("key", ["a b" * 100, "naïve", "line\nbreak", "session:" + "x" * 10_000])
async def test_any_key_is_a_key(redis_url: str, key: str) -> None:
    """Long and strange keys are written as digests."""
    watched, name = Watched(), unique()
    async with linked(redis_url, watched) as link:
        store = store_on(link, watched, name)
        await store.put(key, 1, 60, unchanged)
        assert await store.get(key, unchanged) == 1
        (written,) = await link.ask(lambda redis: redis.keys(f"{name}*"))
        assert len(written) < 100


@pytest.mark.parametrize("text", [b"", b"0:abcdefabcdef:1", b"1:abcdefabcdef:{", b"\x80\x04pickle", b'{"a":1}'])
async def test_values_of_another_format_are_not_there(redis_url: str, text: bytes) -> None:
    """What another release wrote, or nobody can make sense of, is nothing; a change writes over it."""
    watched, name = Watched(), unique()
    async with linked(redis_url, watched) as link:
        store = store_on(link, watched, name)
        await link.ask(lambda redis: redis.set(f"{name}:pages:k", text))
        assert await store.get("k", unchanged) is None
        assert await store.change("k", lambda value: value or 7, 60, unchanged, unchanged, size=lambda _: 1) == 7
        assert await store.get("k", unchanged) == 7


async def test_a_value_that_cannot_be_loaded_is_not_there(redis_url: str) -> None:
    """A loader that fails on what it is given does not fail the request."""
    watched = Watched()
    async with linked(redis_url, watched) as link:
        store = store_on(link, watched, unique())
        await store.put("k", {"a": 1}, 60, unchanged)
        assert await store.get("k", lambda plain: plain["b"]) is None


async def test_during_an_outage_a_process_goes_on_alone(relay: Relay) -> None:
    """What it keeps then it finds, then and afterwards; what others wrote is not there, and comes back."""
    watched, name = Watched(), unique()
    async with linked(relay.url, watched) as link:
        store = store_on(link, watched, name)
        await store.put("before", 1, 60, unchanged)
        await cut(relay, link)
        assert store.degraded
        assert await store.get("before", unchanged) is None
        await store.put("during", 2, 60, unchanged)
        await store.change("list", lambda value: [*(value or []), 3], 60, unchanged, unchanged, size=len)
        assert await store.get("during", unchanged) == 2
        assert await store.get("list", unchanged) == [3]
        assert watched.value("fallbacks_total", use="pages") >= 4
        await relay.start()
        await back(link)
        assert await store.get("before", unchanged) == 1
        assert await store.get("during", unchanged) == 2
        await store.put("during", 4, 60, unchanged)
        await store.delete("list")
        assert await store.get("during", unchanged) == 4
        assert await store.get("list", unchanged) is None
        assert "0/100 entries" in repr(store)


async def test_what_never_changes_is_read_here_first(relay: Relay) -> None:
    """Constant values are served without asking Redis by who made them, and from Redis by others."""
    watched, name = Watched(), unique()
    async with linked(relay.url, watched) as here, linked(relay.url, watched) as there:
        one = store_on(here, watched, name, constant=True)
        two = store_on(there, watched, name, constant=True)
        value = {"a": 1}
        await one.put("k", value, 60, unchanged)
        assert await one.get("k", unchanged) is value
        assert await two.get("k", unchanged) == value
        await cut(relay, here)
        assert await one.get("k", unchanged) is value


async def test_what_comes_in_a_output_limit_is_not_shared(redis_url: str) -> None:
    """What the store of this process does not admit is not written to Redis either."""
    watched, name = Watched(), unique()
    async with linked(redis_url, watched) as link:
        local = MemoryStore(100, 3, turnover_seconds=1000.0)
        store = RedisStore("pages", link, local, lambda: name, watched.metrics, constant=True)
        for number in range(10):
            await store.put(f"{number}", number, 60, unchanged)
        assert len(await link.ask(lambda redis: redis.keys(f"{name}*"))) == 3


async def test_what_is_too_long_stays_here(redis_url: str) -> None:
    """A value beyond the bound is not written to Redis, and is still found by who made it."""
    watched, name = Watched(), unique()
    async with linked(redis_url, watched) as link:
        store = store_on(link, watched, name, max_bytes=100)
        await store.put("k", "x" * 200, 60, unchanged)
        assert await store.get("k", unchanged) == "x" * 200
        assert await store_on(link, watched, name).get("k", unchanged) is None


async def test_the_namespace_is_the_present_one(redis_url: str) -> None:
    """A gateway whose identity changes finds what gateways of the new identity keep."""
    watched, names = Watched(), [unique(), unique()]
    async with linked(redis_url, watched) as link:
        now = names[:1]
        store = RedisStore("pages", link, MemoryStore(10, 10), lambda: now[0], watched.metrics)
        await store.put("k", 1, 60, unchanged)
        now[0] = names[1]
        assert await store.get("k", unchanged) is None
