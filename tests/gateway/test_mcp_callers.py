"""MCP with tenants: each tenant's engines, hits and limits, and how one gets a token."""

import asyncio
from typing import Any

import httpx2
import pytest

from app.settings.tenants_file import tenants_in
from tests.gateway.conftest import Starter
from tests.support.issuer import AUDIENCE, ISSUER, ec, issuing, token
from tests.support.listening_gateway import listening
from tests.support.log_lines import own_log
from tests.support.mcp_peer import ACCEPT, EXTENSION, SERVED, called, calling, events, modern, posted, text_of
from tests.support.running_gateway import PATIENCE, Json, RunningGateway, entry, running, until
from tests.support.scripted_engine import ScriptedEngine, hang, hits
from tests.support.tenancy import bearer, tenant

RED, BLUE = "red-key-0123456789", "blue-key-0123456789"
TENANTS: Json = {"red": tenant("docs", keys=(RED,)), "blue": tenant("docs", "wiki", keys=(BLUE,))}
METADATA = "/.well-known/oauth-protected-resource/mcp"


async def ids(gateway: RunningGateway, key: str, tool: str = "list_engines") -> list[str]:
    """The ids of the engines that this caller is listed."""
    result = await called(gateway, tool, **bearer(key))
    return [engine["id"] for engine in result["structuredContent"]["engines"]]


async def test_two_tenants_see_different_engines(engines: Starter) -> None:
    """Each tenant sees only its own engines: in lists, answers, errors and the advertisement."""
    docs, wiki = await engines(results=hits("d")), await engines(results=hits("w"))
    async with running([entry("docs", docs), entry("wiki", wiki)], SERVED, tenants=TENANTS) as gateway:
        assert (await ids(gateway, RED), await ids(gateway, BLUE)) == (["docs"], ["docs", "wiki"])
        red = await called(gateway, "retrieve", {"query": "q"}, **bearer(RED))
        blue = await called(gateway, "retrieve", {"query": "q"}, **bearer(BLUE))
        refused = [
            text_of(await called(gateway, "retrieve", {"query": "q", "engines": [name]}, **bearer(RED)))
            for name in ("wiki", "none")
        ]
        said = {
            key: (await posted(gateway, modern("server/discover"), **bearer(key))).json()["result"]
            for key in (RED, BLUE)
        }
    assert [hit["id"] for hit in red["structuredContent"]["hits"]] == ["d"]
    assert {hit["id"] for hit in blue["structuredContent"]["hits"]} == {"d", "w"}
    assert "wiki" not in str(red)
    assert refused[0].replace("wiki", "none") == refused[1]
    counts = {key: said[key]["capabilities"]["extensions"][EXTENSION]["catalog"]["engines"] for key in said}
    assert counts == {RED: 1, BLUE: 2}


async def test_hits_of_another_tenant_cannot_be_fetched(engine: ScriptedEngine) -> None:
    """What one tenant was answered does not exist for another."""
    async with running([entry("docs", engine)], SERVED, tenants=TENANTS) as gateway:
        await called(gateway, "search", {"query": "q"}, **bearer(RED))
        mine = await called(gateway, "fetch", {"id": "a"}, **bearer(RED))
        theirs = await called(gateway, "fetch", {"id": "a"}, **bearer(BLUE))
    assert mine["structuredContent"]["text"] == "text of a"
    assert theirs["isError"] is True


async def test_a_caller_without_a_key_is_turned_away(engine: ScriptedEngine) -> None:
    """No key or a wrong one is 401 with a challenge, before anything is read; without tokens it leads nowhere else."""
    async with running([entry("docs", engine)], SERVED, tenants=TENANTS) as gateway:
        nobody = await posted(gateway, modern("tools/list"))
        wrong = await posted(gateway, modern("tools/list"), **bearer("wrong"))
        key = await posted(gateway, modern("tools/list"), x_api_key=RED)
    assert (nobody.status_code, wrong.status_code, key.status_code) == (401, 401, 200)
    assert nobody.json()["error"]["code"] == -32012
    assert nobody.headers["www-authenticate"] == 'Bearer realm="rcp"'
    assert wrong.headers["www-authenticate"] == 'Bearer realm="rcp", error="invalid_token"'


async def test_who_may_not_read_gets_no_tools(engine: ScriptedEngine) -> None:
    """A tenant without the role `read` is 403."""
    tenants = {"red": tenant("*", keys=(RED,), roles=["feedback"])}
    async with running([entry("docs", engine)], SERVED, tenants=tenants) as gateway:
        response = await posted(gateway, modern("tools/list"), **bearer(RED))
    assert (response.status_code, response.json()["error"]["code"]) == (403, -32012)


async def test_limits_are_those_of_rcp(engine: ScriptedEngine) -> None:
    """Requests at `/mcp` and at `/rcp` count together; beyond the burst it is 429 with Retry-After."""
    tenants = {"red": tenant("*", keys=(RED,), limits={"rps": 0.01, "burst": 2})}
    async with running([entry("docs", engine)], SERVED, tenants=tenants) as gateway:
        assert gateway.state.authenticator is not None
        gateway.state.authenticator._quotas._clock = lambda: 1_000_000.0
        for _ in range(5):  # only tool calls count
            assert (await posted(gateway, modern("tools/list"), **bearer(RED))).status_code == 200
        assert (await posted(gateway, calling("list_engines"), **bearer(RED))).status_code == 200
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {}}
        assert (await gateway.post(ping, headers=bearer(RED))).status_code == 200
        response = await posted(gateway, calling("list_engines"), **bearer(RED))
    assert (response.status_code, response.json()["error"]["code"]) == (429, -32011)
    assert int(response.headers["retry-after"]) > 0


async def test_hits_of_the_day_are_counted(engine: ScriptedEngine) -> None:
    """Hits that tools give count against `hits_per_day`."""
    tenants = {"red": tenant("*", keys=(RED,), limits={"hits_per_day": 3})}
    async with running([entry("docs", engine)], SERVED, tenants=tenants) as gateway:
        assert (await posted(gateway, calling("retrieve", {"query": "q", "k": 3}), **bearer(RED))).status_code == 200
        assert (await posted(gateway, calling("retrieve", {"query": "q", "k": 3}), **bearer(RED))).status_code == 429


async def test_each_call_leaves_its_lines(engine: ScriptedEngine) -> None:
    """A tool call is a line of MCP and a line of its request, under one id, with the tenant; never what was asked."""
    with own_log() as log:
        async with running([entry("docs", engine)], SERVED, tenants=TENANTS) as gateway:
            await posted(gateway, calling("search", {"query": "secret words"}), **bearer(RED), x_request_id="r-7")
            assert await gateway.metric("rcp_gateway_mcp_calls_total", tool="search", outcome="ok") == 1
            assert await gateway.metric("rcp_gateway_requests_total", method="retrieve", outcome="ok") == 1
            assert await gateway.metric("rcp_gateway_tenant_requests_total", tenant="red", outcome="ok") == 1
    asked, logged = (line for line in log.lines if line.get("request_id") == "r-7")
    assert (asked["event"], asked["method"], asked["tenant"], asked["key"]) == ("request", "retrieve", "red", "k0")
    expected = {"event": "mcp", "method": "tools/call", "tool": "search", "outcome": "ok", "tenant": "red", "key": "k0"}
    assert {name: logged[name] for name in expected} == expected
    assert "secret words" not in log.text
    assert not [line for line in log.lines if str(line.get("logger", "")).startswith("mcp")]


async def test_a_revoked_key_ends_what_it_began(engine: ScriptedEngine) -> None:
    """When a key is taken away its tool call ends with 401, and no engine goes on for it."""
    engine.answers["retrieve"] = hang
    async with running([entry("docs", engine)], SERVED, tenants=TENANTS) as gateway:
        call = asyncio.create_task(posted(gateway, calling("search", {"query": "q"}), **bearer(RED)))
        await until(lambda: len(engine.requests()) == 1)
        assert gateway.state.authenticator is not None
        assert gateway.state.authenticator.replace(tenants_in("t", {"tenants": {"blue": TENANTS["blue"]}})) == 1
        response = await call
        await until(lambda: gateway.state.engines.engines[0].semaphore.in_flight == 0)
    assert (response.status_code, response.json()["error"]["code"]) == (401, -32012)
    assert 'error="invalid_token"' in response.headers["www-authenticate"]


async def test_a_revoked_keys_stream_has_a_last_message(engines: Starter) -> None:
    """A client whose stream has begun reads in its last message why there is no result, and finds its end in order."""
    slow = await engines()
    slow.answers["retrieve"] = hang
    message: Json = {"jsonrpc": "2.0", "id": 9, "method": "tools/call"}
    message |= {"params": {"name": "search", "arguments": {"query": "q"}, "_meta": {"progressToken": 1}}}
    entries = [entry("docs", await engines()), entry("wiki", slow, timeoutMs=60_000)]
    tenants = {**TENANTS, "red": tenant("*", keys=(RED,))}
    async with listening(entries, tenants=tenants) as (state, port):
        headers = {**bearer(RED), "accept": ACCEPT, "mcp-protocol-version": "2025-06-18"}
        async with (
            httpx2.AsyncClient(trust_env=False, timeout=PATIENCE) as client,
            client.stream("POST", f"http://127.0.0.1:{port}/mcp", json=message, headers=headers) as response,
        ):
            assert response.status_code == 200
            await until(lambda: len(slow.requests()) == 1)
            assert state.authenticator is not None
            assert state.authenticator.replace(tenants_in("t", {"tenants": {"blue": TENANTS["blue"]}})) == 1
            *_, last = events((await response.aread()).decode())
    assert (last["id"], last["error"]["code"]) == (9, -32012)


@pytest.mark.parametrize("coding", ["gzip", "identity, gzip", "br"])
async def test_compressed_messages_of_mcp_are_never_opened(engine: ScriptedEngine, coding: str) -> None:
    """As at `/rcp`: 415, whatever the coding."""
    async with running([entry("docs", engine)], SERVED, tenants=TENANTS) as gateway:
        response = await posted(gateway, modern("tools/list"), content_encoding=coding, **bearer(RED))
        plain = await posted(gateway, modern("tools/list"), content_encoding="identity", **bearer(RED))
        coded = await posted(gateway, modern("tools/list"), transfer_encoding="gzip, chunked", **bearer(RED))
    assert (response.status_code, plain.status_code, coded.status_code) == (415, 200, 415)
    assert "compressed" in response.json()["error"]["message"]


async def test_a_client_without_a_token_finds_out_where_to_get_one(engine: ScriptedEngine) -> None:
    """With tokens on, a 401 names the metadata of RFC 9728, which names issuer and scope; a token then lets in."""
    key = ec("k1")
    async with issuing(key) as issuer:
        settings = {
            **SERVED,
            "auth": {"mode": ["jwt"], "tenants_file": "t"},
            "jwt": {**issuer.settings, "roles_claim": "scope", "roles": {"rag.read": "read", "rag.write": "write"}},
        }
        async with running([entry("docs", engine)], settings, tenants=TENANTS) as gateway:
            assert gateway.state.authenticator is not None
            token_verifier: Any = gateway.state.authenticator.token_verifier
            await until(lambda: token_verifier.keys.version == 1)
            nobody = await posted(gateway, modern("tools/list"))
            document = await gateway.client.get(METADATA)
            head = await gateway.client.head(METADATA)
            posted_to = await gateway.client.post(METADATA)
            elsewhere = await gateway.client.get(METADATA, headers={"host": "other"})
            good = await posted(gateway, modern("tools/list"), **bearer(token(key, scope="openid rag.read")))
            foreign = await posted(gateway, modern("tools/list"), **bearer(token(key, aud="other", scope="rag.read")))
            poor = await posted(gateway, modern("tools/list"), **bearer(token(key, scope="openid")))
    where = f'resource_metadata="http://gateway{METADATA}", scope="rag.read"'
    assert nobody.status_code == 401
    assert nobody.headers["www-authenticate"] == f'Bearer realm="rcp", {where}'
    assert document.json() == {
        "resource": "http://gateway/mcp",
        "authorization_servers": [ISSUER],
        "bearer_methods_supported": ["header"],
        "resource_name": "rcp-gateway",
        "scopes_supported": ["rag.read"],
    }
    assert (head.status_code, head.content) == (200, b"")
    assert (posted_to.status_code, elsewhere.status_code) == (405, 421)
    assert good.status_code == 200
    assert foreign.status_code == 401
    assert foreign.headers["www-authenticate"] == f'Bearer realm="rcp", error="invalid_token", {where}'
    assert poor.status_code == 403
    assert poor.headers["www-authenticate"] == f'Bearer error="insufficient_scope", {where}'


async def test_the_resource_goes_under_its_public_name(engine: ScriptedEngine) -> None:
    """Behind a proxy the metadata is that of `server.public_url`; without scopes none is named."""
    async with issuing(ec("k1")) as issuer:
        settings = {
            "server": {"public_url": "https://gateway/search"},
            "auth": {"mode": ["jwt"], "tenants_file": "t"},
            "jwt": issuer.settings | {"audience": AUDIENCE},
        }
        async with running([entry("docs", engine)], settings, tenants=TENANTS) as gateway:
            nobody = await posted(gateway, modern("tools/list"))
            document = (await gateway.client.get(METADATA)).json()
    assert document["resource"] == "https://gateway/search/mcp"
    assert "scopes_supported" not in document
    assert nobody.headers["www-authenticate"].endswith(f'resource_metadata="https://gateway/search{METADATA}"')
