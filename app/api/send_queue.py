"""What is on its way to the one caller of a pipe: whole lines, in order, written as fast as it reads (RCP §5.1).

It knows how much the caller has yet to read, so that the door can stop taking questions and telling progress before
memory fills. It refuses to know what the lines say.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from app.api.streaming import LOG, progress_message
from app.protocol import envelope

FULL_BYTES = 1_048_576
"""With more than this unread, nothing new is begun and progress is dropped; answers under way are still kept."""

Write = Callable[[bytes], Awaitable[None]]
"""Writes all of it. Raises OSError when nobody reads any more."""


class SendQueue:
    """Lines on their way out; whoever waits for `on_written` goes on when there is some."""

    __slots__ = ("_lines", "_on_written", "_wake", "_write", "closing", "unsent")

    def __init__(self, write: Write, on_written: Callable[[], None]) -> None:
        """`on_written` is called each time some lines went out."""
        self._write = write
        self._on_written = on_written
        self._lines: list[bytes] = []
        self._wake = asyncio.Event()
        self.unsent = 0
        """Bytes that the caller has not taken."""
        self.closing = False

    @property
    def full(self) -> bool:
        """Whether the caller should read first."""
        return self.unsent > FULL_BYTES

    def put(self, message: bytes) -> None:
        """Send one message, which holds no newline since it is compact JSON."""
        self._lines.append(message + b"\n")
        self.unsent += len(message) + 1
        self._wake.set()

    def close(self) -> None:
        """Nothing more comes: `run` ends when all is sent."""
        self.closing = True
        self._wake.set()

    async def run(self) -> None:
        """Write until closed and empty. Raises OSError when the caller is gone."""
        while self._lines or not self.closing:
            if not self._lines:
                self._wake.clear()
                await self._wake.wait()
                continue
            data = b"".join(self._lines)
            self._lines.clear()
            await self._write(data)
            self.unsent -= len(data)
            self._on_written()

    def __repr__(self) -> str:
        return f"<Outbox {self.unsent} bytes unread{', closing' if self.closing else ''}>"


class PipeProgressListener:
    """How the caller of a pipe hears of its request while that is under way (RCP §9, §17). Satisfies `Told`."""

    __slots__ = ("_send_queue",)

    logs_alone = True

    def __init__(self, send_queue: SendQueue) -> None:
        self._send_queue = send_queue

    @property
    def ready(self) -> bool:
        """Whether the caller has read everything so far."""
        return not self._send_queue.unsent

    def open(self) -> None:
        """A pipe is always open."""

    def send(self, progress: Mapping[str, Any]) -> None:
        """A progress, unless it was not asked for, or the caller does not even read what it has."""
        if progress["progressToken"] is not None and not self._send_queue.full:
            self._send_queue.put(progress_message(progress))

    def log(self, line: Mapping[str, Any]) -> None:
        """A line for the caller's log."""
        self._send_queue.put(envelope.encode_notification(LOG, line))
