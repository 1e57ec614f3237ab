"""An engine on a real socket that can fall ill: it ranks documents while it is well, and has one fault while it is not.

A fault holds for everything it is asked, the handshake and pings included. `heal` brings it back on the same port.
"""

import asyncio
import json
import random
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from tests.support.ports import free_port

Json = dict[str, Any]
Fault = Callable[["SickEngine", Json, asyncio.StreamWriter], Awaitable[bool]]
"""What happens to one request; whether the connection is of use afterwards."""

CAPABILITIES: Json = {"retrieve": {"maxK": 50, "modes": ["dense"], "confidence": True}, "citations": {}}


class SickEngine:
    """One engine. `ranking`: the ids that it returns for every question, the best first."""

    def __init__(self, name: str, ranking: Sequence[str], chance: random.Random) -> None:
        self.name = name
        self.chance = chance
        self.fault: Fault | None = None
        self.healed = asyncio.Event()
        self.port = free_port()
        self._hits = [hit(doc, rank) for rank, doc in enumerate(ranking)]
        self._server: asyncio.Server | None = None
        self._hole: list[socket.socket] = []
        self._talks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/rcp"

    async def start(self) -> "SickEngine":
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", self.port, backlog=256)
        return self

    async def stop(self) -> None:
        self.healed.set()
        await self._stop_listening()
        for hole in self._hole:
            hole.close()
        self._hole.clear()
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    async def fall_ill(self, fault: Fault) -> None:
        """Have this fault from the next request on; some faults concern the address itself."""
        self.healed = asyncio.Event()
        self.fault = fault
        if fault is refuse or fault is blackhole:
            await self._stop_listening()
            if fault is refuse:
                for talk in self._talks:
                    talk.cancel()
            else:
                self._dig_hole()

    async def heal(self) -> None:
        """Be well again: whatever hangs is let go, and the port is listened on."""
        self.fault = None
        self.healed.set()
        for hole in self._hole:
            hole.close()
        self._hole.clear()
        if self._server is None:
            await self.start()

    def answer(self, message: Json) -> Json:
        """The response of a well engine."""
        method, result = message["method"], {}
        if method in ("initialize", "info"):
            server = {"name": self.name, "version": "1"}
            result = {"protocolVersion": 1, "server": server, "capabilities": CAPABILITIES}
        elif method == "retrieve":
            result = {"hits": self._hits[: message["params"]["k"]]}
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            await asyncio.sleep(0)

    def _dig_hole(self) -> None:
        """Listen without accepting, with a queue that is full: whoever connects from now on hears nothing."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(0)
        self._hole = [listener]
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            with suppress(BlockingIOError):
                filler.connect(("127.0.0.1", self.port))
            self._hole.append(filler)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.current_task()
        assert talk is not None
        self._talks.add(talk)
        try:
            while await self._serve(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._talks.discard(talk)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = head.partition(b"content-length:")[2].partition(b"\r")[0]
        message = json.loads(await reader.readexactly(int(length)))
        if self.fault is not None:
            return await self.fault(self, message, writer)
        writer.write(http(json.dumps(self.answer(message)).encode()))
        await writer.drain()
        return True

    def __repr__(self) -> str:
        state = "well" if self.fault is None else self.fault.__name__
        return f"<SickEngine {self.name} {state}, {len(self._talks)} connections>"


def hit(doc: str, rank: int) -> Json:
    """One hit; the earlier the better in score and confidence."""
    citation = {"uri": f"https://docs.example/{doc}"}
    confidence = round(0.95 - rank / 40, 4)
    return {"id": doc, "score": 10.0 - rank, "confidence": confidence, "text": f"text of {doc}", "citation": citation}


def http(body: bytes, status: int = 200, *headers: str, length: int | None = None) -> bytes:
    """The bytes of an HTTP answer; `length` to say another than the true one."""
    said = len(body) if length is None else length
    lines = [f"HTTP/1.1 {status} Sick", "Content-Type: application/json", f"Content-Length: {said}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def refuse(engine: SickEngine, message: Json, writer: asyncio.StreamWriter) -> bool:
    """Nobody listens, and open connections are reset."""
    writer.transport.abort()
    return False


async def blackhole(engine: SickEngine, message: Json, writer: asyncio.StreamWriter) -> bool:
    """Nothing that is sent is heard of again, connecting included."""
    await engine.healed.wait()
    return False
