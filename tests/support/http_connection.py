"""One server connection without a socket: bytes in, answers out, each read chosen by the test.

    connection = HttpConnection()
    await connection.receive(b"GET / HT", b"TP/1.1\\r\\n…")
    connection.answers  # [(200, {...what the application was asked...})]

The application answers every request with what it was asked, as JSON.
"""

import asyncio
import json
import re
from typing import Any

import uvicorn

from app.server.connection_limits import ConnectionLimits
from app.server.http_protocol import HttpProtocol
from app.settings.schema import ServerSettings

Answer = tuple[int, Any]

PROBE = b'{"status":"alive"}'
"""The answer to `/livez`, by the protocol or behind another request by the application."""


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the request: method, target, host and body."""
    body, more = b"", True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            return
        body, more = body + event["body"], event["more_body"]
    hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    asked = {
        "method": scope["method"],
        "path": scope["path"],
        "query": scope["query_string"].decode(),
        "host": ",".join(hosts),
        "body": body.decode("latin-1"),
    }
    content = PROBE if scope["path"] == "/livez" else json.dumps(asked).encode()
    headers = [(b"content-length", b"%d" % len(content)), (b"x-asked", scope["path"].encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})


class NeverOverloaded:
    """A gateway that always has room."""

    retry_after = 1

    def refuses(self, scope: Any) -> bool:
        return False

    def refusal(self, scope: Any) -> tuple[bytes, bytes]:
        raise AssertionError("nothing is refused")


class RecordingTransport:
    """Keeps what is written, and whether it is closed."""

    def __init__(self) -> None:
        self.written = b""
        self.writes = 0
        self.closed = False
        self.paused = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written += data
        self.writes += 1

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
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class HttpConnection:
    """A connection that was accepted just now."""

    def __init__(self, app: Any = echo, **settings: Any) -> None:
        chosen = ServerSettings(**settings)
        self.limits = ConnectionLimits(lambda: chosen, lambda reason: None, lambda app: app, _probe, NeverOverloaded())
        config = uvicorn.Config(app, http=HttpProtocol, ws="none", log_config=None, proxy_headers=False)
        self.protocol = HttpProtocol(config, self.limits, {})
        self.transport = RecordingTransport()
        recording: Any = self.transport
        self.protocol.connection_made(recording)

    async def receive(self, *reads: bytes) -> "HttpConnection":
        """Let the protocol read these pieces, one after the other, then wait until it has nothing more to do."""
        for piece in reads:
            self.protocol.data_received(piece)
            await asyncio.sleep(0)
        for _ in range(3):  # a request whose body is not complete may be served up to there
            await asyncio.sleep(0)
        while self.protocol.owes_answer and not self.transport.closed:
            await asyncio.wait(tuple(self.limits.tasks))
            await asyncio.sleep(0)
        return self

    def end(self) -> list[Answer]:
        """Close the connection: what was answered on it."""
        self.protocol.connection_lost(None)
        return self.answers

    @property
    def answers(self) -> list[Answer]:
        """(status, JSON body) of each answer; interim ones have the body None."""
        return list(read_answers(self.transport.written))


def read_answers(written: bytes) -> Any:
    """The answers in what a server has written; `HEAD` must not be among the requests."""
    while written:
        head, blank, rest = written.partition(b"\r\n\r\n")
        assert blank, written
        status = int(head[9:12])
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        if length is None:
            assert status == 100, head
            yield status, None
            written = rest
        else:
            size = int(length[1])
            yield status, json.loads(rest[:size])
            written = rest[size:]


def _probe(target: bytes) -> tuple[int, bytes] | None:
    return (200, PROBE) if target == b"/livez" else None
