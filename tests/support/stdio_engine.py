"""The test's side of a scripted stdio engine: opens a transport to it, and sees that nothing is left afterwards."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from app.engines.stdio import StdioTransport
from app.settings.schema import EngineEntry, EnginesSettings
from tests.support.running_gateway import PATIENCE

PEER = str(Path(__file__).with_name("stdio_peer.py"))
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


class StillClock:
    """A clock that stands still until it is moved."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def peer(*behaviour: str) -> list[str]:
    """The command line of the scripted engine."""
    return [sys.executable, "-ISu", PEER, *(behaviour or ("obey",))]


@asynccontextmanager
async def opened(
    command: list[str] | None = None, *, limit: int = 16_777_216, **options: Any
) -> AsyncIterator[StdioTransport]:
    """A transport to `command`, closed at the end; no task may be left then."""
    entry = EngineEntry(id="peer", command=command or peer())
    transport = StdioTransport(entry, EnginesSettings(max_response_bytes=limit), **{"grace": PATIENCE / 4, **options})
    tasks = asyncio.all_tasks()
    try:
        yield transport
    finally:
        await asyncio.wait_for(transport.close(), PATIENCE)
    assert asyncio.all_tasks() - tasks == set()


async def ask(transport: StdioTransport, *steps: list[Any], echo: Any = None, **options: Any) -> dict[str, Any]:
    """The result of one call in which the engine does `steps` (by default it answers)."""
    params = {"do": list(steps) or [["ok"]], "echo": echo}
    reply = await asyncio.wait_for(transport.call("retrieve", params, **options), PATIENCE)
    return reply.result


def process_gone(pid: int) -> bool:
    """Whether no such process runs any more. A zombie that another parent has yet to reap does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def open_files() -> int:
    """How many file descriptors this process holds."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def on_both_loops(story: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[LoopFactory], None]:
    """Make an async test run once on asyncio's own loop and once on uvloop."""

    def run(loop_factory: LoopFactory) -> None:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(story())

    run.__doc__, run.__name__, run.__module__ = story.__doc__, story.__name__, story.__module__
    loops = [asyncio.new_event_loop, uvloop.new_event_loop]
    return pytest.mark.parametrize("loop_factory", loops, ids=["asyncio", "uvloop"])(run)
