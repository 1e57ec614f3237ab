"""The model server behind a small HTTP endpoint of its own, made to break one rule of RCP at a time.

Whole, it keeps all that the checks look for, more strictly than the SDK; a break changes its offers, its methods or its
answers.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import rcp

from tests.support import model_server

Json = dict[str, Any]
Answered = tuple[int, str, bytes]
"""Status, content type and body."""


class BreakableServer:
    """An RCP server on loopback; every attribute is there to be replaced."""

    def __init__(self) -> None:
        self.model: rcp.Server = model_server.build()
        self.asked = 0
        self._server: asyncio.Server | None = None
        self.url = ""

    async def __aenter__(self) -> "BreakableServer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/rcp"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    @property
    def offers(self) -> dict[str, Json]:
        """What it advertises, to be changed."""
        found: dict[str, Json] = self.model._caps
        return found

    def method(self, name: str) -> Callable[[Json], Json]:
        """What answers a method at present."""
        found: Callable[[Json], Json] = self.model._handlers[name]
        return found

    def replace(self, name: str, change: Callable[[Callable[[Json], Json], Json], Json]) -> None:
        """Let `change` answer the method, given what has answered it so far and the params."""
        before = self.method(name)
        self.model.on(name, lambda params: change(before, params))
        if name == "retrieve":
            self.model._streamers.pop(name, None)

    def change_hits(self, change: Callable[[list[Json], Json], Any]) -> None:
        """Let `change` alter the list of hits of each answer, given the params."""

        def changed(before: Callable[[Json], Json], params: Json) -> Json:
            result = before(params)
            change(result["hits"], params)
            return result

        self.replace("retrieve", changed)

    def handle(self, message: Any) -> Any:
        """The response to one member of what was posted, None for none."""
        wrong = isinstance(message, dict) and (
            message.get("jsonrpc") != "2.0"
            or ("id" in message and type(message["id"]) not in (str, int, float))
            or not isinstance(message.get("params", {}), dict | None)
        )
        if wrong and "id" in message:
            return {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "no request"}}
        if isinstance(message, dict) and isinstance(message.get("params"), dict):
            given = {key: value for key, value in message["params"].items() if value is not None}
            message = {**message, "params": given}
        return self.model.handle(message)

    def events(self, message: Json) -> list[Json]:
        """Progress told before the response to a request that has a token."""
        token = ((message.get("params") or {}).get("_meta") or {}).get("progressToken")
        if token is None or message.get("method") != "retrieve":
            return []
        params = {"progressToken": token, "progress": 0.5, "stage": "half"}
        return [{"jsonrpc": "2.0", "method": "notifications/progress", "params": params}]

    def batch(self, messages: list[Any]) -> Any:
        """The answer to a batch, None for none."""
        if not messages:
            return {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "empty batch"}}
        return [answer for answer in map(self.handle, messages) if answer is not None] or None

    def post(self, body: bytes, path: str, accept: str) -> Answered:
        """What an HTTP request gets."""
        self.asked += 1
        try:
            message = json.loads(body)
        except ValueError:
            return 400, "application/json", self.written(model_error(-32700))
        if isinstance(message, list):
            answer = self.batch(message)
            return (204, "", b"") if answer is None else (200, "application/json", self.written(answer))
        if path not in ("", message.get("method", "")) and "id" in message:
            return 200, "application/json", self.written(model_error(-32600))
        answer = self.handle(message)
        if answer is None:
            return 204, "", b""
        told = self.events(message) if "text/event-stream" in accept else []
        if told and "result" in answer:
            return (
                200,
                "text/event-stream",
                b"".join(b"data: %b\n\n" % self.written(frame) for frame in (*told, answer)),
            )
        return 200, "application/json", self.written(answer)

    def written(self, answer: Any) -> bytes:
        """An answer as it goes out."""
        return json.dumps(answer).encode()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            path = head[0].split(" ")[1].removeprefix("/rcp").removeprefix("/")
            status, kind, content = self.post(body, path, headers.get("accept", ""))
            lines = [f"HTTP/1.1 {status} Answered", "Connection: close", f"Content-Length: {len(content)}"]
            lines += [f"Content-Type: {kind}"] if kind else []
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
            await writer.drain()
        writer.close()


def model_error(code: int) -> Json:
    return {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": "no"}}
