"""Several processes behind one address: started, replaced when they die, and told together what one would be told.

It decides when a worker is started again, when one has hung, and when all have to go; how each serves and ends is its
own business. Workers have places, numbered from 0; whoever replaces one takes over its place, and with it the counts it
left behind.
"""

import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from app.server.shutdown_stage import AT_ONCE, ShutdownStage, advanced, worker_signal
from app.telemetry.logs import logger

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
"""Seconds before a worker is started again that ended before it served; doubled each time."""

MARGIN_SECONDS = 10.0
"""A worker that is still there so long after it should have ended is killed."""

Serve = Callable[[int, socket.socket, Connection], None]
"""What a worker does: (its place, the listener, where to send a byte once it serves, and each second from then on)."""

LOOK_SECONDS = 2.0
"""Longest time between two looks at who is silent; of a longer one no more is held against workers, since whatever kept
the parent (a machine that slept) kept them too."""


class Worker:
    """One process in one place."""

    __slots__ = ("news", "place", "process", "serves", "silent")

    def __init__(self, place: int, process: SpawnProcess, news: Connection) -> None:
        self.place = place
        self.process = process
        self.news = news
        self.serves = False
        self.silent = 0.0
        """Seconds since it last said that it serves."""

    def read_heartbeats(self) -> bool:
        """Read all heartbeats that have arrived; whether there were any."""
        received = False
        while _polled(self.news):
            if not _one_byte(self.news):  # it has ended, which its process says as well
                return received
            received = True
        return received

    def __repr__(self) -> str:
        return f"<Worker {self.place} pid {self.process.pid}, {'serves' if self.serves else 'starts'}>"


class Workers:
    """All of them. `run` returns when the last has ended."""

    def __init__(
        self, count: int, serve: Serve, listener: socket.socket, ended: Callable[[int], None], timeout: float = 0.0
    ) -> None:
        """`serve` must be importable by name. `ended` is told the place of each worker that has ended.

        `timeout`: seconds of silence after which one that served has hung; 0: none ever has.
        """
        self.stage = ShutdownStage.SERVING
        self._serve = serve
        self._listener = listener
        self._ended = ended
        self._context = multiprocessing.get_context("spawn")
        self._workers: dict[int, Worker] = {}
        self._due = dict.fromkeys(range(count), 0.0)
        self._pause = FIRST_PAUSE
        self._served = False
        self._code = 0
        self._kill_at: float | None = None
        self._seconds: tuple[float, float] = (0.0, 0.0)
        self._timeout = timeout
        self._looked = time.monotonic()

    def run(self, drain_seconds: float, grace_seconds: float) -> int:
        """Keep all workers running until a signal stops them, and return the exit code.

        A worker takes at most `drain_seconds` and `grace_seconds` to end.
        """
        self._seconds = (drain_seconds + grace_seconds, grace_seconds)
        with _signals() as signals:
            while self._workers or (self._due and self.stage is ShutdownStage.SERVING):
                self._start_due()
                news: list[Any] = [worker.news for worker in self._workers.values()]
                ends = [worker.process.sentinel for worker in self._workers.values()]
                ready = wait([signals, *news, *ends], self._patience())
                if signals in ready:
                    for number in signals.recv(4096):
                        self._handle_signal(number)
                self._notice_news(ready)
                self._notice_silence()
                self._notice_ends()
        return self._code

    def _start_due(self) -> None:
        now = time.monotonic()
        for place in [place for place, due in self._due.items() if due <= now and self.stage is ShutdownStage.SERVING]:
            del self._due[place]
            ours, theirs = self._context.Pipe(duplex=False)
            process = self._context.Process(
                target=self._serve, args=(place, self._listener, theirs), name=f"worker-{place}"
            )
            process.start()
            theirs.close()
            self._workers[place] = Worker(place, process, ours)

    def _patience(self) -> float | None:
        """Seconds until something is due by itself."""
        dues = list(self._due.values()) if self.stage is ShutdownStage.SERVING else []
        if self._kill_at is not None:
            dues.append(self._kill_at)
        if self._timeout and self.stage is ShutdownStage.SERVING:
            dues.append(time.monotonic() + LOOK_SECONDS / 2)
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def _handle_signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._signal_all(signal.SIGHUP)
        elif number in AT_ONCE:
            self._hasten(advanced(self.stage, number))

    def _hasten(self, stage: ShutdownStage) -> None:
        if stage <= self.stage:
            return
        self.stage = stage
        # Else the system would go on accepting for nobody once the workers have stopped, and reset those connections.
        self._listener.close()
        seconds = {ShutdownStage.DRAINING: self._seconds[0], ShutdownStage.FINISHING: self._seconds[1]}.get(stage, 0.0)
        self._kill_at = time.monotonic() + seconds + MARGIN_SECONDS
        self._signal_all(worker_signal(stage))

    def _signal_all(self, number: signal.Signals) -> None:
        for worker in self._workers.values():
            if worker.serves or number != signal.SIGHUP:  # one that starts reads the files anyway
                with suppress(ProcessLookupError, TypeError):
                    os.kill(worker.process.pid, number)  # type: ignore[arg-type]

    def _notice_news(self, ready: list[Any]) -> None:
        for worker in self._workers.values():
            if worker.news in ready and worker.read_heartbeats():
                worker.silent = 0.0
                if not worker.serves:  # who ends before it serves says nothing of those that do
                    worker.serves = self._served = True
                    self._pause = FIRST_PAUSE
                    logger().info("worker_serves", worker=worker.place, pid=worker.process.pid)

    def _notice_silence(self) -> None:
        """Kill whoever has served and says nothing any more; that it has ended is noticed as ever."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, LOOK_SECONDS), now
        if not self._timeout or self.stage is not ShutdownStage.SERVING:
            return
        for worker in self._workers.values():
            worker.silent += passed
            if worker.serves and worker.silent >= self._timeout:
                worker.serves = False  # once
                logger().error("worker_hung", worker=worker.place, pid=worker.process.pid, seconds=self._timeout)
                worker.process.kill()

    def _notice_ends(self) -> None:
        for worker in [worker for worker in self._workers.values() if not worker.process.is_alive()]:
            del self._workers[worker.place]
            worker.news.close()
            self._ended(worker.place)
            if self.stage is ShutdownStage.SERVING:
                self._replace(worker)
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            for worker in self._workers.values():
                worker.process.kill()
                self._code = 1

    def _replace(self, worker: Worker) -> None:
        pause = 0.0
        logger().warning("worker_ended", worker=worker.place, pid=worker.process.pid, code=worker.process.exitcode)
        if not worker.serves:
            if not self._served:
                self._code = 1
                logger().error("no_worker_serves", remedy="what keeps them from starting is in the lines before")
                self._hasten(ShutdownStage.FINISHING)
                return
            pause, self._pause = self._pause, min(self._pause * 2, LONGEST_PAUSE)
        self._due[worker.place] = time.monotonic() + pause

    def __repr__(self) -> str:
        return f"<Workers {self.stage.name.lower()}, {[*self._workers.values()]!r}, due {sorted(self._due)}>"


def beating(news: Connection) -> Callable[[], None]:
    """In a worker: what to call as long as it serves. Never waits, though nobody may listen."""
    os.set_blocking(news.fileno(), False)

    def beat() -> None:
        with suppress(OSError):  # the pipe is full, or the parent gone: it has had news enough, or needs none
            news.send_bytes(b"1")

    return beat


def _polled(news: Connection) -> bool:
    try:
        return news.poll()
    except OSError:
        return False


def _one_byte(news: Connection) -> bool:
    try:
        return bool(news.recv_bytes(16))
    except (EOFError, OSError):
        return False


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """A socket from which the numbers of all signals that come can be read, a byte each."""
    signals, wakeup = socket.socketpair()
    signals.setblocking(False)
    wakeup.setblocking(False)
    for number in (*AT_ONCE, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    before = signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
    try:
        yield signals
    finally:
        signal.set_wakeup_fd(before)
        signals.close()
        wakeup.close()


def end_with_parent(number: signal.Signals) -> None:
    """In a worker: send ourselves `number` when the process that started us is gone, killed by force for instance."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        assert parent is not None
        wait([parent.sentinel])
        os.kill(os.getpid(), number)

    if parent is not None:
        threading.Thread(target=watch, name="parent-watch", daemon=True).start()
