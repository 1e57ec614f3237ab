"""A child that writes without end: it is read slowly, which leaves the event loop to others, and killed at last."""

import asyncio
import time

import pytest

from app.engines import child_output
from app.protocol.errors import LegError
from tests.support.running_gateway import until
from tests.support.stdio_engine import ask, on_both_loops, opened, peer

PIECE = 262_144
"""Most bytes that an event loop takes from a pipe at once."""

FLOODS = [("1", "noise\n"), ("1", "\n"), ("1", "{}\n"), ("1", "x"), ("2", "moan\n")]


@pytest.mark.parametrize(("fd", "text"), FLOODS)
async def test_a_output_limit_is_read_slowly(fd: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines, blank lines, objects, one line without end, stderr: after a burst it is a piece for each pause."""
    monkeypatch.setattr(child_output, "PAUSE_SECONDS", 0.4)
    async with opened(peer("flood", fd, text), limit=65_536, grace=0.1) as transport:
        await transport.start()
        began, child = time.monotonic(), transport._child
        assert child is not None
        await asyncio.sleep(1.0)
        read = (child.noise if fd == "1" else child._spill).total
        pauses = (time.monotonic() - began) / child_output.PAUSE_SECONDS
        assert 0 < read <= child_output.BURST_BYTES + (2 + pauses) * PIECE


@on_both_loops
async def test_an_engine_that_writes_much_to_stderr_still_answers() -> None:
    """A flood on stderr slows its reading down, not the answers on stdout."""
    async with opened(peer("flood", "2", "moan\n"), grace=0.1) as transport:
        assert (await ask(transport, echo=7))["echo"] == 7


async def test_a_output_limit_without_an_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the bound the process is killed, its calls are told why, and it is started again by the next."""
    monkeypatch.setattr(child_output, "MOST_BYTES", 300_000)
    log: list[str] = []
    async with opened(peer("flood", "1", "noise\n"), log=log.append) as transport:
        with pytest.raises(LegError, match=r"wrote \d+ MiB to stdout that answer nothing, and was killed"):
            await ask(transport, ["hold"])
        await until(lambda: any("answer nothing" in line for line in log))
        assert "down (the engine's process wrote" in repr(transport)
