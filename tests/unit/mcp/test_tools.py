"""The tools over fake engines: what they ask for, and what they refuse to do."""

from typing import Any

import pytest

from app.api.caller import Caller
from app.mcp.tools import SEARCH_K, ExtensionNeeded, ToolCall, Tools, UnknownTool
from tests.support.fake_gateway import FakeGateway

CALLER = Caller("r-1")


def toolbox(**settings: Any) -> tuple[Tools, FakeGateway]:
    """The tools of a gateway over one fake engine."""
    gateway = FakeGateway(mcp=settings)
    return Tools(gateway.dispatcher, gateway.state), gateway


async def test_only_tools_that_there_are() -> None:
    """Another name is no result of a tool."""
    tools, _ = toolbox()
    with pytest.raises(UnknownTool):
        await tools.call("Retrieve", {"query": "q"}, ToolCall(CALLER))


async def test_raw_is_for_those_who_declared_it() -> None:
    """Without the extension nobody is asked; with it the structure is RCP's, and the text does not repeat it."""
    tools, gateway = toolbox()
    with pytest.raises(ExtensionNeeded):
        await tools.call("retrieve", {"query": "q", "raw": True}, ToolCall(CALLER))
    assert gateway.metric("requests_total", method="retrieve", outcome="ok") == 0
    result = await tools.call("retrieve", {"query": "q", "raw": True}, ToolCall(CALLER, extended=True))
    assert result["structuredContent"]["_meta"]["x-gateway"]["id"] == "us-1234"
    assert result["content"][0]["text"].endswith("is in the structured content.")


async def test_a_search_finds_as_many_as_it_says() -> None:
    """`search` asks for ten."""
    tools, _ = toolbox()
    result = await tools.call("search", {"query": "q"}, ToolCall(CALLER))
    assert len(result["structuredContent"]["results"]) <= SEARCH_K == 10


async def test_every_request_is_dispatched() -> None:
    """Each tool that asks RCP counts as a request of its method; `fetch` asks nobody."""
    tools, gateway = toolbox()
    asked: dict[str, Any] = {
        "retrieve": {"query": "q"},
        "search": {"query": "q"},
        "list_engines": {},
        "fetch": {"id": "x"},
    }
    for tool, arguments in asked.items():
        await tools.call(tool, arguments, ToolCall(CALLER))
    assert (await tools.capabilities(CALLER))["catalog"] == {"engines": 1}
    for method, count in (("retrieve", 2), ("catalog/list", 1), ("info", 1)):
        assert gateway.metric("requests_total", method=method, outcome="ok") == count, method


async def test_repr() -> None:
    """In an incident the tools say what they keep."""
    tools, _ = toolbox()
    assert repr(tools).startswith("<Tools retrieve, list_engines, search, fetch, feedback, <RecentHits for 1800 s in ")
