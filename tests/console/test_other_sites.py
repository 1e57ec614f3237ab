"""Pages of other sites in a real browser, which holds them to what the gateway says: MCP from a page that is listed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.browser import browsing
from tests.support.listening_gateway import listening
from tests.support.running_gateway import Json, entry
from tests.support.scripted_engine import ScriptedEngine

PAGE = b"<!doctype html><html lang=en><link rel=icon href=data:><title>Another site</title>"

ASKING = """async (url) => {
  const ask = (message, headers) => fetch(url, {method: "POST",
    body: JSON.stringify({jsonrpc: "2.0", id: 1, ...message}),
    headers: {"content-type": "application/json", accept: "application/json, text/event-stream", ...headers}});
  const begun = await ask({method: "initialize", params: {protocolVersion: "2025-06-18", capabilities: {},
    clientInfo: {name: "page", version: "1"}}});
  const session = begun.headers.get("mcp-session-id");
  const stream = await fetch(url, {headers: {accept: "text/event-stream", "mcp-session-id": session}});
  const called = await ask({method: "tools/call", params: {name: "search", arguments: {query: "q"}, _meta: {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}}},
    {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "search"});
  return {session, stream: stream.status, found: (await called.json()).result.structuredContent.results.length};
}"""


@asynccontextmanager
async def another_site() -> AsyncIterator[str]:
    """The origin of a site that has one empty page."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(PAGE)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + PAGE)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def test_mcp_from_a_page() -> None:
    """A listed page shakes hands, reads its session, finds no stream to listen to, and calls a tool of either era."""
    engine = await ScriptedEngine().start()
    async with another_site() as origin:
        settings: Json = {"server": {"cors_origins": [origin]}}
        async with listening([entry("docs", engine)], settings) as (_, port), browsing(origin) as (page, complaints):
            told: Any = await page.evaluate(ASKING, f"http://127.0.0.1:{port}/mcp")
            complaints.expect("405")
    await engine.stop()
    assert len(told["session"]) == 32
    assert (told["stream"], told["found"]) == (405, 3)


async def test_mcp_from_a_page_that_is_not_listed() -> None:
    """By default the browser keeps the answer from a page, also from one of this machine."""
    engine = await ScriptedEngine().start()
    async with (
        another_site() as origin,
        listening([entry("docs", engine)]) as (_, port),
        browsing(origin) as (page, complaints),
    ):
        ask = f"{ASKING.removesuffix('}')}; }}"
        told = await page.evaluate(
            f"(url) => ({ask})(url).catch((fault) => String(fault))", f"http://127.0.0.1:{port}/mcp"
        )
        assert told == "TypeError: Failed to fetch"
        complaints.expect("CORS", "ERR_FAILED")
    await engine.stop()
    assert engine.requests() == []
