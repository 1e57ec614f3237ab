"""The MCP Inspector's command line, a client of another make: it lists the tools and calls them."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.listening_gateway import listening
from tests.support.node_tools import BIN, needs, run
from tests.support.running_gateway import entry
from tests.support.scripted_engine import ScriptedEngine, hits

pytestmark = needs("@modelcontextprotocol/inspector")


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """Where a gateway serves MCP."""
    engine = await ScriptedEngine(results=hits("a", "b")).start()
    async with listening([entry("docs", engine)]) as (_, port):
        yield f"http://127.0.0.1:{port}/mcp"
    await engine.stop()


async def inspected(url: str, *arguments: str) -> Any:
    """What the Inspector prints, parsed; it must end well."""
    code, out, err = await run(str(BIN / "mcp-inspector"), "--cli", url, "--transport", "http", *arguments)
    assert code == 0, (out, err)
    return json.loads(out)


async def test_it_lists_and_calls(url: str) -> None:
    """`tools/list` names four tools; a call with typed arguments gives text and structure."""
    listed, called = await asyncio.gather(
        inspected(url, "--method", "tools/list"),
        inspected(
            url,
            "--method",
            "tools/call",
            "--tool-name",
            "retrieve",
            "--tool-arg",
            "query=what is it",
            "--tool-arg",
            "k=1",
        ),
    )
    assert [tool["name"] for tool in listed["tools"]] == ["retrieve", "list_engines", "search", "fetch"]
    assert [hit["id"] for hit in called["structuredContent"]["hits"]] == ["a"]
    assert "[1] docs" in called["content"][0]["text"]
