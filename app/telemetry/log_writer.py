"""Writes log lines to a stream that may be full or closed, without blocking or failing a request.

A line that cannot be written at once is lost. The number of lost lines is logged as soon as writing works again.
"""

import os
import stat
from contextlib import suppress
from typing import TextIO


class LogWriter:
    """Writes whole lines and never raises. `lost` counts the lines lost since the last report.

    If a pipe takes only a part of a line, the rest is written before any other line.
    """

    __slots__ = ("__weakref__", "_descriptor", "_rest", "_stream", "lost")

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._descriptor = _descriptor_of(stream)
        self._rest = b""
        self.lost = 0

    def write(self, text: str) -> int:
        """Write `text`, or count it as lost. Returns its length in both cases, as `logging` expects."""
        try:
            if self.lost:
                self._put(f'{{"event": "log_lines_lost", "level": "warning", "lines": {self.lost}}}\n')
                self.lost = 0
            self._put(text)
        except (OSError, ValueError):  # ValueError: the stream was closed
            self.lost += 1
        return len(text)

    def flush(self) -> None:
        """Write the rest of a partly written line, if possible."""
        with suppress(OSError, ValueError):
            self._finish()

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._stream.isatty()

    def _put(self, text: str) -> None:
        if self._descriptor is None:
            self._stream.write(text)
            self._stream.flush()
        else:
            self._finish()
            data = text.encode("utf-8", "backslashreplace")
            self._rest = data[os.write(self._descriptor, data) :]

    def _finish(self) -> None:
        """Write the rest of the previous line. Raises BlockingIOError if it is not taken as a whole."""
        if self._rest and self._descriptor is not None:
            self._rest = self._rest[os.write(self._descriptor, self._rest) :]
            if self._rest:
                raise BlockingIOError("the pipe took only a part of a long line")

    def __repr__(self) -> str:
        return f"<LogWriter to {self._stream!r}, {self.lost} lines lost>"


def _descriptor_of(stream: TextIO) -> int | None:
    """The file descriptor of the stream, None if it has none. Pipes and sockets are set to non-blocking.

    A pipe that nobody reads would otherwise stop the whole process at the line that fills it. The kernel writes up to
    4 KiB to a pipe as a whole or not at all.
    """
    descriptor = None
    with suppress(OSError, ValueError, AttributeError):
        descriptor = stream.fileno()
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            os.set_blocking(descriptor, False)
    return descriptor
