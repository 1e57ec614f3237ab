"""Name resolution: single flight, a short memory, and names that hang hold up nobody else."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from app.engines.http.resolver import Resolver, is_numeric
from app.protocol.errors import ConnectFailed


class Names:
    """A getaddrinfo by table; names in `hanging` answer only when `release` is set."""

    def __init__(self, **table: list[str] | Exception) -> None:
        self.table = table
        self.asked: list[str] = []
        self.hanging: set[str] = set()
        self.release = threading.Event()

    def __call__(self, host: str, port: Any, **hints: Any) -> list[tuple[Any, ...]]:
        self.asked.append(host)
        if host in self.hanging:
            self.release.wait(60)
        found = self.table[host]
        if isinstance(found, Exception):
            raise found
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in found]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def names() -> Iterator[Names]:
    names = Names(one=["10.0.0.1"], two=["::1", "127.0.0.1", "::1"])
    yield names
    names.release.set()


async def test_numbers_are_not_looked_up(names: Names) -> None:
    """IPv4 and IPv6 addresses skip resolution altogether."""
    resolver = Resolver(lookup=names)
    assert await resolver.addresses("127.0.0.1") == ("127.0.0.1",)
    assert await resolver.addresses("::1") == ("::1",)
    assert not names.asked


async def test_addresses_come_once_each_in_order(names: Names) -> None:
    """The system's order is kept, without its repetitions."""
    assert await Resolver(lookup=names).addresses("two") == ("::1", "127.0.0.1")


async def test_answer_is_remembered_for_its_time(names: Names) -> None:
    """A second question within the TTL is answered from memory, one after it is not."""
    clock = Clock()
    resolver = Resolver(lookup=names, clock=clock, ttl=30)
    for now in (100, 129.9, 130, 159.9):
        clock.now = now
        await resolver.addresses("one")
    assert names.asked == ["one", "one"]


async def test_forgetting(names: Names) -> None:
    """A forgotten answer is looked up again; forgetting the unknown is no fault."""
    resolver = Resolver(lookup=names)
    await resolver.addresses("one")
    resolver.forget("one")
    resolver.forget("other")
    await resolver.addresses("one")
    assert names.asked == ["one", "one"]


async def test_doubted_address_is_tried_last(names: Names) -> None:
    """After an address failed, the name is looked up again and that address comes after the others."""
    resolver = Resolver(lookup=names)
    await resolver.addresses("two")
    resolver.doubt("two", "::1")
    assert await resolver.addresses("two") == ("127.0.0.1", "::1")
    assert names.asked == ["two", "two"]


async def test_single_flight(names: Names) -> None:
    """All who ask for a name while it is looked up share that one lookup."""
    names.hanging.add("one")
    resolver = Resolver(lookup=names)
    asking = [asyncio.create_task(resolver.addresses("one")) for _ in range(50)]
    await asyncio.sleep(0)
    assert repr(resolver) == "<Resolver knows [], looking up ['one']>"
    names.release.set()
    assert await asyncio.gather(*asking) == [("10.0.0.1",)] * 50
    assert names.asked == ["one"]
    assert repr(resolver) == "<Resolver knows ['one'], looking up []>"


async def test_hanging_names_hold_up_nobody(names: Names) -> None:
    """With forty names hanging, another name is answered, and so is the loop's own thread pool."""
    sick = [f"sick{n}" for n in range(40)]
    names.hanging.update(sick)
    names.table.update({name: ["10.0.0.2"] for name in sick})
    resolver = Resolver(lookup=names)
    asking = [asyncio.create_task(resolver.addresses(name)) for name in sick]
    await asyncio.sleep(0)
    assert await resolver.addresses("one") == ("10.0.0.1",)
    assert await asyncio.to_thread(lambda: 7) == 7
    names.release.set()
    await asyncio.gather(*asking)


async def test_given_up_lookup_is_not_started_twice(names: Names) -> None:
    """Callers that give up leave their lookup under way, and the next caller joins it: one thread per sick name."""
    names.hanging.add("one")
    resolver = Resolver(lookup=names)
    for _ in range(5):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await resolver.addresses("one")
    last = asyncio.create_task(resolver.addresses("one"))
    names.release.set()
    assert await last == ("10.0.0.1",)
    assert names.asked == ["one"]


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "bad: Name or service not known"),
        (OSError(), "bad: the name is not known"),
        (UnicodeError("label too long"), "bad: not a host name"),
    ],
)
async def test_failure_is_class_connect_and_not_remembered(names: Names, fault: Exception, text: str) -> None:
    """A name that cannot be resolved is ConnectFailed for each who asks, and is asked for again next time."""
    names.table["bad"] = fault
    resolver = Resolver(lookup=names)
    outcomes = await asyncio.gather(*(resolver.addresses("bad") for _ in range(3)), return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == [text] * 3
    assert len({id(outcome) for outcome in outcomes}) == 3
    names.table["bad"] = ["10.0.0.3"]
    assert await resolver.addresses("bad") == ("10.0.0.3",)


async def test_name_without_addresses(names: Names) -> None:
    """An empty answer is a failure too."""
    names.table["empty"] = []
    with pytest.raises(ConnectFailed, match="no address"):
        await Resolver(lookup=names).addresses("empty")


def test_loop_that_is_gone(names: Names) -> None:
    """A lookup that ends after its loop was closed bothers nobody."""
    names.hanging.add("one")
    resolver = Resolver(lookup=names)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await resolver.addresses("one")

    asyncio.run(give_up())
    [thread] = [thread for thread in threading.enumerate() if thread.name == "resolve one"]
    assert thread.daemon
    names.release.set()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("host", "numeric"),
    [("127.0.0.1", True), ("::1", True), ("fe80::1%eth0", True), ("localhost", False), ("127.1", False), ("", False)],
)
def test_numeric(host: str, numeric: bool) -> None:
    """Only written-out addresses count as numbers; everything else is the system's to read."""
    assert is_numeric(host) is numeric
