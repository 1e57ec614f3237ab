"""The official MCP SDK's client in front of two replicas that know nothing of each other, in each of its modes."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from mcp.client import advertise
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from tests.support.listening_gateway import listening
from tests.support.mcp_peer import EXTENSION, MODERN, RoundRobin, sdk_client
from tests.support.running_gateway import Json, entry, until
from tests.support.scripted_engine import ScriptedEngine, hang, hits
from tests.support.shared_state import unique
from tests.support.tenancy import bearer, tenant

MODES = ["auto", "legacy", MODERN]
KEY = "red-key-0123456789"


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    """One engine behind both replicas."""
    started = await ScriptedEngine(results=hits("a", "b", "c")).start()
    yield started
    await started.stop()


@pytest.fixture
async def replicas(engine: ScriptedEngine) -> AsyncIterator[list[int]]:
    """The ports of two gateways."""
    async with listening([entry("docs", engine)]) as (_, one), listening([entry("docs", engine)]) as (_, other):
        yield [one, other]


@pytest.mark.parametrize("mode", MODES)
async def test_every_mode_over_two_replicas(replicas: list[int], mode: str) -> None:
    """Handshake or discovery at one, list at the next, calls at both: the client never notices."""
    notified: list[tuple[float, str | None]] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        notified.append((done, message))

    async with sdk_client(replicas, mode) as (client, sent):
        assert client.protocol_version == ("2025-11-25" if mode == "legacy" else MODERN)
        listed = await client.list_tools()
        found = [await client.call_tool("retrieve", {"query": "q", "k": 2}, progress_callback=progress) for _ in "1234"]
        await _errors(client)
    assert [tool.name for tool in listed.tools] == ["retrieve", "list_engines", "search", "fetch"]
    for result in found:
        assert result.is_error is False
        assert [hit["id"] for hit in result.structured_content["hits"]] == ["a", "b"]
    assert len(notified) == 4
    assert all(message is not None and message.startswith("docs: ") for _, message in notified)
    assert _evenly(sent)


async def _errors(client: Client) -> None:
    bad = await client.call_tool("search", {"q": "q"})
    assert bad.is_error is True
    assert "'query' is missing" in bad.content[0].text  # type: ignore[union-attr]
    with pytest.raises(MCPError, match="there is no tool") as unknown:
        await client.call_tool("nothing", {})
    assert unknown.value.error.code == -32602
    if client.protocol_version == MODERN:
        with pytest.raises(MCPError, match="raw results") as raw:
            await client.call_tool("retrieve", {"query": "q", "raw": True})
        assert raw.value.error.code == -32021
    else:
        assert (await client.call_tool("retrieve", {"query": "q", "raw": True})).is_error is True


def _evenly(transport: RoundRobin) -> bool:
    counts = [transport.sent.count(port) for port in set(transport.sent)]
    return len(counts) == 2 and max(counts) - min(counts) <= 1


async def test_the_extension_gives_raw_results(replicas: list[int]) -> None:
    """A client that declares the extension finds RCP's capabilities in ours, and may have the whole RCP result."""
    async with sdk_client(replicas, "auto", extensions=[advertise(EXTENSION)]) as (client, _):
        offered = client.server_capabilities.extensions
        result = await client.call_tool("retrieve", {"query": "q", "raw": True})
    assert offered is not None
    assert offered[EXTENSION]["retrieve"]["maxK"] == 100
    raw: Json = result.structured_content
    assert {"hits", "usage", "_meta"} <= raw.keys()
    assert raw["_meta"]["x-gateway"]["engines"][0]["status"] == "ok"


async def test_a_raw_result_is_taken_whatever_engines_put_into_hits(
    replicas: list[int], engine: ScriptedEngine
) -> None:
    """Fields of engines' own are in a raw result as they are; the client, which checks it, takes it."""
    own: Json = {"title": 5, "uri": None, "engines": "x", "truncated": "no"}
    engine.answers["retrieve"] = {"hits": [{"id": "a", "score": 1.0, "text": None, **own}]}
    async with sdk_client(replicas, "auto", extensions=[advertise(EXTENSION)]) as (client, _):
        raw = await client.call_tool("retrieve", {"query": "q", "raw": True})
        flat = await client.call_tool("retrieve", {"query": "q"})
    assert own.items() <= raw.structured_content["hits"][0].items()
    assert flat.structured_content["hits"][0]["engines"] == ["docs"]


@pytest.mark.parametrize("mode", MODES)
async def test_a_call_that_is_cancelled_ends_its_engine_calls(engine: ScriptedEngine, mode: str) -> None:
    """A client that cancels its call ends what was asked for it, and goes on with others."""
    engine.answers["retrieve"] = hang
    settings: Json = {"retrieve": {"deadline_ms": 60_000}}
    async with (
        listening([entry("docs", engine, timeoutMs=60_000)], settings) as (state, port),
        sdk_client([port], mode) as (client, _),
    ):
        call = asyncio.create_task(client.call_tool("retrieve", {"query": "q"}))
        await until(lambda: len(engine.requests()) == 1)
        assert state.engines.engines[0].semaphore.in_flight == 1
        call.cancel()
        await asyncio.wait([call])
        await until(lambda: state.engines.engines[0].semaphore.in_flight == 0)
        assert len((await client.list_tools()).tools) == 4


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_credentials_travel_with_each_request(engine: ScriptedEngine, mode: str) -> None:
    """A key in the client's headers lets it in at every replica."""
    tenants = {"red": tenant("*", keys=(KEY,))}
    async with (
        listening([entry("docs", engine)], tenants=tenants) as (_, one),
        listening([entry("docs", engine)], tenants=tenants) as (_, other),
        sdk_client([one, other], mode, bearer(KEY)) as (client, _),
    ):
        result = await client.call_tool("list_engines", {})
    assert [each["id"] for each in result.structured_content["engines"]] == ["docs"]


@pytest.mark.parametrize("mode", MODES)
async def test_replicas_that_share_are_one_gateway(engine: ScriptedEngine, redis_url: str, mode: str) -> None:
    """Every tool over both in turn: what either found the other fetches, and the engine is not asked for it again."""
    entries = [entry("docs", engine)]
    settings: Json = {"state": {"url": redis_url, "prefix": unique(), "timeout_ms": 10_000, "replicas": 2}}
    async with (
        listening(entries, settings) as (_, one),
        listening(entries, settings) as (_, other),
        sdk_client([one, other], mode) as (client, sent),
    ):
        await _all_tools(client, engine, sent)
    assert _evenly(sent)


async def _all_tools(client: Client, engine: ScriptedEngine, sent: RoundRobin) -> None:
    listings = [(await client.call_tool("list_engines", {})).structured_content for _ in "12"]
    assert listings[0] == listings[1]
    for turn in range(4):
        tool, hits = (("search", "results"), ("retrieve", "hits"))[turn // 2]
        found = await client.call_tool(tool, {"query": f"question {turn}"})
        finder, asked = sent.sent[-1], len(engine.requests())
        first = found.structured_content[hits][0]
        fetched = await client.call_tool("fetch", {"id": first["id"]})
        assert sent.sent[-1] != finder
        assert fetched.structured_content["id"] == first["id"]
        assert len(engine.requests()) == asked
        if turn % 2 == 0:
            await client.call_tool("list_engines", {})  # so that the other one is asked next
