"""The buffered transport: two writes of one turn leave as one, and nothing is held longer or lost."""

import asyncio
from typing import Any

import pytest

from app.server.buffered_transport import BufferedTransport
from tests.support.fake_transport import FakeTransport


@pytest.fixture
async def pair() -> tuple[BufferedTransport, FakeTransport]:
    """A buffered transport and the one behind it."""
    behind: Any = FakeTransport()
    return BufferedTransport(behind, asyncio.get_running_loop(), lambda: False), behind


async def test_two_writes_of_a_turn_are_one(pair: Any) -> None:
    """Head and body of an answer are one write; one alone leaves at the end of its turn."""
    transport, behind = pair
    transport.write(b"head ")
    assert behind.written == []
    transport.write(b"body")
    transport.write(b"alone")
    await asyncio.sleep(0)
    assert b"".join(behind.written) == b"head bodyalone"
    assert behind.written[0] == b"head body"


async def test_closing_sends_what_is_held(pair: Any) -> None:
    """Nothing written before `close` is lost, and nothing is written after it."""
    transport, behind = pair
    transport.write(b"last words")
    transport.close()
    assert behind.written == [b"last words"]
    transport.write(b"too late")
    await asyncio.sleep(0)
    transport.write_now(b"too late")
    assert behind.written == [b"last words"]
    transport.detach()


async def test_what_is_held_leaves_before_what_is_sent_now(pair: Any) -> None:
    """The order of writes is kept."""
    transport, behind = pair
    transport.write(b"first ")
    transport.write_now(b"second")
    assert b"".join(behind.written) == b"first second"
