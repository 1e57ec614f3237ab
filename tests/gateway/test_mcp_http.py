"""MCP over HTTP at its edges: ids, Accept, batches, sessions, bodies of errors, and connections that break off."""

import asyncio
import json
from typing import Any

import pytest

from tests.support.listening_gateway import listening
from tests.support.log_lines import own_log
from tests.support.mcp_peer import ACCEPT, SERVED, calling, events, modern, modern_headers, posted
from tests.support.running_gateway import Json, RunningGateway, entry, running, until
from tests.support.scripted_engine import ScriptedEngine
from tests.support.tenancy import bearer, tenant

JSON_ONLY = {"accept": "application/json", "content-type": "application/json"}
KEY = "red-key-0123456789"


def legacy(method: str, params: Json | None = None, **more: Any) -> Json:
    """A request before 2026-07-28."""
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}, **more}


@pytest.mark.parametrize("wrong", [None, 1.5, True, [1], {}, 1e300])
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_an_id_that_is_none_is_refused(engine: ScriptedEngine, wrong: Any, version: str) -> None:
    """MCP ids are strings and integers: any other is 400 with -32600, where it would wait for ever for an answer."""
    async with running([entry("docs", engine)], SERVED) as gateway:
        message = {**calling("search", {"query": "q"}), "id": wrong}
        response = await gateway.post(message, "/mcp", {**modern_headers(message), "mcp-protocol-version": version})
    assert (response.status_code, response.json()["error"]["code"]) == (400, -32600)
    assert response.json()["id"] is None
    assert engine.requests() == []


@pytest.mark.parametrize("good", ["x", "", 0, -1, 2**70])
async def test_every_sound_id_comes_back(engine: ScriptedEngine, good: Any) -> None:
    """Also an integer that no float holds."""
    async with running([entry("docs", engine)], SERVED) as gateway:
        response = await posted(gateway, {**modern("tools/list"), "id": good})
    assert response.json()["id"] == good


@pytest.mark.parametrize(
    ("accept", "status", "kind"),
    [
        (None, 200, "application/json"),
        ("*/*", 200, "application/json"),
        ("application/json", 200, "application/json"),
        ("application/*;q=0.5", 200, "application/json"),
        ("text/event-stream", 200, "text/event-stream"),
        ("text/html", 406, "application/json"),
        ("application/json;q=0", 406, "application/json"),
    ],
)
async def test_what_a_client_accepts(engine: ScriptedEngine, accept: str | None, status: int, kind: str) -> None:
    """JSON, unless it takes events alone; without either 406, with a body."""
    message = calling("search", {"query": "q"}, meta={"progressToken": 1})
    headers = modern_headers(message, accept=accept)
    async with running([entry("docs", engine)], SERVED) as gateway:
        del gateway.client.headers["accept"]
        response = await gateway.post(message, "/mcp", headers)
    assert response.status_code == status
    assert response.headers["content-type"].startswith(kind)
    answer = events(response.text)[-1] if kind != "application/json" else response.json()
    assert ("result" in answer) == (status == 200)


async def test_initialize_always_begins_a_session(engine: ScriptedEngine) -> None:
    """Also if the client names a version in a header already; other requests are given none."""
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    async with running([entry("docs", engine)], SERVED) as gateway:
        for headers in (JSON_ONLY, {**JSON_ONLY, "mcp-protocol-version": "2025-11-25"}):
            begun = await gateway.post(legacy("initialize", hello), "/mcp", headers)
            assert len(begun.headers["mcp-session-id"]) == 32
            within = {**headers, "mcp-session-id": begun.headers["mcp-session-id"]}
            assert "mcp-session-id" not in (await gateway.post(legacy("ping"), "/mcp", within)).headers
        assert "mcp-session-id" not in (await posted(gateway, modern("tools/list"))).headers


async def test_batches_belong_to_one_revision(engine: ScriptedEngine) -> None:
    """In 2025-03-26, assumed without a header, a batch is answered; elsewhere it is refused with the reason."""
    batch: list[Any] = [
        legacy("ping", id=1),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        legacy("tools/call", {"name": "search", "arguments": {"query": "q"}}, id=2),
        legacy("initialize", id=3),
        7,
    ]
    async with running([entry("docs", engine)], SERVED) as gateway:
        answer = await _sent(gateway, batch, None)
        notifications = await _sent(gateway, batch[1:2], "2025-03-26")
        for version, messages in (("2025-11-25", batch), ("2026-07-28", batch), (None, []), (None, batch * 50)):
            refused = await _sent(gateway, messages, version)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, -32600), version
        assert gateway.state.admission.in_flight == 0
    assert answer.status_code == 200
    found = {each["id"]: each for each in answer.json()}
    assert found[1]["result"] == {}
    assert found[2]["result"]["structuredContent"]["results"]
    assert found[3]["error"]["code"] == found[None]["error"]["code"] == -32600
    assert (notifications.status_code, notifications.content) == (202, b"")


async def test_calls_of_a_batch_count_each(engine: ScriptedEngine) -> None:
    """A batch of two tool calls uses two of the caller's requests; its other messages use none."""
    tenants = {"red": tenant("*", keys=(KEY,), limits={"rps": 0.01, "burst": 3})}
    call = legacy("tools/call", {"name": "list_engines"})
    async with running([entry("docs", engine)], SERVED, tenants=tenants) as gateway:
        first = await _sent(gateway, [call, call, legacy("ping"), legacy("tools/list")], None, **bearer(KEY))
        second = await _sent(gateway, [call, call], None, **bearer(KEY))
    assert (first.status_code, second.status_code) == (200, 429)


async def test_versions_that_are_not_spoken(engine: ScriptedEngine) -> None:
    """They are 400 with those that are spoken, in a header or in the message; a handshake negotiates instead."""
    async with running([entry("docs", engine)], SERVED) as gateway:
        refused = await gateway.post(legacy("ping"), "/mcp", {**JSON_ONLY, "mcp-protocol-version": "2024-10-07"})
        discovered = (await posted(gateway, modern("server/discover"))).json()["result"]
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, -32022)
    assert error["data"] == {"supported": discovered["supportedVersions"], "requested": "2024-10-07"}
    for version in ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"):
        assert version in error["message"]


async def test_the_trace_of_a_caller_reaches_engines(engine: ScriptedEngine) -> None:
    """As at `/rcp`: an engine call belongs to the trace of the client, and carries its request id."""
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    async with running([entry("docs", engine)], SERVED) as gateway:
        await posted(gateway, calling("search", {"query": "q"}), traceparent=parent, x_request_id="r-1")
    sent = engine.requests()[0].headers
    assert sent["traceparent"].startswith(f"00-{'a' * 32}-")
    assert sent["x-request-id"] == "r-1"


async def test_links_are_for_clients_that_know_them(engine: ScriptedEngine) -> None:
    """Before 2025-06-18 there is no such content, and its clients would reject the whole result."""
    async with running([entry("docs", engine)], SERVED) as gateway:
        kinds = {}
        for version in ("2025-03-26", "2025-06-18"):
            message = legacy("tools/call", {"name": "retrieve", "arguments": {"query": "q"}})
            answer = await gateway.post(message, "/mcp", {**JSON_ONLY, "mcp-protocol-version": version})
            kinds[version] = {block["type"] for block in answer.json()["result"]["content"]}
    assert kinds == {"2025-03-26": {"text"}, "2025-06-18": {"text", "resource_link"}}


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {}, 400),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"{}", {"host": "elsewhere"}, 421),
        (b"{}", {"origin": "https://evil.test"}, 403),
        (b"{}", {"accept": "image/png"}, 406),
        (b"{}" + b" " * 3000, {}, 413),
    ],
)
async def test_every_refusal_has_a_body(
    engine: ScriptedEngine, body: bytes, headers: dict[str, str], status: int
) -> None:
    """JSON-RPC, so that a client can show what is wrong."""
    async with running([entry("docs", engine)], {**SERVED, "server": {"max_body_bytes": 2048}}) as gateway:
        response = await gateway.post(body, "/mcp", {**JSON_ONLY, **headers})
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert isinstance(error["code"], int)
    assert error["message"]


async def test_a_reset_amid_a_body_leaves_no_trace() -> None:
    """A client that breaks off while it sends is no fault of the gateway's: no traceback, and the place is free."""
    with own_log() as log:
        async with listening([]) as (state, port):
            for sent in (b"", b'{"jsonrpc": "2.0"'):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                head = f"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 999\r\naccept: {ACCEPT}\r\n"
                writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + sent)
                await writer.drain()
                writer.transport.abort()
            body = json.dumps(legacy("ping")).encode()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(body), body)
            )
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()
            await until(lambda: state.admission.in_flight == 0)
    assert "Traceback" not in log.text
    assert not [line for line in log.lines if line["level"] == "error"]


async def _sent(gateway: RunningGateway, message: Any, version: str | None, **headers: str) -> Any:
    named = {} if version is None else {"mcp-protocol-version": version}
    return await gateway.post(message, "/mcp", {**JSON_ONLY, **named, **headers})
