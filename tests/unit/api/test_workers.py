"""What can be told of several workers at a glance."""

import socket
from typing import Any

from app.api.workers import Worker, Workers


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
