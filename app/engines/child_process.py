"""A stdio engine's process: its pipes, its process group, and how it ends (RCP §5 stdio).

To end it, stdin is closed, then SIGTERM and at last SIGKILL are sent to the whole group. If the gateway itself is
killed, reaper.py ends the group.
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

DRAIN_SECONDS: Final = 0.25
"""Time to read what is still in the pipes after the first sign of the end."""

MAX_QUEUED_BYTES: Final = 4_194_304
"""Requests that may wait for a process which does not read its stdin; beyond that, new ones are refused."""

KILL_SECONDS: Final = 1.0
"""Time after SIGKILL until a process that does not end (uninterruptible) is left to the system."""

GROUP_POLL_SECONDS: Final = 0.01

Line = bytes | bytearray | OversizedLine


class ChildProcess:
    """A started engine process. A line is written whole or not at all, even if its call is cancelled meanwhile.

    `on_lines` is called with the lines of stdout, `depart` is called once when the process is gone by itself.
    """

    def __init__(
        self,
        limit: int,
        stderr: StderrTail,
        on_lines: Callable[[list[Line]], None],
        depart: Callable[["ChildProcess"], None],
    ) -> None:
        self.stderr = stderr
        self.ending = False
        """A first sign of the end was seen, or it is being ended: nothing more is written."""
        self.gone = False
        """Nothing more is read."""
        self.answered = False
        """It has given a readable answer; set by the reader of the answers."""
        self.served = False
        """It has answered more than handshakes and pings; set by the reader of the answers."""
        self.status: int | None = None
        """Exit status, negative for a signal; None while it runs."""
        self.pid = 0
        self.noise = OutputLimit()
        """What it wrote to stdout that answers nothing; counted by the reader of the answers."""
        self._spill = OutputLimit()
        self._throttled: set[asyncio.ReadTransport] = set()
        self._killed_because: str | None = None
        self._splitter = LineSplitter(limit)
        self._on_lines = on_lines
        self._on_exit = depart
        self._open = {0, 1, 2}
        self._paused = False
        self._waiting: dict[int, bytes] = {}
        self._waiting_bytes = 0
        self._exited = asyncio.Event()
        self._released = asyncio.Event()
        self._started = False
        self._group_left = False
        self._drain_timer: asyncio.TimerHandle | None = None
        self._dropped_timer: asyncio.TimerHandle | None = None

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
        # From here on, the group is ended even if the gateway is killed.
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
        self._check_end()  # it may have begun meanwhile

    # -- writing

    def send(self, number: int, line: bytes) -> None:
        """Write `line` now, or as soon as the child reads again. Raises Overloaded if too much waits already."""
        if not (self._paused or self.ending):
            self._stdin.write(line)
        # Kept outside the pipe's own buffer, so that a cancelled call can take its line back.
        elif self._waiting_bytes < MAX_QUEUED_BYTES:
            self._waiting[number] = line
            self._waiting_bytes += len(line)
        else:
            raise Overloaded(f"the engine does not read its stdin; {self._waiting_bytes} bytes wait for it")

    def offer(self, line: bytes) -> None:
        """Write `line` if the pipe can take it now; otherwise drop it."""
        if not (self._paused or self.ending):
            self._stdin.write(line)

    def withdraw(self, number: int) -> bool:
        """Take back a line of `send`, unless it has been written in part. Returns whether that was possible."""
        line = self._waiting.pop(number, None)
        if line is None:
            return False
        self._waiting_bytes -= len(line)
        return True

    # -- events of the pipes and of the process

    def pause(self) -> None:
        """Called when the process reads more slowly than requests arrive."""
        self._paused = True

    def resume(self) -> None:
        """Called when the pipe can take more: write what waits, in order, until it is full again."""
        self._paused = False
        while self._waiting and not (self._paused or self.ending):
            number = next(iter(self._waiting))
            line = self._waiting[number]
            self.withdraw(number)
            self._stdin.write(line)

    def take(self, fd: int, data: bytes) -> None:
        """Called with what the process wrote to `fd`."""
        if fd == 2:
            self.stderr.feed(data)
            self._spill.add(len(data))
            if self._started:  # else its pipes are not all there yet
                self._throttle(self._spill, self._stderr)
            if self.stderr.dropped and self._dropped_timer is None:
                self._dropped_timer = asyncio.get_running_loop().call_later(1.0, self._report_dropped)
        elif not self.gone:
            self._on_lines(self._splitter.feed(data))
            if self._splitter.discarding:
                self.noise.add(len(data))
            if self._started:
                self._throttle(self.noise, self._stdout)
            # A process that only writes noise would occupy the event loop for ever.
            if self.noise.exceeded:
                self.kill(f"wrote {self.noise.total >> 20} MiB to stdout that answer nothing, and was killed")

    def lose(self, fd: int) -> None:
        """Called when the pipe `fd` is closed by either side."""
        self._open.discard(fd)
        if fd != 2:
            self.ending = True
        if fd == 1 and not self.gone:
            self._on_lines(self._splitter.rest())
        if not self._open:
            self._released.set()
        self._check_end()

    def _note_exit(self, status: int) -> None:
        self.ending = True
        self.status = status
        self._exited.set()
        self._check_end()

    def _report_dropped(self) -> None:
        self._dropped_timer = None
        self.stderr.report_dropped()

    def _throttle(self, output_limit: OutputLimit, pipe: asyncio.ReadTransport) -> None:
        """Pause reading from a process that writes too much: it must not occupy the event loop."""
        pause = output_limit.pause(asyncio.get_running_loop().time())
        if pause and not self.gone and pipe not in self._throttled:
            self._throttled.add(pipe)
            pipe.pause_reading()
            asyncio.get_running_loop().call_later(pause, self._unthrottle, pipe)

    def _unthrottle(self, pipe: asyncio.ReadTransport) -> None:
        self._throttled.discard(pipe)
        if not pipe.is_closing():
            pipe.resume_reading()

    def kill(self, why: str) -> None:
        """Kill it; `why` becomes its exit reason."""
        self._killed_because = why
        self._signal_group(signal.SIGKILL)

    # -- the end

    @property
    def exit_reason(self) -> str:
        """How it ended, for notes to callers. What it wrote to stderr goes to the log only."""
        if self._killed_because is not None:
            end = self._killed_because
        elif self.status is None:
            end = "closed its pipes and was killed"
        elif self.status < 0:
            end = f"was killed by {_signal_name(-self.status)}"
        else:
            end = f"exited with status {self.status}"
        return f"the engine's process {end}"

    @property
    def exit_summary(self) -> str:
        """How it ended and its last line on stderr, for the log."""
        last_line = self.stderr.last_line
        return clip(self.exit_reason + (f"; last line on stderr: {last_line}" if last_line else ""))

    async def end(self, grace: float) -> None:
        """End the process and reap it: EOF on stdin, `grace` seconds, SIGTERM, `grace` seconds, SIGKILL.

        The signals go to the whole group. If this is cancelled, the group is killed at once.
        """
        self.gone = self.ending = True
        self._waiting.clear()
        try:
            self._stdin.close()
            await self._wait_for(self._exited, grace)
            # Children of the process share its group and get the signal as well.
            self._signal_group(signal.SIGTERM)
            await self._wait_for_group(grace)
            self._signal_group(signal.SIGKILL)
            await self._wait_for(self._exited, KILL_SECONDS)
            await self._wait_for_orphans(KILL_SECONDS)
        finally:
            self._signal_group(signal.SIGKILL)
            REAPER.forget(self.pid)
            self._release()
        await self._wait_for(self._released, KILL_SECONDS)

    def _check_end(self) -> None:
        """After the first sign of the end, wait for the others, but not long: a grandchild may keep the pipes open."""
        if self.gone or not (self.ending and self._started):
            return
        if self._exited.is_set() and not self._open & {1, 2}:
            self._mark_gone()
        elif self._drain_timer is None:
            loop = asyncio.get_running_loop()
            self._drain_timer = loop.call_later(DRAIN_SECONDS, self._mark_gone)

    def _mark_gone(self) -> None:
        if self.gone:
            return
        self.gone = True
        self._signal_group(signal.SIGKILL)
        self.stderr.flush()
        self._on_exit(self)

    def _release(self) -> None:
        """Close the gateway's ends of the pipes, even if another process holds the other ends."""
        for timer in (self._drain_timer, self._dropped_timer):
            if timer is not None:
                timer.cancel()
        self.stderr.flush()
        # Lines that were not written yet have nobody to answer them.
        if 0 in self._open:
            self._stdin.abort()  # close() would first write what is never read
        self._stdout.close()
        self._stderr.close()

    async def _wait_for(self, event: asyncio.Event, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()

    async def _wait_for_group(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self._signal_group(0) and loop.time() < until:
            self._reap_orphans()
            await asyncio.sleep(GROUP_POLL_SECONDS)

    async def _wait_for_orphans(self, seconds: float) -> None:
        """Reap orphans after SIGKILL. Those of another parent may stay zombies for as long as it likes."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self._reap_orphans() and loop.time() < until:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(GROUP_POLL_SECONDS)

    def _signal_group(self, number: int) -> bool:
        """Signal the whole group. False once it is empty, and always after that: its number may have been reused."""
        if not self._group_left and self.pid:
            try:
                os.killpg(self.pid, number)
            except OSError:
                self._group_left = True
        return not self._group_left

    def _reap_orphans(self) -> bool:
        """Reap the group's orphans. As PID 1 of a container, the gateway inherits them.

        Returns whether some are left. The process itself is reaped by the event loop, which needs its status.
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
        return f"<ChildProcess {state}{', ending' if self.ending else ''}{waiting}, {self.stderr!r}>"


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
    """Call `note` once in the event loop with the exit status. Uses a pidfd, or a thread where there is none."""
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
