"""One end of a pipe, read or written by a thread beside the event loop: stdin and stdout of this process.

Making the descriptors non-blocking instead would change them for every process that shares them, such as the terminal,
and does not work with files. Exit does not wait for the thread.
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
"""Read at once."""


class Pipe:
    """A file descriptor and its thread, which starts with the first call; calls are done one after the other."""

    __slots__ = ("_calls", "_descriptor", "_thread")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._calls: SimpleQueue[tuple[Callable[[], bytes], asyncio.Future[bytes]]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def read(self) -> bytes:
        """The next bytes; none at the end. Raises OSError."""
        return await self._run(partial(_read, self._descriptor))

    async def write(self, data: bytes) -> None:
        """All of `data`, as fast as it is read. Raises OSError when nobody reads it any more."""
        await self._run(partial(_write, self._descriptor, data))

    async def _run(self, call: Callable[[], bytes]) -> bytes:
        """What `call` returns or raises. If this is cancelled, the call is left to itself."""
        if self._thread is None:
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
            with suppress(RuntimeError):  # the loop may be closed by now
                future.get_loop().call_soon_threadsafe(_set_outcome, future, outcome)

    def __repr__(self) -> str:
        return f"<Pipe {self._descriptor}, {'used' if self._thread else 'not used yet'}>"


def _read(descriptor: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:  # whoever shares it has made it non-blocking
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
    if future.done():
        return
    if isinstance(outcome, OSError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
