"""The httpx2 transport with HTTP/2: which needs TLS, an engine that speaks it, and the extra `http2`."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from app.engines.httpx_client import HttpxTransport
from app.settings.schema import EngineEntry, EnginesSettings
from tests.support.authority import Authority

pytest.importorskip("h2", reason="needs the extra http2")

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded


class Http2Engine(asyncio.Protocol):
    """One connection: answers every question with the path it was asked at."""

    def __init__(self, met: list["Http2Engine"]) -> None:
        self.paths: dict[int, str] = {}
        self._bodies: dict[int, bytes] = {}
        self._talk = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        met.append(self)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._talk.initiate_connection()
        transport.write(self._talk.data_to_send())

    def data_received(self, data: bytes) -> None:
        for event in self._talk.receive_data(data):
            if isinstance(event, RequestReceived):
                self.paths[event.stream_id] = dict(event.headers)[":path"]
            elif isinstance(event, DataReceived):
                self._bodies[event.stream_id] = self._bodies.get(event.stream_id, b"") + event.data
            elif isinstance(event, StreamEnded):
                self._answer(event.stream_id)
        self._transport.write(self._talk.data_to_send())

    def _answer(self, stream: int) -> None:
        message = json.loads(self._bodies[stream])
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": {"path": self.paths[stream]}}
        self._talk.send_headers(stream, [(":status", "200"), ("content-type", "application/json")])
        self._talk.send_data(stream, json.dumps(answer).encode(), end_stream=True)


async def test_http2_is_spoken_where_the_engine_offers_it(tmp_path: Path) -> None:
    """Over TLS the client agrees to HTTP/2, and questions asked at the same time share one connection."""
    authority = Authority(tmp_path)
    context = authority.server("localhost")
    context.set_alpn_protocols(["h2"])
    met: list[Http2Engine] = []
    server = await asyncio.get_running_loop().create_server(lambda: Http2Engine(met), "127.0.0.1", 0, ssl=context)
    url = f"https://localhost:{server.sockets[0].getsockname()[1]}/rcp"
    entry = EngineEntry(id="docs", url=url, client="httpx", tls=authority.trusted)
    transport = HttpxTransport(entry, EnginesSettings())
    try:
        assert (await transport.call("ping", {})).result == {"path": "/rcp/ping"}
        replies = await asyncio.gather(*(transport.call("retrieve", {}) for _ in range(3)))
        assert [reply.result for reply in replies] == [{"path": "/rcp/retrieve"}] * 3
        assert [len(engine.paths) for engine in met] == [4]
        assert "HTTP/2" in repr(transport)
    finally:
        await transport.close()
        server.close()
        await server.wait_closed()
