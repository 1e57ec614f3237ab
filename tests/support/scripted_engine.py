"""An RCP engine for tests, on a real socket: it answers what the script says and remembers what it was asked.

Deliberately simple and not fast; whole-gateway tests use it to see both ends of the wire.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
Behaviour = Callable[["Asked"], Awaitable[Any]]
"""What to do with one request: return a result, an RpcFault, raw `Bytes`, or never."""

DEFAULT_CAPABILITIES: Json = {
    "retrieve": {"maxK": 100, "modes": ["dense", "sparse", "hybrid"], "confidence": True},
    "citations": {},
}


@dataclass
class RpcFault:
    """A JSON-RPC error to answer."""

    code: int
    message: str = "scripted"
    data: Json | None = None


@dataclass
class Bytes:
    """Raw bytes to write instead of an HTTP answer; the connection is closed afterwards unless `keep` is set."""

    raw: bytes
    keep: bool = False


@dataclass
class Http:
    """An HTTP answer with this status, body and headers."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Asked:
    """One request as the engine saw it."""

    method: str
    params: Json
    headers: dict[str, str]
    path: str
    id: Any


def hit(id: str | int, score: float = 1.0, confidence: float | None = None, **more: Any) -> Json:
    """One hit of a script."""
    made: Json = {"id": id, "score": score, "text": f"text of {id}", **more}
    if confidence is not None:
        made["confidence"] = confidence
    return made


def hits(*ids: str | int) -> list[Json]:
    """A ranked list of hits with descending scores and confidences."""
    return [hit(id, score=1.0 - rank / 100, confidence=0.9 - rank / 100) for rank, id in enumerate(ids)]


class ScriptedEngine:
    """One engine. `answers` maps a method to a result, RpcFault, Bytes, Http, or an async function of the request."""

    def __init__(self, *, capabilities: Json | None = None, results: list[Json] | None = None, name: str = "scripted"):
        self.capabilities = DEFAULT_CAPABILITIES if capabilities is None else capabilities
        self.name = name
        self.version = "1.0"
        self.asked: list[Asked] = []
        self.connections = 0
        self.answers: dict[str, Any] = {
            "initialize": self._described,
            "info": self._described,
            "ping": {},
            "retrieve": {"hits": results if results is not None else hits("a", "b", "c")},
        }
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._talks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/rcp"

    def requests(self, method: str = "retrieve") -> list[Asked]:
        """What it was asked with this method, in order."""
        return [asked for asked in self.asked if asked.method == method]

    async def start(self, port: int = 0) -> "ScriptedEngine":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for talk in list(self._talks):
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)
        for writer in list(self._writers):
            writer.close()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    async def _described(self, asked: Asked) -> Json:
        return {
            "protocolVersion": 1,
            "server": {"name": self.name, "version": self.version},
            "capabilities": self.capabilities,
        }

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        talk = asyncio.current_task()
        assert talk is not None
        self._talks.add(talk)
        try:
            while await self._serve(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._talks.discard(talk)
            self._writers.discard(writer)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip("\r\n").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        message = json.loads(body)
        asked = Asked(message["method"], message.get("params", {}), headers, first.split(" ")[1], message.get("id"))
        self.asked.append(asked)
        answer = self.answers.get(asked.method, RpcFault(-32003))
        if callable(answer):
            answer = await answer(asked)
        if isinstance(answer, Bytes):
            writer.write(answer.raw)
            await writer.drain()
            return answer.keep
        writer.write(_http(answer if isinstance(answer, Http) else Http(200, _rpc(asked.id, answer))))
        await writer.drain()
        return True


def _rpc(id: Any, answer: Any) -> bytes:
    if isinstance(answer, RpcFault):
        error: Json = {"code": answer.code, "message": answer.message}
        if answer.data is not None:
            error["data"] = answer.data
        return json.dumps({"jsonrpc": "2.0", "id": id, "error": error}).encode()
    return json.dumps({"jsonrpc": "2.0", "id": id, "result": answer}).encode()


def _http(answer: Http) -> bytes:
    head = [f"HTTP/1.1 {answer.status} Scripted", f"Content-Length: {len(answer.body)}"]
    head += [f"{name}: {value}" for name, value in answer.headers.items()]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + answer.body


async def hang(asked: Asked) -> Any:
    """Never answer."""
    await asyncio.Event().wait()
