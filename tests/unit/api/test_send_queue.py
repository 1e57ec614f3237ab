"""Lines on their way out: order, what is unread, and what a slow caller does not hear."""

import asyncio
import json
from typing import Any

import pytest

from app.api.send_queue import FULL_BYTES, PipeProgressListener, SendQueue
from tests.support.running_gateway import PATIENCE


class Sink:
    """Takes what is written when it may."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.data = b""
        self.room = 0

    async def write(self, data: bytes) -> None:
        await self.open.wait()
        self.data += data

    def made(self) -> None:
        self.room += 1

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.data.splitlines()]


async def test_lines_leave_in_order_and_then_it_ends() -> None:
    """Everything put before `close` is written, each with its newline; room is told of."""
    log_writer = Sink()
    box = SendQueue(log_writer.write, log_writer.made)
    writing = asyncio.create_task(box.run())
    for number in range(3):
        box.put(b"%d" % number)
        await asyncio.sleep(0)
    box.put(b"3")
    assert repr(box).startswith("<SendQueue ")
    box.close()
    await asyncio.wait_for(writing, PATIENCE)
    assert log_writer.data == b"0\n1\n2\n3\n"
    assert (box.unsent, log_writer.room > 0, repr(box)) == (0, True, "<SendQueue 0 bytes unread, closing>")


async def test_what_nobody_takes_is_unread() -> None:
    """It is full once more than a megabyte waits, the piece that is being written included."""
    log_writer = Sink()
    log_writer.open.clear()
    box = SendQueue(log_writer.write, log_writer.made)
    writing = asyncio.create_task(box.run())
    box.put(b"x" * FULL_BYTES)
    await asyncio.sleep(0)
    assert box.full
    log_writer.open.set()
    box.close()
    await asyncio.wait_for(writing, PATIENCE)
    assert not box.full


async def test_a_caller_that_is_gone() -> None:
    """Its OSError ends the writing."""

    async def gone(data: bytes) -> None:
        raise BrokenPipeError

    box = SendQueue(gone, lambda: None)
    box.put(b"x")
    with pytest.raises(BrokenPipeError):
        await box.run()


async def test_what_the_ear_passes_on() -> None:
    """Progress with a token, log lines always; no progress while the caller does not read."""
    log_writer = Sink()
    box = SendQueue(log_writer.write, log_writer.made)
    ear = PipeProgressListener(box)
    ear.open()
    ear.send({"progressToken": None, "stage": "recall"})
    ear.send({"progressToken": 0, "stage": "recall"})
    ear.log({"level": "info", "message": "m"})
    box.unsent += FULL_BYTES
    ear.send({"progressToken": "t", "stage": "fuse"})
    ear.log({"level": "warning", "message": "n"})
    box.unsent -= FULL_BYTES
    box.close()
    await box.run()
    assert [line["method"] for line in log_writer.lines] == ["notifications/progress", *["notifications/log"] * 2]
