"""MCP clients of other makes use every tool: the TypeScript SDK of both eras, and fastmcp over HTTP and stdio."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.listening_gateway import listening
from tests.support.mcp_peer import MODERN
from tests.support.node_tools import BIN, FOLDER, needs, run
from tests.support.running_gateway import entry
from tests.support.scripted_engine import ScriptedEngine, hits
from tests.support.stdio_caller import PROJECT, command

SCRIPT = Path(__file__).parents[1] / "support" / "mcp_client.mjs"
TOOLS = ["retrieve", "list_engines", "search", "fetch"]


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    """The engine behind the gateway."""
    started = await ScriptedEngine(results=hits("a", "b", "c")).start()
    yield started
    await started.stop()


@pytest.mark.parametrize(
    ("sdk", "protocol"),
    [
        pytest.param("@modelcontextprotocol/sdk", None, marks=needs("@modelcontextprotocol/sdk")),
        pytest.param("@modelcontextprotocol/client", MODERN, marks=needs("@modelcontextprotocol/client")),
    ],
)
async def test_the_typescript_sdk(engine: ScriptedEngine, sdk: str, protocol: str | None) -> None:
    """Its two generations, one for each era; both validate results against the output schemas."""
    async with listening([entry("docs", engine)]) as (_, port):
        arguments = (str(SCRIPT), str(FOLDER), sdk, f"http://127.0.0.1:{port}/mcp")
        code, out, err = await run(str(BIN / "node"), *arguments)
    assert code == 0, err
    found = json.loads(out)
    assert found["tools"] == TOOLS
    assert found["hits"] == ["a", "b"]
    assert found["progress"][0].startswith("docs: ")
    assert found["text"] == "text of a"
    assert "> text of a" in found["read"]
    assert (found["engines"], found["wrong"]) == (["docs"], True)
    if protocol is not None:
        assert found["protocol"] == protocol


async def used(client: Any) -> None:
    """Use every tool of a fastmcp client."""
    assert [tool.name for tool in await client.list_tools()] == TOOLS
    found = await client.call_tool("retrieve", {"query": "q", "k": 2})
    assert [hit["id"] for hit in found.structured_content["hits"]] == ["a", "b"]
    results = (await client.call_tool("search", {"query": "q"})).structured_content["results"]
    fetched = await client.call_tool("fetch", {"id": results[0]["id"]})
    assert fetched.structured_content["text"] == "text of a"
    links = [block for block in found.content if block.type == "resource_link"]
    assert "> text of a" in (await client.read_resource(str(links[0].uri)))[0].text
    wrong = await client.call_tool("search", {}, raise_on_error=False)
    assert wrong.is_error


async def test_fastmcp_over_http(engine: ScriptedEngine) -> None:
    """As its documentation connects it."""
    fastmcp = pytest.importorskip("fastmcp", reason="fastmcp is not installed: pip install '.[mcp-clients]'")
    async with (
        listening([entry("docs", engine)]) as (_, port),
        fastmcp.Client(f"http://127.0.0.1:{port}/mcp") as client,
    ):
        await used(client)


async def test_fastmcp_over_stdio(engine: ScriptedEngine, tmp_path: Path) -> None:
    """It starts `rcp-gateway mcp` from the entry that a desktop assistant has in its configuration."""
    fastmcp = pytest.importorskip("fastmcp", reason="fastmcp is not installed: pip install '.[mcp-clients]'")
    argv = command(tmp_path, [entry("docs", engine)], name="mcp")
    assert argv[0] == sys.executable
    server = {"command": argv[0], "args": argv[1:], "cwd": str(PROJECT)}
    async with fastmcp.Client({"mcpServers": {"retrieval": server}}) as client:
        await used(client)
