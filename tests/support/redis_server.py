"""A real Redis for tests: the one at REDIS_URL, else a redis-server of our own, started once per session.

Between it and who asks stands a relay that a test can freeze (it accepts and passes nothing on) or cut (it refuses).
"""

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

import pytest

from tests.support.ports import free_port
from tests.support.running_gateway import START_SECONDS

SERVER = shutil.which("redis-server") or shutil.which("redis-server", path="/usr/sbin:/usr/local/bin:/usr/local/sbin")
REMEDY = "needs Redis: apt-get install redis-server, or set REDIS_URL=redis://host:port/0 (it will be written to)"


@contextmanager
def redis_server() -> Iterator[str]:
    """Where Redis is, for as long as a block runs. Fails the test that asks if there is none: what is not tested must
    not look tested."""
    url = os.environ.get("REDIS_URL")
    if url:
        yield url
        return
    if SERVER is None:
        pytest.fail(REMEDY, pytrace=False)
    with tempfile.TemporaryDirectory(prefix="rcp-gateway-redis-") as place:
        port = free_port()
        command = [SERVER, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        process = subprocess.Popen(
            [*command, "--dir", place], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        )
        try:
            wait_for_redis(process, port)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.terminate()
            process.wait()


def wait_for_redis(process: "subprocess.Popen[bytes]", port: int) -> None:
    """Wait until the server accepts connections; fail the test if it does not."""
    until = time.monotonic() + START_SECONDS
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if process.poll() is not None or time.monotonic() > until:
            pytest.fail(f"redis-server did not start on port {port}", pytrace=False)
        time.sleep(0.02)


class Relay:
    """Passes bytes on, both ways, unless it is frozen or cut; `url` is where Redis is behind it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._parts = parts
        self._target = (parts.hostname or "127.0.0.1", parts.port or 6379)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.port = free_port()
        self.connections = 0
        """How many were ever accepted."""

    @property
    def url(self) -> str:
        """Where Redis is reached through this relay."""
        user, at, _ = self._parts.netloc.rpartition("@")
        return urlunsplit(self._parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}"))

    @property
    def open(self) -> int:
        """Connections that callers hold now."""
        return len(self._writers)

    async def start(self) -> "Relay":
        """Accept from now on."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        return self

    def freeze(self) -> None:
        """Accept, and pass nothing on."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Pass on what came meanwhile, and all that comes."""
        self._flowing.set()

    async def cut(self) -> None:
        """End all connections and refuse new ones."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        try:
            await self._flowing.wait()
            there_reader, there = await asyncio.open_connection(*self._target)
            back = asyncio.create_task(self._pass(there_reader, writer))
            try:
                await self._pass(reader, there)
            finally:
                back.cancel()
                there.close()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
