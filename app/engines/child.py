"""One engine process: its pipes, its process group and its end (room engines, RCP §5 stdio).

Decides when the process counts as gone, what its end is called, and how it is brought down: stdin is closed, then
SIGTERM and at last SIGKILL to its whole group. If the gateway itself is killed, the contract is that the engine ends
when its stdin ends. Refuses to know JSON-RPC, calls and restarts.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, cast

from app.engines.lines import LineSplitter, Oversized, StderrTail
from app.protocol.errors import Overloaded, clip

LAST_WORDS_SECONDS: Final = 0.25
"""Time for what is still in the pipes after the first sign of the end."""

MAX_QUEUED_BYTES: Final = 4_194_304
"""Requests waiting for a child that does not read its stdin; with more, new ones are refused."""

KILL_SECONDS: Final = 1.0
"""After SIGKILL, before a process that does not go (uninterruptible) is left to the system."""

GROUP_POLL_SECONDS: Final = 0.01

Line = bytes | bytearray | Oversized


class Child(asyncio.SubprocessProtocol):
    """A started engine process. One writer: a line is written whole or not at all, whoever is cancelled meanwhile.

    `hear` is called with the lines of stdout, `depart` once when the process counts as gone by itself.
    """

    def __init__(
        self,
        limit: int,
        stderr: StderrTail,
        hear: Callable[[list[Line]], None],
        depart: Callable[["Child"], None],
    ) -> None:
        self.stderr = stderr
        self.ending = False
        """No new calls: a first sign of the end was seen, or it is being ended."""
        self.answered = False
        """It has given a readable answer; set by whoever reads the answers."""
        self.status: int | None = None
        """Exit status, negative for a signal; None while it runs."""
        self.pid = 0
        self._splitter = LineSplitter(limit)
        self._hear = hear
        self._depart = depart
        self._gone = False
        self._group_left = False
        self._abandoned = False
        self._open = {0, 1, 2}
        self._paused = False
        self._waiting: dict[int, bytes] = {}
        self._waiting_bytes = 0
        self._exited = asyncio.Event()
        self._released = asyncio.Event()
        self._last_words: asyncio.TimerHandle | None = None
        self._drop_note: asyncio.TimerHandle | None = None

    async def start(self, command: Sequence[str]) -> None:
        """Start the process in a session and group of its own. Raises OSError, ValueError."""
        pipe = asyncio.subprocess.PIPE
        loop = asyncio.get_running_loop()
        await loop.subprocess_exec(lambda: self, *command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)

    # -- writing

    def send(self, number: int, line: bytes) -> None:
        """Write `line` now, or as soon as the child reads again. Raises Overloaded if too much waits already."""
        if not self._paused:
            self._stdin.write(line)
        elif self._waiting_bytes < MAX_QUEUED_BYTES:
            self._waiting[number] = line
            self._waiting_bytes += len(line)
        else:
            raise Overloaded(f"the engine does not read its stdin; {self._waiting_bytes} bytes wait for it")

    def offer(self, line: bytes) -> None:
        """Write `line` if the pipe can take it now; else forget it."""
        if not (self._paused or self.ending):
            self._stdin.write(line)

    def withdraw(self, number: int) -> bool:
        """Take back what `send` was given, if not a byte of it has been written. Says whether that was so."""
        line = self._waiting.pop(number, None)
        if line is None:
            return False
        self._waiting_bytes -= len(line)
        return True

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        while self._waiting and not self._paused and not self.ending:
            number = next(iter(self._waiting))
            line = self._waiting[number]
            self.withdraw(number)
            self._stdin.write(line)

    # -- what the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._process = cast(asyncio.SubprocessTransport, transport)
        self._stdin = cast(asyncio.WriteTransport, self._process.get_pipe_transport(0))
        self.pid = self._process.get_pid()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1:
            if not self._gone:
                self._hear(self._splitter.feed(data))
        else:
            self.stderr.feed(data)
            if self.stderr.dropped and self._drop_note is None:
                self._drop_note = asyncio.get_running_loop().call_later(1.0, self._say_dropped)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        if fd != 2:
            self.ending = True
        if fd == 1 and not self._gone:
            self._hear(self._splitter.rest())
        self._notice_the_end()

    def process_exited(self) -> None:
        self.ending = True
        self.status = self._process.get_returncode()
        self._exited.set()
        self._notice_the_end()
        if self._abandoned:
            self._release()

    def connection_lost(self, exc: Exception | None) -> None:
        self._released.set()

    # -- the end

    @property
    def epitaph(self) -> str:
        """How it ended and its last line on stderr, fit for a note."""
        if self.status is None:
            end = "closed its pipes and was killed"
        elif self.status < 0:
            end = f"was killed by {_signal_name(-self.status)}"
        else:
            end = f"exited with status {self.status}"
        last_line = self.stderr.last_line
        return clip(f"the engine's process {end}" + (f"; last line on stderr: {last_line}" if last_line else ""))

    async def end(self, grace: float) -> None:
        """Bring it down and reap it: EOF on stdin, `grace` seconds, SIGTERM, `grace` seconds, SIGKILL.

        The signals go to the whole group. If this is cancelled, the group is killed at once.
        """
        self._gone = self.ending = True
        self._waiting.clear()
        try:
            self._stdin.close()
            await self._wait_for(self._exited, grace)
            self._signal_group(signal.SIGTERM)
            await self._group_vanished(grace)
        except asyncio.CancelledError:
            self._abandoned = True
            raise
        finally:
            self._signal_group(signal.SIGKILL)
        await self._wait_for(self._exited, KILL_SECONDS)
        await self._adopted_reaped(KILL_SECONDS)
        self._release()
        await self._wait_for(self._released, KILL_SECONDS)

    def _notice_the_end(self) -> None:
        """After the first sign, wait for the others, but not for long: a grandchild may keep the pipes open."""
        if self._gone or not self.ending:
            return
        if self._exited.is_set() and not self._open & {1, 2}:
            self._count_as_gone()
        elif self._last_words is None:
            loop = asyncio.get_running_loop()
            self._last_words = loop.call_later(LAST_WORDS_SECONDS, self._count_as_gone)

    def _count_as_gone(self) -> None:
        if self._gone:
            return
        self._gone = True
        self._signal_group(signal.SIGKILL)
        self.stderr.flush()
        self._depart(self)

    def _say_dropped(self) -> None:
        self._drop_note = None
        self.stderr.say_dropped()

    def _release(self) -> None:
        """Close our ends of the pipes. Only once it has exited: asyncio would poll it and lose its status otherwise."""
        for timer in (self._last_words, self._drop_note):
            if timer is not None:
                timer.cancel()
        self.stderr.flush()
        if 0 in self._open:
            self._stdin.abort()  # close() would first write what nobody reads any more
        with suppress(OSError):  # uvloop signals a process that it does not know to be gone
            self._process.close()

    async def _wait_for(self, event: asyncio.Event, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()

    async def _group_vanished(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self._signal_group(0) and loop.time() < until:
            self._reap_adopted()
            await asyncio.sleep(GROUP_POLL_SECONDS)

    async def _adopted_reaped(self, seconds: float) -> None:
        """After SIGKILL: what is not ours to reap may stay a zombie for as long as its new parent likes."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self._reap_adopted() and loop.time() < until:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(GROUP_POLL_SECONDS)

    def _signal_group(self, number: int) -> bool:
        """Signal the whole group; False once it is empty, and ever after: its number may be another's by then."""
        if not self._group_left and self.pid:
            try:
                os.killpg(self.pid, number)
            except OSError:
                self._group_left = True
        return not self._group_left

    def _reap_adopted(self) -> bool:
        """As PID 1 of a container we inherit the group's orphans, and nobody else takes them off the process table.

        Says whether some are still to come. The process itself is left to the event loop, which wants its status.
        """
        if not self._exited.is_set() or self._group_left:
            return False
        with suppress(ChildProcessError):
            while os.waitpid(-self.pid, os.WNOHANG) != (0, 0):
                pass
            return True
        return False

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.status is None else f"status {self.status}"
        waiting = f", {len(self._waiting)} lines wait for its stdin" if self._waiting else ""
        return f"<Child {state}{', ending' if self.ending else ''}{waiting}, {self.stderr!r}>"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
