"""MCP clients for tests: requests written by hand for both eras, and the official SDK's client in front of replicas."""

import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from tests.support.running_gateway import PATIENCE, Json, RunningGateway

MODERN = "2026-07-28"
EXTENSION = "io.github.rcp-gateway/retrieval"
SERVED: Json = {"mcp": {"allowed_hosts": ["gateway"]}}
"""Settings under which the test client's Host header is served."""

ACCEPT = "application/json, text/event-stream"


def modern(method: str, params: Json | None = None, capabilities: Json | None = None, **more: Any) -> Json:
    """A request of the 2026-07-28 revision."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": capabilities or {},
        **more.pop("meta", {}),
    }
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**(params or {}), "_meta": meta}, **more}


def modern_headers(message: Json, **more: str | None) -> dict[str, str]:
    """The headers that mirror a modern request; `more` with underscores for dashes, None leaves one out."""
    headers: dict[str, str | None] = {
        "accept": ACCEPT,
        "content-type": "application/json",
        "mcp-protocol-version": MODERN,
        "mcp-method": message["method"],
        "mcp-name": message["params"].get("name"),
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    return {name: value for name, value in headers.items() if value is not None}


def calling(tool: str, arguments: Json | None = None, capabilities: Json | None = None, **more: Any) -> Json:
    """A modern `tools/call`."""
    return modern("tools/call", {"name": tool, "arguments": arguments or {}}, capabilities, **more)


async def posted(gateway: RunningGateway, message: Json, **headers: str | None) -> httpx2.Response:
    """The HTTP answer to one modern message."""
    return await gateway.post(message, "/mcp", modern_headers(message, **headers))


async def called(
    gateway: RunningGateway, tool: str, arguments: Json | None = None, capabilities: Json | None = None, **headers: str
) -> Json:
    """The result of one modern tool call, which must have one."""
    response = await posted(gateway, calling(tool, arguments, capabilities), **headers)
    assert response.status_code == 200, response.text
    result: Json = response.json()["result"]
    return result


def text_of(result: Json) -> str:
    """What a model reads of a result."""
    block, *links = result["content"]
    assert block["type"] == "text"
    assert all(link["type"] == "resource_link" for link in links)
    text: str = block["text"]
    return text


async def legacy(
    gateway: RunningGateway, method: str, params: Json | None = None, version: str | None = "2025-11-25", **headers: str
) -> Any:
    """The JSON-RPC message that answers one request of the era of `initialize`; HTTP must be well."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
    sent = {"accept": ACCEPT, "content-type": "application/json", **headers}
    if version is not None:
        sent["mcp-protocol-version"] = version
    response = await gateway.post(message, "/mcp", sent)
    assert response.status_code == 200, response.text
    return response.json()


async def offered(gateway: RunningGateway, **headers: str) -> dict[str, Json]:
    """The listed tools by name."""
    response = await posted(gateway, modern("tools/list"), **headers)
    assert response.status_code == 200, response.text
    return {tool["name"]: tool for tool in response.json()["result"]["tools"]}


def events(text: str) -> list[Any]:
    """The messages of an event stream."""
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


class RoundRobin(httpx2.AsyncBaseTransport):
    """Sends each message to the next of several replicas, over a connection of its own choosing.

    What a client sends beside its messages, and when it likes (a stream to listen at, a farewell), goes to the first.
    """

    def __init__(self, ports: list[int]) -> None:
        self.sent: list[int] = []
        self._first = ports[0]
        self._next: Callable[[], int] = itertools.cycle(ports).__next__
        self._inner = httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The request at the next replica; the Host header stays as it was."""
        port = self._first
        if request.method == "POST":
            port = self._next()
            self.sent.append(port)
        request.url = request.url.copy_with(host="127.0.0.1", port=port)
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        """Let go of the connections."""
        await self._inner.aclose()


@asynccontextmanager
async def sdk_client(
    ports: list[int], mode: str, headers: Mapping[str, str] | None = None, **more: Any
) -> AsyncIterator[tuple[Client, RoundRobin]]:
    """The official SDK's client, whose requests go round the replicas."""
    transport = RoundRobin(ports)
    async with httpx2.AsyncClient(transport=transport, headers=dict(headers or {}), timeout=PATIENCE) as http:
        connection = streamable_http_client("http://localhost/mcp", http_client=http)
        async with Client(connection, mode=mode, **more) as client:
            yield client, transport
