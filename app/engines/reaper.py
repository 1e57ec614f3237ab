"""Ends the processes of stdio engines when the gateway is killed and cannot do so itself.

The gateway starts this file as a small process and writes to its stdin which process groups run: `+123` for a started
one, `-123` for one that has ended. When the pipe closes, the gateway is gone, and the remaining groups get SIGTERM, and
SIGKILL a second later. It uses the standard library only, because it runs without the gateway's modules.
"""

import atexit
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

GRACE_SECONDS = 1.0
POLL_SECONDS = 0.02


class Reaper:
    """The gateway's side: started with the first group, and again if it has been killed."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self, group: int) -> None:
        """End this process group if the gateway is killed."""
        self._groups.add(group)
        self._write_line(f"+{group}\n")

    def forget(self, group: int) -> None:
        """The group has ended, and its number may soon be that of another."""
        if group in self._groups:
            self._groups.discard(group)
            self._write_line(f"-{group}\n")

    def close(self) -> None:
        """Let it end; if groups are left, it ends them."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()
            process.wait()

    def _write_line(self, line: str) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(line.encode())
            except OSError:  # it was killed
                self.close()
            else:
                return
        if self._groups:
            self._start()

    def _start(self) -> None:
        """Start it with all that is running now. Without it (no process can be started) the gateway goes on."""
        # A session of its own: a signal to the gateway's group, such as Ctrl-C, must not reach it.
        with suppress(OSError):
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            assert self._process.stdin is not None
            self._process.stdin.write("".join(f"+{group}\n" for group in self._groups).encode())

    def __repr__(self) -> str:
        return f"<Reaper of {len(self._groups)} groups>"


REAPER = Reaper()
"""Of this process."""

atexit.register(REAPER.close)


def main() -> None:
    """Read which groups run until the gateway is gone, then end those that are left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        with suppress(ValueError):
            (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
    end(groups)


def end(groups: set[int]) -> None:
    """SIGTERM to all of them, and SIGKILL to those that are still there after the grace."""
    left = _signalled(groups, signal.SIGTERM)
    until = time.monotonic() + GRACE_SECONDS
    while left and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        left = _signalled(left, 0)
    _signalled(left, signal.SIGKILL)


def _signalled(groups: set[int], number: int) -> set[int]:
    """Signal these groups; those that were still there."""
    there = set()
    for group in groups:
        with suppress(OSError):
            os.killpg(group, number)
            there.add(group)
    return there


if __name__ == "__main__":
    main()
