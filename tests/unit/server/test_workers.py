"""What can be told of several workers at a glance."""

import multiprocessing
import socket
import time
from typing import Any

import pytest

from app.server.workers import Worker, Workers, beating


def test_workers_can_be_looked_at() -> None:
    """In an incident one sees which worker serves, and which place is empty."""
    process: Any = type("Process", (), {"pid": 7})()
    news: Any = None
    worker = Worker(1, process, news)
    assert repr(worker) == "<Worker 1 pid 7, starts>"
    worker.serves = True
    assert repr(worker) == "<Worker 1 pid 7, serves>"
    listener: Any = socket.socket
    workers = Workers(2, print, listener, print)  # type: ignore[arg-type]
    assert repr(workers) == "<Workers serving, [], due [0, 1]>"


class FakeProcess:
    """A process that can be killed."""

    pid = 7
    killed = 0

    def kill(self) -> None:
        self.killed += 1


@pytest.mark.parametrize(
    ("timeout", "passes", "killed"),
    [(10.0, [1.0] * 9, 0), (10.0, [1.0] * 10, 1), (10.0, [1.0] * 30, 1), (0.0, [1.0] * 30, 0), (10.0, [3600.0] * 4, 0)],
)
def test_silence_is_counted(monkeypatch: pytest.MonkeyPatch, timeout: float, passes: list[float], killed: int) -> None:
    """Who has served and is silent for so long is killed, once; hours in which nobody looked count as a moment."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    listener: Any = socket.socket
    workers = Workers(2, print, listener, print, timeout)  # type: ignore[arg-type]
    processes: list[Any] = [FakeProcess(), FakeProcess()]
    news: Any = None
    workers._workers = {place: Worker(place, process, news) for place, process in enumerate(processes)}
    workers._workers[0].serves = True  # the other is still starting
    for seconds in passes:
        now[0] += seconds
        workers._notice_silence()
    assert [process.killed for process in processes] == [killed, 0]


def test_a_beat_is_heard_and_never_waits() -> None:
    """Beats are taken all at once; a pipe that nobody empties holds nobody up, nor does one whose end is closed."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe(duplex=False)
    process: Any = FakeProcess()
    worker, beat = Worker(0, process, ours), beating(theirs)
    assert not worker.read_heartbeats()
    beat()
    beat()
    assert (worker.read_heartbeats(), worker.read_heartbeats()) == (True, False)
    for _ in range(100_000):
        beat()
    assert worker.read_heartbeats()
    theirs.close()
    assert not worker.read_heartbeats()
