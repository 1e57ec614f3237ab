"""A whole gateway between bytes: from what a caller's connection sends to what its engines' connections answer.

No socket and no real time: the HTTP of both sides is read and written as in production, by the same code, and waiting
costs nothing. A question that is never answered shows at once, since then nothing is left to wait for.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from app.engines.http.connection import Connection
from app.engines.http.dialer import Dialer
from app.main import build_app
from app.server.http_protocol import HttpProtocol
from app.server.lifecycle import GatewayServer
from tests.fuzz.requests import KEY
from tests.support.log_lines import LogLines, own_log
from tests.support.running_gateway import Json, lifespan, made_state, until
from tests.support.scripted_engine import DEFAULT_CAPABILITIES, hits
from tests.support.tenancy import tenant
from tests.support.virtual_time import jumping_loop

LONG = 60.0
"""Seconds, of the loop, after which a whole request that was not answered has been forgotten."""

STATUSES = {100, 200, 204, 400, 401, 403, 404, 405, 408, 413, 415, 429, 503}

PORTS = {1: "red", 2: "blue", 3: "shared", 4: "rogue"}

FORBIDDEN = re.compile(rb'Traceback \(most|File "/|azure|-32603|S3CR3T')
"""What no answer to the tenant `red` may hold: the inside of the gateway, or anything of the engine `blue`."""

Script = Callable[[str, Any], list[bytes] | None]
"""(method, id of the call) -> the pieces of an answer, after which the connection ends; None: answer as usual."""


class Broken(Exception):
    """Something that must hold did not."""


class EngineLine:
    """One engine at the other end of a connection of the gateway's; satisfies what Connection needs of a transport."""

    def __init__(self, engine: "Engine", connection: Connection) -> None:
        self._engine = engine
        self._connection = connection
        self._open = True

    def write(self, data: bytes) -> None:
        """One whole request; its answer comes in the next turn of the loop."""
        asyncio.get_running_loop().call_soon(self._answer, data)

    def pause_reading(self) -> None:
        """What comes is handed over all the same: a connection may get more than it asked for."""

    def resume_reading(self) -> None:
        """Nothing was held back."""

    def abort(self) -> None:
        """The gateway hangs up."""
        if self._open:
            self._open = False
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    close = abort

    def _answer(self, data: bytes) -> None:
        message = json.loads(data.partition(b"\r\n\r\n")[2])
        pieces = self._engine.script(message["method"], message["id"]) if self._engine.script else None
        scripted = pieces is not None
        for piece in pieces if pieces is not None else [self._engine.usual(message)]:
            if self._open:
                self._connection.data_received(piece)
        if scripted and self._open and self._engine.ends:
            self._connection.eof_received()
            self.abort()


class Engine:
    """One engine: what it answers, and whether it hangs up after a scripted answer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.script: Script | None = None
        self.ends = True
        self._described = {
            "protocolVersion": 1,
            "server": {"name": f"{'azure' if name == 'blue' else name}-server", "version": "1"},
            "capabilities": {**DEFAULT_CAPABILITIES, "streaming": {}},
        }
        mark = {"blue": "azure", "shared": "good"}.get(name, name)
        self._found = {"hits": hits(*(f"{mark}-{place}" for place in range(3)))}

    def usual(self, message: Json) -> bytes:
        """The answer of an engine in good health."""
        method = message["method"]
        result: Json = self._found if method == "retrieve" else {}
        body = json.dumps(
            {
                "jsonrpc": "2.0",
                "id": message["id"],
                "result": self._described if method in ("initialize", "info") else result,
            }
        ).encode()
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


class CallerLine:
    """The caller's end of one connection; satisfies what the HTTP protocol needs of a transport."""

    def __init__(self) -> None:
        self.answered = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.answered += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name, default)

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """Everything was sent already."""

    resume_reading = pause_reading


class FuzzedGateway:
    """One gateway, and what must hold of everything it says."""

    def __init__(self, app: Any, engines: dict[str, Engine], state: Any, log: LogLines) -> None:
        self.engines = engines
        self.state = state
        self._log = log
        self._config = uvicorn.Config(
            app, http=HttpProtocol, lifespan="off", ws="none", log_config=None, access_log=False
        )
        self._config.load()
        self._server = GatewayServer(self._config, state).server_state

    async def converse(self, pieces: list[bytes]) -> list[tuple[int, bytes]]:
        """Status and body of every answer on one connection. Raises Broken."""
        line: Any = CallerLine()
        protocol = HttpProtocol(self._config, self._server, {})
        protocol.connection_made(line)
        for piece in pieces:
            if not line.closed:
                protocol.data_received(piece)
                await asyncio.sleep(0)
        await self._settle()
        if protocol.owes_answer and not line.closed:
            raise Broken(f"a whole request was not answered within {LONG:g} s")
        protocol.connection_lost(None)
        await self._settle()
        if self._server.tasks:
            raise Broken("a request outlives its caller")
        return self._checked(line.answered)

    async def ask(self, method: str, params: Json) -> Json:
        """The response to one well-formed request of `red`. Raises Broken."""
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        lines = b"Host: g\r\nX-API-Key: %b\r\nContent-Length: %d" % (KEY.encode(), len(body))
        head = b"POST /rcp HTTP/1.1\r\n%b\r\n\r\n" % lines
        answers = await self.converse([head + body])
        if [status for status, _ in answers] != [200]:
            raise Broken(f"a well-formed request is answered {answers}")
        answered: Json = json.loads(answers[0][1])
        return answered

    async def _settle(self) -> None:
        """Wait until no request is under way, of those behind each other as well, but no longer than LONG."""
        until = asyncio.get_running_loop().time() + LONG
        while self._server.tasks and asyncio.get_running_loop().time() < until:
            await asyncio.wait(tuple(self._server.tasks), timeout=LONG)
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    def _checked(self, answered: bytes) -> list[tuple[int, bytes]]:
        found = FORBIDDEN.search(answered)
        if found:
            raise Broken(f"an answer holds {found[0]!r}: {answered[:2000]!r}")
        if self._log.stream.tell():
            for level in ('"level":"error"', '"level":"critical"', "Traceback (most"):
                if level in self._log.text:
                    raise Broken(f"logged: {self._log.text[:3000]}")
            self._log.stream.seek(0)
            self._log.stream.truncate()
        faults = jumping_loop().faults
        if faults:
            raise Broken(f"nobody caught {faults[0]}")
        answers = list(_answers(answered))
        wrong = [status for status, _ in answers if status not in STATUSES]
        if wrong:
            raise Broken(f"an answer with HTTP {wrong}: {answered[:2000]!r}")
        return answers


def _answers(answered: bytes) -> Any:
    """(status, body) of each answer that was written. Raises Broken for what is no HTTP or no JSON."""
    while answered:
        head, blank, rest = answered.partition(b"\r\n\r\n")
        read = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
        if not blank or read is None:
            raise Broken(f"no HTTP is {answered[:500]!r}")
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        if length is None and b"chunked" in head:
            body, answered = rest, b""
        else:
            size = int(length[1]) if length else 0
            body, answered = rest[:size], rest[size:]
            if len(body) == size and body.startswith((b"{", b"[")):
                json.loads(body)
            if answered and not answered.startswith(b"HTTP/1.1 "):
                body, answered = b"", rest  # an answer to HEAD has a length and no body
        yield int(read[1]), body


@asynccontextmanager
async def fuzzed(*names: str) -> AsyncIterator[FuzzedGateway]:
    """A gateway over these engines; the tenant `red` sees all of them but `blue`. Needs a JumpingLoop."""
    engines = {name: Engine(name) for name in names}

    async def connect(dialer: Any, addresses: Any, make: Callable[[], Connection], tls: Any) -> Connection:
        connection = make()
        line: Any = EngineLine(engines[PORTS[dialer._endpoint.port]], connection)
        connection.connection_made(line)
        return connection

    entries = [
        {"id": name, "url": f"http://127.0.0.1:{port}/rcp?key=S3CR3T", "headers": {"X-Key": "S3CR3T"}}
        for port, name in PORTS.items()
        if name in names
    ]
    tenants = {
        "red": tenant(*(name for name in names if name != "blue"), keys=(KEY,), roles=["read", "write", "feedback"]),
        "azure": tenant("blue", keys=("azure-key-0123456789",)),
    }
    settings = {
        "engines": {"breaker_failures": 0, "retry_budget": 0.0, "health_interval_seconds": 600.0},
        "index": {"enabled": True},
        "auth": {"mode": ["keys"], "tenants_file": "t", "max_failures": 10_000},
    }
    usual, Dialer.connect = Dialer.connect, connect  # type: ignore[method-assign, assignment]
    try:
        with own_log() as log:
            state = made_state(entries, settings, tenants=tenants)
            app: Any = build_app(state)
            async with lifespan(app):
                await until(lambda: all(engine.advertisement is not None for engine in state.engines.engines))
                yield FuzzedGateway(app, engines, state, log)
    finally:
        Dialer.connect = usual  # type: ignore[method-assign]
