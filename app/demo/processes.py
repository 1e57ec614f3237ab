"""The processes of the demo: each in its own process group, with its output read, stopped with the demo."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Sequence

from app.demo.staging import PROJECT

KEPT_LINES = 12
"""Of what a process last wrote, for telling why it ended."""


LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Run in a new child: have Linux send it SIGTERM when its parent is gone, killed by force for instance."""
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _started(command: Sequence[str]) -> "subprocess.Popen[str]":
    with warnings.catch_warnings():
        # Newer Pythons warn of forks beside threads: what runs in the child is one call that needs no lock of theirs.
        warnings.simplefilter("ignore", DeprecationWarning)
        return subprocess.Popen(
            command,
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=end_with_parent,
        )


class DemoProcess:
    """One process. What it writes, to stdout or stderr, goes line by line to `heard`."""

    def __init__(self, name: str, command: Sequence[str], heard: Callable[[str, str], None]) -> None:
        self.name = name
        self._heard = heard
        self._last: deque[str] = deque(maxlen=KEPT_LINES)
        self._process = _started(command)
        self._listener = threading.Thread(target=self._listen, name=f"listen-{name}", daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._last.append(line.rstrip())
            self._heard(self.name, line.rstrip())

    @property
    def ended(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._process.poll()

    @property
    def last_words(self) -> str:
        """The last lines that it wrote."""
        return "\n".join(self._last)

    def signal(self, number: signal.Signals) -> None:
        """Send `number` to its whole group; a group that is gone already does not mind."""
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, after at most `seconds`."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def release(self) -> None:
        """Let go of the pipe after the end, once all that it wrote has been heard."""
        self._listener.join(timeout=1.0)
        if self._process.stdout is not None and not self._listener.is_alive():
            self._process.stdout.close()

    def __repr__(self) -> str:
        state = "runs" if self.ended is None else f"ended with {self.ended}"
        return f"DemoProcess({self.name}, pid {self._process.pid}, {state})"


class DemoProcesses:
    """All processes of one demo. Whoever starts them stops them, whatever happens in between."""

    def __init__(self, heard: Callable[[str, str], None], grace: float = 10.0) -> None:
        self._heard = heard
        self._grace = grace
        self.started: list[DemoProcess] = []

    def start(self, name: str, command: Sequence[str]) -> DemoProcess:
        """Start one more. Raises OSError if there is no such program."""
        process = DemoProcess(name, command, self._heard)
        self.started.append(process)
        return process

    def stop(self) -> None:
        """End them all, the youngest first: SIGTERM, after `grace` seconds SIGKILL. May be called again."""
        youngest_first = self.started[::-1]
        for process in youngest_first:
            process.signal(signal.SIGTERM)
        for process in youngest_first:
            if not process.wait(self._grace):
                process.signal(signal.SIGKILL)
                process.wait(self._grace)
            process.release()

    def __repr__(self) -> str:
        return f"DemoProcesses({', '.join(map(repr, self.started)) or 'none'})"
