"""One engine process: its pipes, its process group and its end (room engines, RCP §5 stdio).

Decides when the process counts as gone, what its end is called, and how it is brought down: stdin is closed, then
SIGTERM and at last SIGKILL to its whole group. If the gateway itself is killed, reaper.py ends the group. Refuses to
know JSON-RPC, calls and restarts.
"""

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from app.engines.child_output import LineSplitter, OutputLimit, OversizedLine, StderrTail
from app.engines.reaper import REAPER
from app.protocol.errors import Overloaded, clip

LAST_WORDS_SECONDS: Final = 0.25
"""Time for what is still in the pipes after the first sign of the end."""

MAX_QUEUED_BYTES: Final = 4_194_304
"""Requests waiting for a child that does not read its stdin; with more, new ones are refused."""

KILL_SECONDS: Final = 1.0
"""After SIGKILL, before a process that does not go (uninterruptible) is left to the system."""

GROUP_POLL_SECONDS: Final = 0.01

Line = bytes | bytearray | OversizedLine


class ChildProcess:
    """A started engine process. One writer: a line is written whole or not at all, whoever is cancelled meanwhile.

    `hear` is called with the lines of stdout, `depart` once when the process is gone by itself.
    """

    def __init__(
        self,
        limit: int,
        stderr: StderrTail,
        hear: Callable[[list[Line]], None],
        depart: Callable[["ChildProcess"], None],
    ) -> None:
        self.stderr = stderr
        self.ending = False
        """A first sign of the end was seen, or it is being ended: nothing is written any more."""
        self.gone = False
        """Nothing is heard any more."""
        self.answered = False
        """It has given a readable answer; set by whoever reads the answers."""
        self.served = False
        """It has answered more than handshakes and pings; set by whoever reads the answers."""
        self.status: int | None = None
        """Exit status, negative for a signal; None while it runs."""
        self.pid = 0
        self.noise = OutputLimit()
        """What it wrote to stdout that answers nothing; told by whoever reads the answers."""
        self._spill = OutputLimit()
        self._dammed: set[asyncio.ReadTransport] = set()
        self._condemned: str | None = None
        self._splitter = LineSplitter(limit)
        self._hear = hear
        self._depart = depart
        self._open = {0, 1, 2}
        self._paused = False
        self._waiting: dict[int, bytes] = {}
        self._waiting_bytes = 0
        self._exited = asyncio.Event()
        self._released = asyncio.Event()
        self._started = False
        self._group_left = False
        self._last_words: asyncio.TimerHandle | None = None
        self._drop_note: asyncio.TimerHandle | None = None

    async def start(self, command: Sequence[str]) -> None:
        """Start the process in a session and group of its own. Raises OSError, ValueError.

        Not by the event loop: uvloop gives a child sockets, so that `> /dev/stderr` fails in it, and leaves it second
        copies of them, so that a closed stdout goes unnoticed.
        """
        pipe = subprocess.PIPE
        process = subprocess.Popen(  # noqa: ASYNC220 - asyncio's own start does the same
            command, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        self.pid = process.pid
        REAPER.watch(self.pid)
        try:
            _watch_exit(process, self._note_exit)
            loop = asyncio.get_running_loop()
            self._stdin, _ = await loop.connect_write_pipe(lambda: _Pipe(self, 0), process.stdin)
            self._stdout, _ = await loop.connect_read_pipe(lambda: _Pipe(self, 1), process.stdout)
            self._stderr, _ = await loop.connect_read_pipe(lambda: _Pipe(self, 2), process.stderr)
        except BaseException:
            self._signal_group(signal.SIGKILL)
            REAPER.forget(self.pid)
            raise
        self._started = True
        self._notice_the_end()  # it may have begun meanwhile

    # -- writing

    def send(self, number: int, line: bytes) -> None:
        """Write `line` now, or as soon as the child reads again. Raises Overloaded if too much waits already."""
        if not (self._paused or self.ending):
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

    # -- what the pipes and the system tell

    def pause(self) -> None:
        """The child does not read as fast as we write."""
        self._paused = True

    def resume(self) -> None:
        """The pipe can take more: write what waits, in order, until it is full again."""
        self._paused = False
        while self._waiting and not (self._paused or self.ending):
            number = next(iter(self._waiting))
            line = self._waiting[number]
            self.withdraw(number)
            self._stdin.write(line)

    def take(self, fd: int, data: bytes) -> None:
        """What the child wrote to `fd`."""
        if fd == 2:
            self.stderr.feed(data)
            self._spill.swell(len(data))
            if self._started:  # else its pipes are not all there yet
                self._dam(self._spill, self._stderr)
            if self.stderr.dropped and self._drop_note is None:
                self._drop_note = asyncio.get_running_loop().call_later(1.0, self._say_dropped)
        elif not self.gone:
            self._hear(self._splitter.feed(data))
            if self._splitter.discarding:
                self.noise.swell(len(data))
            if self._started:
                self._dam(self.noise, self._stdout)
            if self.noise.drowning:
                self.condemn(f"wrote {self.noise.total >> 20} MiB to stdout that answer nothing, and was killed")

    def lose(self, fd: int) -> None:
        """The pipe at `fd` is closed, by whichever side."""
        self._open.discard(fd)
        if fd != 2:
            self.ending = True
        if fd == 1 and not self.gone:
            self._hear(self._splitter.rest())
        if not self._open:
            self._released.set()
        self._notice_the_end()

    def _note_exit(self, status: int) -> None:
        self.ending = True
        self.status = status
        self._exited.set()
        self._notice_the_end()

    def _say_dropped(self) -> None:
        self._drop_note = None
        self.stderr.say_dropped()

    def _dam(self, output_limit: OutputLimit, pipe: asyncio.ReadTransport) -> None:
        """Read no more than it is worth: a child that writes without end must not keep the event loop from others."""
        pause = output_limit.pause(asyncio.get_running_loop().time())
        if pause and not self.gone and pipe not in self._dammed:
            self._dammed.add(pipe)
            pipe.pause_reading()
            asyncio.get_running_loop().call_later(pause, self._undam, pipe)

    def _undam(self, pipe: asyncio.ReadTransport) -> None:
        self._dammed.discard(pipe)
        if not pipe.is_closing():
            pipe.resume_reading()

    def condemn(self, why: str) -> None:
        """Kill it; `why` is how its end is told."""
        self._condemned = why
        self._signal_group(signal.SIGKILL)

    # -- the end

    @property
    def epitaph(self) -> str:
        """How it ended, fit for a note. What it wrote to stderr is for the log alone."""
        if self._condemned is not None:
            end = self._condemned
        elif self.status is None:
            end = "closed its pipes and was killed"
        elif self.status < 0:
            end = f"was killed by {_signal_name(-self.status)}"
        else:
            end = f"exited with status {self.status}"
        return f"the engine's process {end}"

    @property
    def last_words(self) -> str:
        """How it ended and its last line on stderr, for the log."""
        last_line = self.stderr.last_line
        return clip(self.epitaph + (f"; last line on stderr: {last_line}" if last_line else ""))

    async def end(self, grace: float) -> None:
        """Bring it down and reap it: EOF on stdin, `grace` seconds, SIGTERM, `grace` seconds, SIGKILL.

        The signals go to the whole group. If this is cancelled, the group is killed at once.
        """
        self.gone = self.ending = True
        self._waiting.clear()
        try:
            self._stdin.close()
            await self._wait_for(self._exited, grace)
            self._signal_group(signal.SIGTERM)
            await self._group_vanished(grace)
            self._signal_group(signal.SIGKILL)
            await self._wait_for(self._exited, KILL_SECONDS)
            await self._adopted_reaped(KILL_SECONDS)
        finally:
            self._signal_group(signal.SIGKILL)
            REAPER.forget(self.pid)
            self._release()
        await self._wait_for(self._released, KILL_SECONDS)

    def _notice_the_end(self) -> None:
        """After the first sign, wait for the others, but not for long: a grandchild may keep the pipes open."""
        if self.gone or not (self.ending and self._started):
            return
        if self._exited.is_set() and not self._open & {1, 2}:
            self._count_as_gone()
        elif self._last_words is None:
            loop = asyncio.get_running_loop()
            self._last_words = loop.call_later(LAST_WORDS_SECONDS, self._count_as_gone)

    def _count_as_gone(self) -> None:
        if self.gone:
            return
        self.gone = True
        self._signal_group(signal.SIGKILL)
        self.stderr.flush()
        self._depart(self)

    def _release(self) -> None:
        """Close our ends of the pipes, whoever still holds the others."""
        for timer in (self._last_words, self._drop_note):
            if timer is not None:
                timer.cancel()
        self.stderr.flush()
        if 0 in self._open:
            self._stdin.abort()  # close() would first write what nobody reads any more
        self._stdout.close()
        self._stderr.close()

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


class _Pipe(asyncio.Protocol):
    """One of the child's pipes, as the event loop sees it."""

    __slots__ = ("_child", "_fd")

    def __init__(self, child: ChildProcess, fd: int) -> None:
        self._child = child
        self._fd = fd

    def data_received(self, data: bytes) -> None:
        self._child.take(self._fd, data)

    def pause_writing(self) -> None:
        self._child.pause()

    def resume_writing(self) -> None:
        self._child.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._child.lose(self._fd)


def _watch_exit(process: subprocess.Popen[bytes], note: Callable[[int], None]) -> None:
    """Have `note` called in the event loop with the exit status, once. By a pidfd, or a thread where there is none."""
    loop = asyncio.get_running_loop()
    try:
        watch = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        threading.Thread(target=_await_exit, args=(process, loop, note), daemon=True).start()
        return

    def ended() -> None:
        loop.remove_reader(watch)
        os.close(watch)
        note(process.wait())

    loop.add_reader(watch, ended)


def _await_exit(process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop, note: Callable[[int], None]) -> None:
    status = process.wait()
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(note, status)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
