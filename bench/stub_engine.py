"""Stub engines for the bench: RCP servers that answer with prebuilt bytes.

Several engines run in one process, one listener each. An engine gives as many hits as it is asked for. A third of its
documents are also those of every other engine, with a text of its own.
"""

import argparse
import asyncio
import json
import re
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from time import time
from typing import Any, Literal, cast

import orjson
import uvloop

from bench.rig import until_stopped

CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
HEAD = b"HTTP/1.1 200 OK\r\nDate: %b\r\nServer: stub\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
MAX_K = 200
"""Hits that an engine gives at most."""
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"
BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
PROSE = "retrieval engines rank passages by lexical and semantic evidence and report how sure they are of each hit"

Confidence = Literal["falling", "ragged", "none"]


@dataclass(frozen=True, slots=True)
class Shape:
    """What each engine answers: hits with `text_bytes` of text and a citation, after `latency` seconds."""

    text_bytes: int = 300
    latency: float = 0.0
    confidence: Confidence = "falling"
    """`falling` with the rank (the usual case), `ragged` (every third one out of order), or `none` at all."""


def text_of(document: str, engine: int, size: int) -> str:
    """`size` bytes of ASCII: what `engine` holds of `document`. Copies share their words, never the whole text."""
    words = PROSE.split()
    start = (sum(document.encode()) + engine) % len(words)
    turned = " ".join(words[start:] + words[:start])
    return " ".join([f"{document} of {engine}", *[turned] * (size // len(turned) + 1)])[:size]


def document_at(engine: int, rank: int) -> str:
    """The document an engine returns at a 0-based rank: every engine holds every third one."""
    if rank % 3 == 1:
        turn = (rank // 3 + engine) % 3  # engines rank what they share differently
        return f"shared-{rank // 9 * 3 + turn}"
    return f"engine-{engine}-{rank}"


def confidence_at(engine: int, rank: int, kind: Confidence) -> float:
    """A confidence in [0,1] that falls along the list, at a pace of the engine's own."""
    value = 0.95 / (1.0 + rank * (0.05 + 0.02 * (engine % 8)))
    if kind == "ragged" and rank % 3 == 2:
        value = min(1.0, value * 1.4)
    return round(value, 4)


def hit_at(engine: int, rank: int, shape: Shape) -> dict[str, Any]:
    """One hit (RCP §7.7) at a 0-based rank."""
    document = document_at(engine, rank)
    hit: dict[str, Any] = {"id": document, "score": round(200.0 - rank * 0.37 - engine * 0.01, 4)}
    if shape.confidence != "none":
        hit["confidence"] = confidence_at(engine, rank, shape.confidence)
    hit["text"] = text_of(document, engine, shape.text_bytes)
    hit["meta"] = {"lang": "en", "section": rank}
    hit["citation"] = {"uri": f"https://docs.example/{document}", "title": document}
    return hit


class StubEngine:
    """One engine: for each method the bytes of its result, ready to be framed."""

    __slots__ = ("asked", "latency", "number", "prebuilt", "ranked", "shape")

    def __init__(self, number: int, shape: Shape) -> None:
        advertisement = orjson.dumps(advertisement_of(number, shape))
        self.prebuilt = {"initialize": advertisement, "info": advertisement, "shutdown": b"{}"}
        self.number = number
        self.shape = shape
        self.latency = shape.latency
        self.ranked: dict[int, bytes] = {}
        self.asked = 0

    def __repr__(self) -> str:
        return f"StubEngine({self.number}, asked={self.asked}, latency={self.latency}s)"

    def answer(self, body: bytes) -> bytes:
        """The framed HTTP response to one JSON-RPC message."""
        message = orjson.loads(body)
        if "id" not in message:
            return NO_CONTENT
        self.asked += 1
        member, value = self._member(message["method"], message.get("params") or {})
        reply = b'{"jsonrpc":"2.0","id":%b,"%b":%b}' % (orjson.dumps(message["id"]), member, value)
        return HEAD % (date_now(), len(reply)) + reply

    def _member(self, method: str, params: dict[str, Any]) -> tuple[bytes, bytes]:
        if method == "retrieve":
            return b"result", self.ranking(min(params.get("k", 10), MAX_K))
        if method == "ping":
            return b"result", orjson.dumps({"nonce": params["nonce"]} if "nonce" in params else {})
        result = self.prebuilt.get(method)
        if result is not None:
            return b"result", result
        return b"error", b'{"code":-32004,"message":"a stub knows no such method"}'

    def ranking(self, k: int) -> bytes:
        """The result of `retrieve` with the first `k` hits, written once."""
        if k not in self.ranked:
            hits = [hit_at(self.number, rank, self.shape) for rank in range(k)]
            self.ranked[k] = orjson.dumps({"hits": hits, "usage": {"candidates": k}})
        return self.ranked[k]


def date_now() -> bytes:
    """The `Date` header as real servers send it: another one each second."""
    global _date
    second = int(time())
    if _date[0] != second:
        _date = second, formatdate(second, usegmt=True).encode()
    return _date[1]


_date = 0, b""


def advertisement_of(number: int, shape: Shape) -> dict[str, Any]:
    """The result of `initialize` and `info` (RCP §7.1)."""
    return {
        "protocolVersion": 1,
        "server": {"name": f"stub-{number}", "version": "1"},
        "capabilities": {
            "retrieve": {
                "maxK": MAX_K,
                "modes": ["dense", "sparse", "hybrid"],
                "confidence": shape.confidence != "none",
            },
            "citations": {},
        },
    }


class StubConnection(asyncio.Protocol):
    """One keep-alive connection; requests are cut out of the byte stream by Content-Length."""

    def __init__(self, engine: StubEngine) -> None:
        self.engine = engine
        self.unread = b""
        self.transport: asyncio.Transport

    def __repr__(self) -> str:
        return f"StubConnection({self.engine!r}, unread={len(self.unread)})"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but ancestry

    def data_received(self, data: bytes) -> None:
        data = self.unread + data if self.unread else data
        while data:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                break
            declared = CONTENT_LENGTH.search(data, 0, end)
            if declared is None:
                self._refuse()
                return
            stop = end + 4 + int(declared[1])
            if len(data) < stop:
                break
            self._reply(self.engine.answer(data[end + 4 : stop]))
            data = data[stop:]
        self.unread = data

    def _reply(self, response: bytes) -> None:
        if self.engine.latency:
            asyncio.get_running_loop().call_later(self.engine.latency, self.transport.write, response)
        else:
            self.transport.write(response)

    def _refuse(self) -> None:
        self.transport.write(BAD_REQUEST)
        self.transport.close()


async def open_engines(count: int, shape: Shape, host: str = "127.0.0.1") -> tuple[list[asyncio.Server], list[str]]:
    """Start `count` engines on ephemeral ports of this loop; returns their servers and base URLs."""
    loop = asyncio.get_running_loop()
    servers = []
    for number in range(count):
        engine = StubEngine(number, shape)
        servers.append(await loop.create_server(partial(StubConnection, engine), host, 0, backlog=512))
    return servers, [f"http://{host}:{server.sockets[0].getsockname()[1]}/rcp" for server in servers]


async def serve(count: int, shape: Shape) -> None:
    """Serve until SIGTERM; the base URLs are the first line on stdout."""
    servers, urls = await open_engines(count, shape)
    print(json.dumps(urls), flush=True)
    await until_stopped()
    for server in servers:
        server.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.stub_engine", description=__doc__)
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--bytes", type=int, default=300, help="text of one hit")
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--confidence", choices=["falling", "ragged", "none"], default="falling")
    args = parser.parse_args()
    shape = Shape(args.bytes, args.latency_ms / 1000, args.confidence)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(args.engines, shape))


if __name__ == "__main__":
    main()
