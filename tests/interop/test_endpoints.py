"""Every endpoint with real callers: the published Python SDK, and the requests that the other SDKs send."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import rcp

from tests.interop.test_sdk_stdio import COMMAND
from tests.support.mounted_gateway import mounted
from tests.support.running_gateway import PATIENCE, Json, RunningGateway
from tests.support.stdio_caller import command

RERANKER = """
import rcp

server = rcp.Server()
server.set_info("reranker", "1")
server.advertise("rerank", {"methods": ["cross-encoder"]})

@server.on("rerank")
def rerank(params):
    return {"scores": [float(len(passage)) for passage in params["passages"]]}

server.serve_stdio()
"""
ENTRIES: list[Json] = [
    {"id": "team/docs", "command": COMMAND, "timeoutMs": 20_000, "priority": 1},
    {"id": "reranker", "command": [sys.executable, "-c", RERANKER], "timeoutMs": 20_000},
]


@asynccontextmanager
async def behind_http(**server: Any) -> AsyncIterator[RunningGateway]:
    """A gateway over HTTP in front of two SDK servers."""
    async with mounted(ENTRIES, {"server": server}) as gateway:
        yield gateway


def test_the_sdk_over_stdio(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The SDK's client runs the gateway as its child: handshake, retrieve, catalog, errors, shutdown."""
    client = rcp.connect_stdio(command(tmp_path, ENTRIES))
    try:
        assert client.server["name"] == "rcp-gateway"
        assert client.supports(rcp.Capability.Retrieve)
        hits = client.retrieve("søk\u2028", k=3)
        assert [hit["id"] for hit in hits] == ["søk\u2028-0", "søk\u2028-1", "søk\u2028-2"]
        assert {engine["id"] for engine in client.catalog()["engines"]} == {"team/docs", "reranker"}
        assert client.ping("n") == {"nonce": "n"}
        with pytest.raises(rcp.RcpError, match="-32004"):
            client.call("nonsense")
        with pytest.raises(rcp.RcpError, match="-32602"):
            client.call("retrieve", {"query": "q", "k": 0})
        process = client._transport._proc
    finally:
        client.shutdown()
    assert process.wait(60) in (0, -15)  # it ends by itself; the client sends SIGTERM as well
    assert '"event":"stopped"' in capfd.readouterr().err


def selector(url: str) -> rcp.Selector:
    """A selector over what the gateway lists, each engine at its endpoint."""
    listed = rcp.connect_http(f"{url}/rcp").catalog()["engines"]
    ranked = [{"id": each["id"], **each["endpoint"], "priority": -place} for place, each in enumerate(listed)]
    selection: rcp.Selector = rcp.Selector.loads(json.dumps({"engines": ranked}))
    return selection


@pytest.mark.parametrize("handshake", ["optional", "required"])
async def test_the_sdks_selector_picks_one_engine(handshake: str) -> None:
    """By id, by capability and by who answers first, each behind the same gateway, with its own scores."""

    def story(url: str) -> None:
        engines = selector(url)
        assert engines.size == 2
        docs = engines.select("team/docs")
        assert docs.server == {"name": "sdk-peer", "version": "2.1"}
        assert [hit["score"] for hit in docs.retrieve("q", k=3)] == [1.0, 1 / 2, 1 / 3]
        docs.shutdown()
        assert engines.select_primary().server["name"] == "sdk-peer"
        reranker = engines.select_capable(rcp.Capability.Rerank)
        assert reranker.rerank("q", ["a", "ccc"]) == [1.0, 3.0]
        with pytest.raises(rcp.RcpError, match="-32003"):
            reranker.call("retrieve", {"query": "q"})
        with pytest.raises(rcp.RcpError, match="-32015"):
            rcp.connect_http(f"{url}/engines/nobody/rcp")

    async with behind_http(handshake=handshake) as gateway:
        await asyncio.to_thread(story, gateway.url)


async def test_the_sdk_over_http_with_a_handshake() -> None:
    """The SDK cannot send a token: its clients share the session of their address until the last has shut down."""

    def story(url: str) -> None:
        asked = {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": {"query": "q"}}
        assert rcp.HttpTransport(url).call(asked)["error"]["code"] == -32001
        first = rcp.connect_http(url)
        assert len(first.retrieve("q", k=2)) == 2
        second = rcp.connect_http(url)
        assert len(second.retrieve("q", k=2)) == 2
        first.shutdown()
        assert len(second.retrieve("q", k=2)) == 2
        second.shutdown()
        assert rcp.HttpTransport(url).call(asked)["error"]["code"] == -32001

    async with behind_http(handshake="required") as gateway:
        await asyncio.to_thread(story, f"{gateway.url}/rcp")


async def exchange(url: str, request: bytes) -> tuple[bytes, bytes]:
    """Send a request and read until the gateway closes: (head, body)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(request)
    async with asyncio.timeout(PATIENCE):
        head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return head, body


def plain(path: str, message: Json, *lines: str) -> bytes:
    """A request with its length, as the Rust and C++ clients send it."""
    body = json.dumps(message).encode()
    head = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *lines]
    return "\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body


def chunked(path: str, message: Json) -> bytes:
    """A request in chunks, as Node's `http` sends a body whose length it was not told."""
    body = json.dumps(message).encode()
    head = [f"POST {path} HTTP/1.1", "content-type: application/json", "Host: 127.0.0.1", "Connection: close"]
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (body[:7], body[7:]))
    return "\r\n".join([*head, "Transfer-Encoding: chunked", "", ""]).encode() + pieces + b"0\r\n\r\n"


@pytest.mark.parametrize("base", ["/rcp", "/engines/team/docs/rcp"])
@pytest.mark.parametrize("kind", ["close", "chunked"])
async def test_the_other_sdks_on_the_wire(base: str, kind: str) -> None:
    """Who sends `Connection: close`, reads to the end and decodes no chunks has whole answers with their length."""
    asked: list[Json] = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1, "capabilities": {}}},
        {"jsonrpc": "2.0", "id": 2, "method": "retrieve", "params": {"query": "q", "k": 2}},
        {"jsonrpc": "2.0", "id": 3, "method": "nonsense", "params": {}},
        {"jsonrpc": "2.0", "id": 4, "method": "shutdown", "params": {}},
    ]
    async with behind_http(handshake="required") as gateway:
        for message in asked:
            path = f"{base}/{message['method']}"
            request = chunked(path, message) if kind == "chunked" else plain(path, message, "Connection: close")
            head, body = await exchange(gateway.url, request)
            assert head.startswith(b"HTTP/1.1 200 ")
            assert b"transfer-encoding" not in head.lower()
            assert b"content-length: %d" % len(body) in head.lower()
            answer = json.loads(body)
            assert answer["id"] == message["id"]
            assert answer.get("error", {}).get("code") == (-32004 if message["method"] == "nonsense" else None)
