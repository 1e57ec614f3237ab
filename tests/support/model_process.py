"""The model server as a process of its own, over HTTP: as an operator runs it, and as a gateway's engine."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.ports import free_port
from tests.support.running_gateway import START_SECONDS

PROGRAM = Path(__file__).with_name("model_server.py")
OVER_STDIO = (sys.executable, str(PROGRAM), "--stdio")


@contextmanager
def model_over_http() -> Iterator[str]:
    """Its URL; the process ends with the block."""
    port = free_port()
    process = subprocess.Popen([sys.executable, str(PROGRAM), "--http", str(port)])
    try:
        _await_listener(process, port)
        yield f"http://127.0.0.1:{port}/rcp"
    finally:
        process.kill()
        process.wait()


def _await_listener(process: "subprocess.Popen[bytes]", port: int) -> None:
    ends = time.monotonic() + START_SECONDS
    while time.monotonic() < ends and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.02)
    raise AssertionError("the model server does not listen")
