"""Reads or writes a file descriptor in a thread: stdin and stdout of this process.

Non-blocking descriptors are no alternative: the mode is shared with other processes, such as the shell, and has no
effect on files.
"""

import asyncio
import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

CHUNK_BYTES = 65_536
"""Most bytes of one read."""


class Pipe:
    """A file descriptor and its thread, which starts with the first call. Calls run one after the other."""

    __slots__ = ("_calls", "_descriptor", "_thread")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._calls: SimpleQueue[tuple[Callable[[], bytes], asyncio.Future[bytes]]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def read(self) -> bytes:
        """The next bytes; empty at the end. Raises OSError."""
        return await self._run(partial(_read, self._descriptor))

    async def write(self, data: bytes) -> None:
        """Write all of `data`, as fast as it is read. Raises OSError if the reader is gone."""
        await self._run(partial(_write, self._descriptor, data))

    async def _run(self, call: Callable[[], bytes]) -> bytes:
        """What `call` returns or raises. Cancelling this does not stop the call."""
        if self._thread is None:
            # A daemon, so that a read that never returns does not keep the process alive.
            self._thread = threading.Thread(target=self._work, name=f"pipe {self._descriptor}", daemon=True)
            self._thread.start()
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._calls.put((call, future))
        return await future

    def _work(self) -> None:
        while True:
            call, future = self._calls.get()
            outcome: bytes | OSError
            try:
                outcome = call()
            except OSError as fault:
                outcome = fault
            with suppress(RuntimeError):  # the loop has been closed
                future.get_loop().call_soon_threadsafe(_set_outcome, future, outcome)

    def __repr__(self) -> str:
        return f"<Pipe {self._descriptor}, {'used' if self._thread else 'not used yet'}>"


def _read(descriptor: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            # Another process that shares the descriptor has made it non-blocking.
            select.select([descriptor], [], [])


def _write(descriptor: int, data: bytes) -> bytes:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            select.select([], [descriptor], [])
    return b""


def _set_outcome(future: "asyncio.Future[Any]", outcome: bytes | OSError) -> None:
    if future.done():  # cancelled while the call ran
        return
    if isinstance(outcome, OSError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
