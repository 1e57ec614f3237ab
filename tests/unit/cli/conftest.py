"""A gateway that says what a test wants, in a thread on a free port."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from app.__main__ import load


@dataclass
class FakeGateway:
    """Answers every request with `status` and `body`, and keeps what it was asked."""

    url: str = ""
    status: int = 200
    body: bytes = b"{}"
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    credentials: list[str | None] = field(default_factory=list)
    mute: bool = False
    released: Event = field(default_factory=Event)

    def result(self, **result: Any) -> None:
        """Answer with this JSON-RPC result."""
        self.body = json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode()

    def error(self, code: int, message: str, **data: Any) -> None:
        """Answer with this JSON-RPC error."""
        error = {"code": code, "message": message, "data": data}
        self.body = json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}).encode()


def _handler(gateway: FakeGateway) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            gateway.credentials.append(self.headers.get("Authorization"))
            gateway.asked.append((self.command, self.path, json.loads(self.rfile.read(length) or b"null")))
            if gateway.mute:
                gateway.released.wait(60)
                return
            self.send_response(gateway.status)
            self.send_header("Content-Length", str(len(gateway.body)))
            self.end_headers()
            self.wfile.write(gateway.body)

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    """A fake gateway that is listening."""
    fake = FakeGateway()
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(fake)) as server:
        fake.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield fake
        finally:
            fake.released.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs the command line with these words, without colours and without settings of the environment."""
    for name in ("RCP_GATEWAY_DEBUG", "RCP_GATEWAY_KEY", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    return lambda *words: CliRunner().invoke(load(), [str(word) for word in words])
