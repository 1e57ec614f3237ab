"""The store in memory: how long it keeps what, and what goes first when there is too much."""

import gc
import weakref
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.state.store import MemoryStore


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def untouched(value: Any) -> Any:
    """No value is ever dumped or loaded in memory."""
    raise AssertionError(value)


async def put(store: MemoryStore, key: str, value: Any = "v", seconds: float = 10.0, size: int = 1) -> None:
    await store.put(key, value, seconds, untouched, size=size)


async def kept(store: MemoryStore, *keys: str) -> list[str]:
    """Those of the keys that are kept."""
    return [key for key in keys if await store.get(key, untouched) is not None]


async def test_the_very_value_comes_back() -> None:
    """What is kept is the object itself, neither dumped nor copied."""
    store = MemoryStore(10, 10)
    value: dict[str, Any] = {"a": []}
    await put(store, "k", value)
    assert await store.get("k", untouched) is value
    assert await store.get("other", untouched) is None


async def test_a_value_ends_with_its_time() -> None:
    """After its seconds a value is gone; putting it again gives it new ones, reading does not."""
    clock = Clock()
    store = MemoryStore(10, 10, clock)
    await put(store, "once", seconds=10)
    await put(store, "again", seconds=10)
    clock.now += 9
    await put(store, "again", "new", seconds=10)
    assert await kept(store, "once", "again") == ["once", "again"]
    clock.now += 1
    assert await kept(store, "once", "again") == ["again"]
    assert len(store) == 1
    assert await store.get("again", untouched) == "new"


async def test_the_least_recently_used_goes_first() -> None:
    """Of more entries than allowed, those go that were neither put nor read for longest."""
    store = MemoryStore(3, 100)
    for key in "abc":
        await put(store, key)
    await kept(store, "a")
    await put(store, "d")
    assert await kept(store, *"abcd") == ["a", "c", "d"]


async def test_size_is_bounded_too() -> None:
    """Large values push out as many others as need be; one that alone is too large is not stored."""
    store = MemoryStore(100, 10)
    for key in "abc":
        await put(store, key, size=3)
    await put(store, "d", size=6)
    assert await kept(store, *"abcd") == ["c", "d"]
    await put(store, "huge", size=11)
    assert await kept(store, "huge") == []
    assert await kept(store, *"cd") == []


async def test_what_is_put_again_counts_once() -> None:
    """A value in place of another takes its place in the bounds."""
    store = MemoryStore(2, 10)
    for size in (4, 6, 8):
        await put(store, "a", size=size)
    await put(store, "b", size=2)
    assert await kept(store, "a", "b") == ["a", "b"]


async def test_deleting() -> None:
    """A deleted value is gone at once and makes room; deleting what is not there is nothing."""
    store = MemoryStore(2, 2)
    await put(store, "a", size=2)
    await store.delete("a")
    await store.delete("a")
    await put(store, "b", size=2)
    assert await kept(store, "a", "b") == ["b"]


async def test_what_is_over_is_let_go_by_the_next_put() -> None:
    """No task is needed: values that are over leave the memory when something is put."""

    class Value:
        pass

    clock = Clock()
    store = MemoryStore(100, 100, clock)
    value = Value()
    seen = weakref.ref(value)
    await put(store, "a", value, seconds=1)
    del value
    clock.now += 2
    await put(store, "b", seconds=1)
    gc.collect()
    assert seen() is None
    assert len(store) == 1


async def test_a_output_limit_does_not_wash_everything_away() -> None:
    """With a turnover the store is refilled no faster: most of a flood is not stored, and the rest stays."""
    clock = Clock()
    store = MemoryStore(1000, 100, clock, turnover_seconds=10)
    for number in range(500):
        await put(store, f"a{number}", seconds=60)
    assert await kept(store, "a0", "a99", "a100") == ["a0", "a99"]
    clock.now += 1
    for number in range(500):
        await put(store, f"b{number}", seconds=60)
    assert len([key for key in store._entries if key.startswith("b")]) == 10
    clock.now += 100
    for number in range(500):
        await put(store, f"c{number}", seconds=60)
    assert len([key for key in store._entries if key.startswith("c")]) == 100
    assert f"{1500 - 210} not stored" in repr(store)


async def test_repr_says_how_full_it_is() -> None:
    """Entries, size, and how many had to go before their time."""
    store = MemoryStore(2, 10, Clock())
    for key in "abc":
        await put(store, key, size=3)
    assert repr(store) == "<MemoryStore 2/2 entries, size 6/10, 1 evicted, 0 not stored>"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "get", "delete", "wait"]),
        st.sampled_from("abcdef"),
        st.integers(1, 5),
    ),
    max_size=60,
)


@given(STEPS, st.integers(1, 4), st.integers(1, 9))
async def test_bounds_always_hold(steps: list[tuple[str, str, int]], entries: int, size: int) -> None:
    """Whatever happens the bounds hold, the size is that of what is kept, and what is over is never given out."""
    clock = Clock()
    store = MemoryStore(entries, size, clock)
    ends: dict[str, float] = {}
    for act, key, number in steps:
        if act == "put":
            await put(store, key, key, seconds=number, size=number)
            ends[key] = clock.now + number
        elif act == "get":
            found = await store.get(key, untouched)
            assert found is None or (found == key and ends[key] > clock.now)
        elif act == "delete":
            await store.delete(key)
            ends.pop(key, None)
        else:
            clock.now += number
        assert len(store) <= entries
        assert store._size == sum(entry[2] for entry in store._entries.values()) <= size
