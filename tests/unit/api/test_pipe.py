"""Reading and writing a file descriptor beside the loop."""

import asyncio
import os
from pathlib import Path

import pytest

from app.api.pipe import CHUNK_BYTES, Pipe
from tests.support.running_gateway import PATIENCE


@pytest.fixture
def ends() -> tuple[int, int]:
    """The two ends of a pipe; tests close what they use."""
    return os.pipe()


async def test_bytes_go_through_and_end(ends: tuple[int, int]) -> None:
    """What is written is read, in pieces; after the last writer left there is nothing."""
    reading, writing = ends
    source, log_writer = Pipe(reading), Pipe(writing)
    assert repr(source) == f"<Pipe {reading}, not used yet>"
    data = os.urandom(10 * CHUNK_BYTES + 7)
    written = asyncio.create_task(log_writer.write(data))
    read = b""
    while len(read) < len(data):
        read += await source.read()
    await written
    assert read == data
    os.close(writing)
    assert await source.read() == b""
    os.close(reading)
    assert repr(source).endswith("used>")


async def test_nobody_reads_any_more(ends: tuple[int, int]) -> None:
    """Writing to a pipe without a reader is an OSError, of the caller and not of the thread."""
    reading, writing = ends
    os.close(reading)
    log_writer = Pipe(writing)
    for _ in range(2):
        with pytest.raises(BrokenPipeError):
            await log_writer.write(b"x")
    os.close(writing)


async def test_a_call_that_is_given_up_is_left_to_itself(ends: tuple[int, int]) -> None:
    """A read that nobody waits for ends in the thread; the next one has the next bytes."""
    reading, writing = ends
    source = Pipe(reading)
    waiting = asyncio.create_task(source.read())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    os.write(writing, b"lost")
    following = asyncio.create_task(source.read())
    os.close(writing)
    assert await asyncio.wait_for(following, PATIENCE) in (b"", b"lost")
    os.close(reading)


async def test_a_descriptor_that_does_not_block(ends: tuple[int, int]) -> None:
    """Whoever shares it may have made it non-blocking: it is waited for all the same."""
    reading, writing = ends
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    source, log_writer = Pipe(reading), Pipe(writing)
    first = asyncio.create_task(source.read())
    await asyncio.sleep(0.02)
    assert not first.done()
    written = asyncio.create_task(log_writer.write(b"y" * 1_000_000))
    count = len(await asyncio.wait_for(first, PATIENCE))
    while count < 1_000_000:
        count += len(await asyncio.wait_for(source.read(), PATIENCE))
    await written
    os.close(reading)
    os.close(writing)


async def test_a_file(tmp_path: Path) -> None:
    """A file can be read and written like a pipe."""
    (tmp_path / "in").write_bytes(b"line\n")
    source = os.open(tmp_path / "in", os.O_RDONLY)
    pipe = Pipe(source)
    assert [await pipe.read(), await pipe.read()] == [b"line\n", b""]
    os.close(source)
