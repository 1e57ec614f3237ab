"""Callers of a gateway over real sockets: each has one connection and waits for its answer before it asks again."""

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tests.chaos.machine import Machine

Json = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What one request got: HTTP's status, the response, and seconds as the caller measured."""

    status: int
    response: Json
    seconds: float
    lost: float
    """Seconds for which the machine kept this process or the gateway from running meanwhile."""


@dataclass
class Caller:
    """One caller."""

    port: int
    patience: float = 60.0
    _reader: asyncio.StreamReader | None = None
    _writer: asyncio.StreamWriter | None = None
    _asked: int = 0

    async def ask(self, params: Json, machine: Machine | None = None) -> Answer:
        """One `retrieve`. Raises OSError, IncompleteReadError or TimeoutError if it got no answer."""
        self._asked += 1
        message_id = f"{id(self):x}-{self._asked}"
        body = json.dumps({"jsonrpc": "2.0", "id": message_id, "method": "retrieve", "params": params}).encode()
        started = time.perf_counter()
        async with asyncio.timeout(self.patience):
            if self._writer is None:
                self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**24)
            reader, writer = self._reader, self._writer
            assert reader is not None
            writer.write(
                b"POST /rcp/retrieve HTTP/1.1\r\nHost: gateway\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head.split("\r\n"))
            }
            content = await reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            await self.hang_up()
        response = json.loads(content)
        assert response["id"] == message_id, f"{message_id} was answered with {response['id']}"
        seconds = time.perf_counter() - started
        return Answer(int(head.split(" ")[1]), response, seconds, machine.lost_since(started) if machine else 0.0)

    async def hang_up(self) -> None:
        """Close its connection."""
        if self._writer is not None:
            self._writer.close()
            with suppress(OSError):
                await self._writer.wait_closed()
            self._reader = self._writer = None
