"""MCP clients that go away, give up or do not read: nothing goes on for them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.listening_gateway import Reader, listening
from tests.support.log_lines import own_log
from tests.support.mcp_peer import ACCEPT, MODERN, SERVED, calling, modern_headers
from tests.support.running_gateway import Json, RunningGateway, entry, running, until
from tests.support.scripted_engine import ScriptedEngine, hang, hit
from tests.support.tenancy import bearer, tenant

KEY = "red-key-0123456789"
HEADERS = {"accept": ACCEPT, "content-type": "application/json"}


def request_of(message: Json, headers: dict[str, str]) -> bytes:
    """A request to `/mcp`, byte by byte."""
    body = json.dumps(message).encode()
    lines = ["POST /mcp HTTP/1.1", "host: localhost", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def asked(port: int, version: str, token: str | None = None, limit: int = 2**16) -> AsyncIterator[Reader]:
    """A tool call of this version under way on a connection of its own."""
    meta = {} if token is None else {"progressToken": token}
    if version == MODERN:
        message = calling("retrieve", {"query": "q"}, meta=meta)
        headers = modern_headers(message)
    else:
        params = {"name": "retrieve", "arguments": {"query": "q"}, "_meta": meta}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {"accept": ACCEPT, "content-type": "application/json", "mcp-protocol-version": version}
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=limit)
    writer.write(request_of(message, headers))
    try:
        yield Reader(reader, writer)
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
async def test_engine_calls_end_when_the_client_is_gone(version: str) -> None:
    """A client that disconnects, as it does to cancel: its engine calls end early, and the log says so."""
    slow = await ScriptedEngine().start()
    slow.answers["retrieve"] = hang
    try:
        with own_log() as log:
            async with listening([entry("slow", slow, timeoutMs=60_000)], {"retrieve": {"deadline_ms": 60_000}}) as (
                state,
                port,
            ):
                async with asked(port, version):
                    await until(lambda: len(slow.requests()) == 1)
                await until(lambda: state.engines.engines[0].semaphore.in_flight == 0)
                await until(lambda: [line for line in log.lines if line["event"] == "mcp"] != [])
    finally:
        await slow.stop()
    outcomes = {line["event"]: line["outcome"] for line in log.lines if line["event"] in ("request", "mcp")}
    assert outcomes == {"request": "cancelled", "mcp": "cancelled"}
    assert not [line for line in log.lines if line["level"] in ("error", "warning")]


async def test_a_client_that_leaves_its_stream_ends_the_other_engine_calls() -> None:
    """Also when progress has been sent already: closing the stream is how a client of 2026-07-28 cancels."""
    quick, slow = await ScriptedEngine().start(), await ScriptedEngine().start()
    slow.answers["retrieve"] = hang
    try:
        entries = [entry("quick", quick), entry("slow", slow, timeoutMs=60_000)]
        async with listening(entries, {"retrieve": {"deadline_ms": 60_000}}) as (state, port):
            async with asked(port, MODERN, "t") as client:
                await client.head()
                assert client.headers["content-type"].startswith("text/event-stream")
                await until(lambda: len(slow.requests()) == 1)
            await until(lambda: all(engine.semaphore.in_flight == 0 for engine in state.engines.engines))
    finally:
        await quick.stop()
        await slow.stop()


async def test_a_client_that_does_not_read_is_given_up() -> None:
    """A client that leaves no room for the next event in time is cut off, with a line in the log."""
    big = await ScriptedEngine(results=[hit("a", text="x" * 8_000_000)]).start()
    settings: Json = {"server": {"send_timeout_seconds": 0.2}, "mcp": {"max_text_bytes": 8_000_000}}
    try:
        with own_log() as log:
            async with (
                listening([entry("big", big)], settings, send_buffer=4096) as (_, port),
                asked(port, "2025-11-25", "t", limit=1024),
            ):
                await until(lambda: [line for line in log.lines if line["event"] == "slow_caller"] != [])
    finally:
        await big.stop()


@pytest.mark.parametrize("tenants", [None, {"red": tenant("*", keys=(KEY,))}])
async def test_a_request_is_cancelled_within_its_session(tenants: Json | None) -> None:
    """Before 2026-07-28 `notifications/cancelled` ends the request of the same session and no other, with -32800."""
    headers = HEADERS if tenants is None else {**HEADERS, **bearer(KEY)}
    slow = await ScriptedEngine().start()
    slow.answers["retrieve"] = hang
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    call = {"name": "search", "arguments": {"query": "q"}}
    settings = {**SERVED, "retrieve": {"deadline_ms": 60_000}}
    try:
        async with running([entry("slow", slow, timeoutMs=60_000)], settings, tenants=tenants) as gateway:
            mine, other = [
                (await gateway.post(_message("initialize", hello), "/mcp", headers)).headers["mcp-session-id"]
                for _ in "12"
            ]
            assert len(mine) == 32
            assert mine != other
            within = {**headers, "mcp-protocol-version": "2025-11-25", "mcp-session-id": mine}
            calls = [
                asyncio.create_task(gateway.post(_message("tools/call", call, number), "/mcp", within))
                for number in (7, 8)
            ]
            await until(lambda: len(slow.requests()) == 2)
            for session, number in ((other, 7), (mine, 9), (mine, []), (mine, 7)):
                assert not calls[0].done()
                cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}}
                sent = {**within, "mcp-session-id": session}
                assert (await gateway.post(cancel, "/mcp", sent)).status_code == 202
            answer = (await calls[0]).json()
            assert state_of(gateway) == 1
            calls[1].cancel()
            await asyncio.wait(calls)
            await until(lambda: state_of(gateway) == 0)
    finally:
        await slow.stop()
    assert answer["error"]["code"] == -32800


def state_of(gateway: RunningGateway) -> int:
    """Calls under way to the only engine."""
    return gateway.state.engines.engines[0].semaphore.in_flight


def _message(method: str, params: Json, number: int = 1) -> Json:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
