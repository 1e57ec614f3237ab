"""A load balancer for tests: passes each connection on to the next gateway in turn, or to another if that one is gone.

Of HTTP it knows nothing, so callers that want their requests spread open a connection for each.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

WHOLE = 65_536
"""Bytes that are passed on at a time where that is not to matter."""


class Balancer:
    """Round robin over some ports; `port` is its own, and `routes` tells where each caller's connection went."""

    def __init__(self, ports: list[int], packet: int = WHOLE) -> None:
        """`packet`: bytes of requests that are passed on at a time."""
        self.port = 0
        self._packet = packet
        self.routes: dict[int, int] = {}
        """Port of a caller's end -> port of the gateway."""
        self._ports = ports
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on until either side ends it."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            there_reader, there = await self._connected(writer.get_extra_info("peername")[1])
            pieces = [
                asyncio.create_task(_pass(reader, there, self._packet)),
                asyncio.create_task(_pass(there_reader, writer)),
            ]
            try:
                await asyncio.wait(pieces, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for piece in pieces:
                    piece.cancel()
                there.close()
                await asyncio.gather(*pieces, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def stop(self) -> None:
        """End what is still passed on."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, caller: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        first = self._turn
        self._turn += 1
        for other in range(len(self._ports)):
            port = self._ports[(first + other) % len(self._ports)]
            with suppress(OSError):
                connection = await asyncio.open_connection("127.0.0.1", port)
                self.routes[caller] = port
                return connection
        raise ConnectionRefusedError


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, packet: int = WHOLE) -> None:
    with suppress(OSError):
        while data := await reader.read(packet):
            writer.write(data)
            await writer.drain()
            if packet != WHOLE:
                await asyncio.sleep(0.001)  # as long as small packets take, so that they are not joined again


@asynccontextmanager
async def balanced(*ports: int, packet: int = WHOLE) -> AsyncIterator[Balancer]:
    """A balancer in front of these ports for as long as a block runs."""
    balancer = Balancer(list(ports), packet)
    server = await asyncio.start_server(balancer.serve, "127.0.0.1", 0)
    balancer.port = server.sockets[0].getsockname()[1]
    try:
        yield balancer
    finally:
        server.close()
        await balancer.stop()
