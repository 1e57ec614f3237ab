"""`rcp-gateway mcp`: MCP over stdin and stdout, with raw lines and with the client of the official SDK."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.gateway.conftest import Starter
from tests.support.mcp_peer import MODERN, calling, modern
from tests.support.running_gateway import Json, entry, until
from tests.support.scripted_engine import hang, hits
from tests.support.stdio_caller import PROJECT, StdioCaller, command
from tests.support.stdio_caller import calling as started

HELLO: Json = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


async def answered(caller: StdioCaller, message: Any) -> Any:
    """The next line after one message."""
    caller.send(message)
    return await caller.message()


def legacy(method: str, params: Json | None = None, message_id: Any = 1) -> Json:
    """A request before 2026-07-28."""
    return {"jsonrpc": "2.0", "id": message_id, "method": method, "params": params or {}}


@pytest.mark.parametrize("mode", ["legacy", MODERN, "auto"])
async def test_the_official_client_uses_every_tool(engines: Starter, tmp_path: Path, mode: str) -> None:
    """With one line of configuration, in both eras: list, retrieve, search, fetch, read a linked resource."""
    argv = command(tmp_path, [entry("docs", await engines())], name="mcp")
    server = StdioServerParameters(command=argv[0], args=argv[1:], cwd=PROJECT)
    async with Client(stdio_client(server), mode=mode) as client:
        listed = await client.list_tools()
        found = await client.call_tool("retrieve", {"query": "q", "k": 2})
        results = (await client.call_tool("search", {"query": "q"})).structured_content["results"]
        fetched = await client.call_tool("fetch", {"id": results[1]["id"]})
        link: Any = found.content[1]
        read: Any = await client.read_resource(str(link.uri))
        unknown = await client.call_tool("fetch", {"id": "x"})
    assert [tool.name for tool in listed.tools] == ["retrieve", "list_engines", "search", "fetch"]
    assert [hit["id"] for hit in found.structured_content["hits"]] == ["a", "b"]
    assert fetched.structured_content["text"] == "text of b"
    assert "> text of a" in read.contents[0].text
    assert unknown.is_error is True


async def test_a_session_line_by_line(engines: Starter, tmp_path: Path) -> None:
    """Only messages reach stdout, notifications are not answered, errors name the fault, the end of stdin ends it."""
    async with started(command(tmp_path, [entry("docs", await engines())], name="mcp")) as caller:
        result = (await answered(caller, legacy("initialize", HELLO)))["result"]
        assert result["protocolVersion"] == "2025-11-25"
        caller.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert (await answered(caller, legacy("ping", {}, "p")))["result"] == {}
        assert (await answered(caller, modern("server/discover")))["result"]["supportedVersions"] == [MODERN]
        assert "resultType" in (await answered(caller, calling("search", {"query": "q"})))["result"]
        for wrong in (None, 1.5, True, [1]):
            answer = await answered(caller, {**legacy("ping"), "id": wrong})
            assert (answer["id"], answer["error"]["code"]) == (None, -32600)
        assert (await answered(caller, legacy("nobody/knows")))["error"]["code"] == -32601
        assert (await answered(caller, [legacy("ping")]))["error"]["code"] == -32600
        caller.stdin.write(b"{\n")
        assert (await caller.message())["error"]["code"] == -32700
        code, out, err = await caller.end()
    assert (code, out) == (0, b"")
    assert [json.loads(line)["tool"] for line in err.splitlines() if '"tools/call"' in line] == ["search"]


async def test_batches_are_those_of_one_revision(engines: Starter, tmp_path: Path) -> None:
    """A batch is answered as one after 2025-03-26 was negotiated."""
    async with started(command(tmp_path, [entry("docs", await engines())], name="mcp")) as caller:
        await answered(caller, legacy("initialize", {**HELLO, "protocolVersion": "2025-03-26"}))
        batch = [legacy("ping", {}, 1), {"jsonrpc": "2.0", "method": "notifications/x"}, legacy("tools/list", {}, 2)]
        answers = await answered(caller, batch)
    assert [answer["id"] for answer in answers] == [1, 2]


async def test_progress_and_cancelling(engines: Starter, tmp_path: Path) -> None:
    """Each engine that answers is a notification; a cancelled request is not answered, and its engine calls end."""
    quick, slow = await engines(), await engines(results=hits("s"))
    slow.answers["retrieve"] = hang
    settings = "retrieve: {deadline_ms: 60000}"
    entries = [entry("quick", quick), entry("slow", slow, timeoutMs=60_000)]
    async with started(command(tmp_path, entries, settings, "mcp")) as caller:
        await answered(caller, legacy("initialize", HELLO))
        arguments = {"name": "retrieve", "arguments": {"query": "q"}, "_meta": {"progressToken": "t"}}
        notified = await answered(caller, legacy("tools/call", arguments, "call"))
        assert notified["method"] == "notifications/progress"
        assert notified["params"]["progressToken"] == "t"
        await until(lambda: len(slow.requests()) == 1)
        caller.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "call"}})
        assert (await answered(caller, legacy("ping", {}, "after")))["id"] == "after"
        assert (await caller.end())[0] == 0


async def test_rcp_on_stdio_names_this_command(engines: Starter, tmp_path: Path) -> None:
    """A client of MCP that starts `rcp-gateway stdio` gets an error that names the right command."""
    async with started(command(tmp_path, [entry("docs", await engines())])) as caller:
        for message in (legacy("initialize", HELLO), modern("server/discover")):
            answer = await answered(caller, message)
            assert (answer["id"], answer["error"]["code"]) == (1, -32600)
            assert "rcp-gateway mcp" in answer["error"]["message"]
        await asyncio.sleep(0)
        caller.ask(2, "initialize", protocolVersion=1)
        assert "capabilities" in (await caller.message())["result"]
