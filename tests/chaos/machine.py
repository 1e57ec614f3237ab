"""How much the machine kept us from running: what is late for that reason says nothing about the gateway.

Linux tells for each process how long it waited for a processor (schedstat), and how long the host ran others (steal).
Unlike the gateway's own pauses, which a test must find, none of this is its doing.
"""

import asyncio
import os
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

TICK = 0.02


class Machine:
    """Looks many times a second for as long as a block runs."""

    def __init__(self) -> None:
        self.watched = [os.getpid()]
        """Processes that must be able to run."""
        self._lost: deque[tuple[float, float]] = deque(maxlen=20_000)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Machine":
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    def lost_since(self, moment: float) -> float:
        """Seconds that were lost since `moment` (of perf_counter), the one that is under way included."""
        lost = 0.0
        for ended, seconds in reversed(self._lost):
            if ended < moment:
                break
            lost += seconds
        return lost

    async def _watch(self) -> None:
        before = self._kept_waiting()
        while True:
            due = time.perf_counter() + TICK
            await asyncio.sleep(TICK)
            now, after = time.perf_counter(), self._kept_waiting()
            lost = max(now - due, after - before)
            before = after
            if lost > 0.001:
                self._lost.append((now, lost))

    def _kept_waiting(self) -> float:
        """Seconds so far that watched processes waited for a processor, and that the host took for others."""
        waited = 0.0
        for pid in self.watched:
            with suppress(OSError, ValueError, IndexError):
                waited += int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
        with suppress(OSError, ValueError, IndexError):
            stolen = int(Path("/proc/stat").read_text().split(maxsplit=9)[8])
            waited += stolen / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
        return waited

    def __repr__(self) -> str:
        return f"<Machine lost {sum(seconds for _, seconds in self._lost):.2f} s for {len(self.watched)} processes>"
