"""The floor: the least a federated retrieve can cost in Python on the libraries that the gateway uses.

uvicorn on uvloop and httptools, orjson, and plain RRF in a dict. It asks the same engines for as many hits as the
gateway does, and does the bare work: parse the question once, write it to every engine, parse each answer once, fuse,
cut to k, write. No validation, deadlines, limits, retries, metrics or logs; a peer that misbehaves breaks it.
"""

import argparse
import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
import orjson
import uvicorn
import uvloop

RRF_K = 60
OVERFETCH = 2
"""Hits that engines are asked for, as a multiple of k: the gateway's default."""

Event = MutableMapping[str, Any]


class Leg(asyncio.Protocol):
    """One keep-alive connection to an engine; carries one question at a time."""

    __slots__ = ("answer", "body", "parser", "pool", "transport", "unsent")

    def __init__(self, pool: "Pool", unsent: bytes, answer: "asyncio.Future[bytes]") -> None:
        self.pool = pool
        self.unsent = unsent
        self.answer = answer
        self.body = b""
        self.parser = httptools.HttpResponseParser(self)
        self.transport: asyncio.Transport

    def __repr__(self) -> str:
        return f"Leg({self.pool!r}, waiting={not self.answer.done()})"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self.unsent)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, chunk: bytes) -> None:
        self.body += chunk

    def on_message_complete(self) -> None:
        body, self.body = self.body, b""
        self.pool.idle.append(self)
        self.answer.set_result(body)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self.pool.idle:
            self.pool.idle.remove(self)
        if not self.answer.done():
            self.answer.set_exception(exc or ConnectionResetError("the engine closed the connection"))


class Pool:
    """The connections to one engine: the one used last first, a new one when none is idle."""

    __slots__ = ("head", "host", "idle", "loop", "port", "tasks")

    def __init__(self, url: str, loop: asyncio.AbstractEventLoop) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or 80
        self.head = (
            f"POST {parts.path}/retrieve HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        ).encode()
        self.loop = loop
        self.idle: list[Leg] = []
        self.tasks: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"Pool({self.host}:{self.port}, idle={len(self.idle)}, connecting={len(self.tasks)})"

    def ask(self, rest: bytes) -> "asyncio.Future[bytes]":
        """Send one question; `rest` is all that follows `Content-Length: `."""
        answer: asyncio.Future[bytes] = self.loop.create_future()
        if self.idle:
            engine_call = self.idle.pop()
            engine_call.answer = answer
            engine_call.transport.write(self.head + rest)
        else:
            self._connect(Leg(self, self.head + rest, answer))
        return answer

    def _connect(self, engine_call: Leg) -> None:
        task = self.loop.create_task(self.loop.create_connection(lambda: engine_call, self.host, self.port))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


def fuse(answers: list[dict[str, Any]], k: int) -> list[dict[str, Any]]:
    """Plain RRF: the top `k` hits, each the first copy seen, with the summed score."""
    scores: dict[Any, float] = {}
    hits: dict[Any, dict[str, Any]] = {}
    for answer in answers:
        for rank, hit in enumerate(answer["result"]["hits"], RRF_K + 1):
            identity = hit["id"]
            if identity in scores:
                scores[identity] += 1.0 / rank
            else:
                scores[identity] = 1.0 / rank
                hits[identity] = hit
    top = sorted(scores, key=scores.__getitem__, reverse=True)[:k]
    fused = []
    for identity in top:
        hit = hits[identity]
        hit["score"] = scores[identity]
        fused.append(hit)
    return fused


class Floor:
    """The ASGI application."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self.pools: list[Pool] = []

    def __repr__(self) -> str:
        return f"Floor(engines={len(self.urls)})"

    async def __call__(
        self, scope: Event, receive: Callable[[], Awaitable[Event]], send: Callable[[Event], Awaitable[None]]
    ) -> None:
        """One federated retrieve, from the caller's bytes to the answer's."""
        if not self.pools:
            loop = asyncio.get_running_loop()
            self.pools = [Pool(url, loop) for url in self.urls]
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event["body"], event["more_body"]
        request = orjson.loads(body)
        params = request["params"]
        k = params.get("k", 10)
        asked = {**params, "k": OVERFETCH * k}
        question = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": asked})
        rest = b"%d\r\n\r\n%b" % (len(question), question)
        engine_calls = [pool.ask(rest) for pool in self.pools]
        answers = [orjson.loads(await engine_call) for engine_call in engine_calls]
        answer = orjson.dumps({"jsonrpc": "2.0", "id": request["id"], "result": {"hits": fuse(answers, k)}})
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


async def serve(urls: list[str], host: str = "127.0.0.1") -> None:
    """Serve until SIGTERM; the base URL is the first line on stdout, in a list of one."""
    config = uvicorn.Config(
        Floor(urls),
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        backlog=512,
        timeout_keep_alive=3600,  # callers are idle while others have their turn
    )
    with socket.socket() as listener:
        listener.bind((host, 0))
        listener.listen(512)  # callers may connect as soon as they know where
        print(json.dumps([f"http://{host}:{listener.getsockname()[1]}/rcp"]), flush=True)
        await uvicorn.Server(config).serve([listener])


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.floor", description=__doc__)
    parser.add_argument(
        "engines", nargs="+", metavar="URL", help="base URL of an engine, such as http://127.0.0.1:9/rcp"
    )
    args = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(args.engines))


if __name__ == "__main__":
    main()
