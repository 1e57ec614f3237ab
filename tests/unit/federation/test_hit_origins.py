"""Where the hits of a session came from: remembered, joined, forgotten."""

from app.federation.sessions import HitOrigins
from app.state.store import MemoryStore
from tests.support.plain_store import PlainStore


async def test_later_answers_join_earlier_ones() -> None:
    """A hit that two answers held has the engines of both."""
    origins = HitOrigins(MemoryStore(10, 100), 60, 100)
    assert await origins.of("s") == {}
    await origins.remember("s", {"1": {"a": 1}, "2": {"b": "2"}})
    await origins.remember("s", {"1": {"b": "1"}})
    assert await origins.of("s") == {"1": {"a": 1, "b": "1"}, "2": {"b": "2"}}
    assert await origins.of("other") == {}


async def test_the_oldest_hits_go_first() -> None:
    """A hit that comes again is young again."""
    origins = HitOrigins(MemoryStore(10, 100), 60, 2)
    await origins.remember("s", {"1": {"a": 1}, "2": {"a": 2}})
    await origins.remember("s", {"1": {"a": 1}, "3": {"a": 3}})
    assert list(await origins.of("s")) == ["1", "3"]


async def test_a_store_outside_keeps_them() -> None:
    """What is remembered is plain data, and ids keep their type."""
    store = PlainStore()
    origins = HitOrigins(store, 60, 100)
    await origins.remember("s", {"1": {"a": 1}})
    assert await origins.of("s") == {"1": {"a": 1}}
    assert store.seconds == {"origins:s": 60}


def test_it_says_what_it_holds() -> None:
    """For an incident."""
    assert repr(HitOrigins(MemoryStore(10, 100), 60, 2)).startswith("<Origins for 60 s in <MemoryStore 0/10")
