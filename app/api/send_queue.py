"""The output queue of a pipe: complete lines, written in order as fast as the caller reads them (RCP §5.1).

It knows how many bytes are unread, so that the endpoint can stop reading requests before memory fills up.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from app.api.streaming import LOG, progress_message
from app.protocol import envelope

FULL_BYTES = 1_048_576
"""Above this limit, no further request is read and progress is dropped. Answers of running requests are queued."""

Write = Callable[[bytes], Awaitable[None]]
"""Writes all bytes. Raises OSError if the reader is gone."""


class SendQueue:
    """A queue of lines and the loop that writes them."""

    __slots__ = ("_lines", "_on_written", "_wake", "_write", "closing", "unsent")

    def __init__(self, write: Write, on_written: Callable[[], None]) -> None:
        """`on_written` is called after each write."""
        self._write = write
        self._on_written = on_written
        self._lines: list[bytes] = []
        self._wake = asyncio.Event()
        self.unsent = 0
        """Bytes that the caller has not read yet."""
        self.closing = False

    @property
    def full(self) -> bool:
        """Whether the caller has to read before more requests are accepted."""
        return self.unsent > FULL_BYTES

    def put(self, message: bytes) -> None:
        """Queue one message."""
        # Compact JSON contains no newline, so the line ends where the message does.
        self._lines.append(message + b"\n")
        self.unsent += len(message) + 1
        self._wake.set()

    def close(self) -> None:
        """No message follows: `run` ends once all are written."""
        self.closing = True
        self._wake.set()

    async def run(self) -> None:
        """Write until the queue is closed and empty. Raises OSError if the caller is gone."""
        while self._lines or not self.closing:
            if not self._lines:
                self._wake.clear()
                await self._wake.wait()
                continue
            # All waiting lines in one write: one system call instead of one per line.
            data = b"".join(self._lines)
            self._lines.clear()
            await self._write(data)
            self.unsent -= len(data)
            self._on_written()

    def __repr__(self) -> str:
        return f"<SendQueue {self.unsent} bytes unread{', closing' if self.closing else ''}>"


class PipeProgressListener:
    """Sends progress and log lines to the caller of a pipe (RCP §9, §17). Satisfies StreamProgressListener."""

    __slots__ = ("_send_queue",)

    logs_alone = True

    def __init__(self, send_queue: SendQueue) -> None:
        self._send_queue = send_queue

    @property
    def ready(self) -> bool:
        """Whether the caller has read everything that was sent."""
        return not self._send_queue.unsent

    def open(self) -> None:
        """A pipe is always open."""

    def send(self, progress: Mapping[str, Any]) -> None:
        """Send progress, if it was requested. It is dropped while the caller does not read."""
        if progress["progressToken"] is not None and not self._send_queue.full:
            self._send_queue.put(progress_message(progress))

    def log(self, line: Mapping[str, Any]) -> None:
        """Send a line of the log."""
        self._send_queue.put(envelope.encode_notification(LOG, line))
