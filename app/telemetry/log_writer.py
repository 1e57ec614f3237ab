"""Where log lines go: a stream that may be full, closed or gone, none of which may cost a request.

Telemetry room. It decides that a line which cannot be written at once is lost and counted, and says so when lines go
through again. It refuses to know what a line says.
"""

import os
import stat
from contextlib import suppress
from typing import TextIO


class LogWriter:
    """Writes whole lines and raises nothing. `lost` counts those that could not be written since it last said so.

    Of a line that a pipe took in part the rest is written before any other line.
    """

    __slots__ = ("__weakref__", "_descriptor", "_rest", "_stream", "lost")

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._descriptor = _descriptor_of(stream)
        self._rest = b""
        self.lost = 0

    def write(self, text: str) -> int:
        """Write `text`, or count it as lost; says how much of it was taken, which is all of it."""
        try:
            if self.lost:
                self._put(f'{{"event": "log_lines_lost", "level": "warning", "lines": {self.lost}}}\n')
                self.lost = 0
            self._put(text)
        except (OSError, ValueError):  # ValueError: the stream was closed
            self.lost += 1
        return len(text)

    def flush(self) -> None:
        """Write the rest of a line, if there is one and it can be written."""
        with suppress(OSError, ValueError):
            self._finish()

    def isatty(self) -> bool:
        """Whether a person reads along."""
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
        """Write what is left of the line before. Raises BlockingIOError if that does not go through as a whole."""
        if self._rest and self._descriptor is not None:
            self._rest = self._rest[os.write(self._descriptor, self._rest) :]
            if self._rest:
                raise BlockingIOError("a long line went through in part")

    def __repr__(self) -> str:
        return f"<Sink to {self._stream!r}, {self.lost} lines lost>"


def _descriptor_of(stream: TextIO) -> int | None:
    """The file descriptor to write to, None for a stream without one. A pipe or socket is made not to block.

    A pipe that nobody reads would otherwise stop the whole process at the line that fills it. Lines of up to 4 KiB go
    into a pipe whole or not at all.
    """
    descriptor = None
    with suppress(OSError, ValueError, AttributeError):
        descriptor = stream.fileno()
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            os.set_blocking(descriptor, False)
    return descriptor
