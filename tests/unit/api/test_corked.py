"""The corked transport: two writes of one iteration leave as one, and nothing is held longer or lost."""

import asyncio
import socket
from typing import Any

import pytest

from app.api.corked import CorkedTransport
from tests.support.fake_transport import FakeTransport
from tests.support.virtual_time import turns


@pytest.fixture
async def pair() -> tuple[CorkedTransport, FakeTransport]:
    """A corked transport and the one behind it."""
    behind: Any = FakeTransport()
    return CorkedTransport(behind, asyncio.get_running_loop()), behind


async def test_head_and_body_leave_as_one(pair: tuple[CorkedTransport, FakeTransport]) -> None:
    """Two writes of one iteration are one write, at once."""
    corked, behind = pair
    corked.write(b"head ")
    assert behind.written == []
    corked.write(b"body")
    assert behind.written == [b"head body"]
    await turns()
    assert behind.written == [b"head body"]


async def test_single_write_leaves_with_the_iteration(pair: tuple[CorkedTransport, FakeTransport]) -> None:
    """A write that stays alone is not held beyond the iteration."""
    corked, behind = pair
    corked.write(b"alone")
    assert repr(corked).startswith("<CorkedTransport holding 5 bytes of ")
    await turns(1)
    assert behind.written == [b"alone"]


@pytest.mark.parametrize("count", [3, 4, 5])
async def test_order_is_kept(pair: tuple[CorkedTransport, FakeTransport], count: int) -> None:
    """However many writes there are, all bytes leave once and in order."""
    corked, behind = pair
    for number in range(count):
        corked.write(b"%d" % number)
    await turns()
    assert b"".join(behind.written) == b"01234"[:count]


async def test_closing_sends_what_is_held_first(pair: tuple[CorkedTransport, FakeTransport]) -> None:
    """What is held when the server closes the connection is sent before."""
    corked, behind = pair
    corked.write(b"last words")
    corked.close()
    assert (behind.written, behind.closing) == ([b"last words"], True)
    await turns()


async def test_nothing_is_written_to_a_lost_connection(pair: tuple[CorkedTransport, FakeTransport]) -> None:
    """If the caller goes away between a write and the end of the iteration, what is held is dropped in silence."""
    corked, behind = pair
    corked.write(b"too late")
    behind.close()
    await turns()
    assert behind.written == []


async def test_everything_else_is_the_transport(pair: tuple[CorkedTransport, FakeTransport]) -> None:
    """What is no writing goes straight through."""
    corked, _ = pair
    assert corked.get_extra_info("peername") == "extra peername"
    assert not corked.is_closing()


async def test_a_whole_answer_leaves_at_once_and_in_its_place(pair: tuple[CorkedTransport, FakeTransport]) -> None:
    """What is sent does not wait for the iteration's end, but never overtakes what was written before it."""
    corked, behind = pair
    corked.send(b"first")
    assert behind.written == [b"first"]
    corked.write(b"held ")
    corked.send(b"whole")
    assert behind.written == [b"first", b"held ", b"whole"]
    behind.close()
    corked.send(b"too late")
    await turns()
    assert behind.written == [b"first", b"held ", b"whole"]


async def test_hanging_up_is_seen_at_once() -> None:
    """The caller's system knows of the end before the loop goes on: it sends no request into a closed connection."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    transport, _ = await asyncio.get_running_loop().connect_accepted_socket(asyncio.Protocol, ours)
    corked: Any = CorkedTransport(transport, asyncio.get_running_loop())
    corked.hang_up()
    assert theirs.recv(1) == b""
    assert corked.is_closing()
    await turns()
    theirs.close()
