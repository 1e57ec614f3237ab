"""The names a gateway is served under (`server.allowed_hosts`), the pages that may ask (`server.cors_origins`)."""

from typing import Any

import pytest

from tests.support.mcp_peer import ACCEPT, SERVED
from tests.support.running_gateway import Json, entry, running
from tests.support.tenancy import bearer, tenant

PING: Json = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {}}
INITIALIZE: Json = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "page", "version": "1"}}
PAGE = "https://app.example"
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "content-type, x-api-key"}


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("rcp.example", 200),
        ("RCP.Example:8443", 200),
        ("rcp.example.", 200),
        ("other.example:8080", 200),
        ("other.example", 421),
        ("other.example:80", 421),
        ("[::1]:8080", 200),
        ("[::1]", 200),
        ("rcp.example.evil.example", 421),
        ("evil.example/rcp.example", 421),
        ("evil.example@rcp.example", 421),
        ("rcp.example:8080:9", 421),
        ("rcp.example:", 421),
        ("rcp.example:x", 421),
        ("rcp.example, evil.example", 421),
        ("127.0.0.1", 421),
        ("", 421),
    ],
)
async def test_only_listed_names_are_served(host: str, status: int) -> None:
    """Another Host than those of `allowed_hosts` is 421, with a text that names the setting (B122)."""
    listed = ["rcp.example", "other.example:8080", "::1"]
    async with running([], {"server": {"allowed_hosts": listed}}, reach=False) as gateway:
        for path in ("/rcp", "/rcp/ping", "/engines/x/rcp", "/engines", "/nothing"):
            answered = await gateway.post(PING, path, headers={"Host": host})
            assert (answered.status_code == 421) == (status == 421), path
            if status == 421:
                assert "server.allowed_hosts" in answered.json()["error"]["message"]
                assert answered.json()["error"]["code"] == -32600


async def test_probes_go_by_address() -> None:
    """Orchestrators and Prometheus ask an address: /livez, /readyz and /metrics answer under any name (B122)."""
    async with running([], {"server": {"allowed_hosts": ["rcp.example"]}}, reach=False) as gateway:
        for path in ("/livez", "/readyz", "/metrics"):
            answered = await gateway.client.get(path, headers={"Host": "10.1.2.3:8080"})
            assert answered.status_code in (200, 503), path
        looks_alike = await gateway.client.get("/livez/", headers={"Host": "10.1.2.3:8080"})
    assert looks_alike.status_code == 421


async def test_no_list_is_any_name() -> None:
    """By default nobody looks at the Host."""
    async with running([], reach=False) as gateway:
        assert (await gateway.post(PING, headers={"Host": "anything.example"})).status_code == 200


async def test_one_word_in_the_environment_is_a_list() -> None:
    """`rcp.example, other.example` is two names."""
    async with running([], {"server": {"allowed_hosts": "rcp.example, other.example"}}, reach=False) as gateway:
        assert (await gateway.post(PING, headers={"Host": "other.example"})).status_code == 200


@pytest.mark.parametrize("path", ["/rcp", "/rcp/retrieve", "/engines/e/rcp", "/engines/e/rcp/retrieve"])
async def test_a_listed_page_may_ask(engines: Any, path: str) -> None:
    """Its preflight allows POST and the headers RCP needs; its answers and refusals can be read by it alone."""
    tenants = {"red": tenant("*", keys=("a-good-key.0123",))}
    settings = {"server": {"cors_origins": [PAGE]}}
    question = {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": {"query": "q"}}
    async with running([entry("e", await engines())], settings, tenants=tenants) as gateway:
        asked = await gateway.client.options(path, headers={"Origin": PAGE, **PREFLIGHT})
        answered = await gateway.post(question, path, headers={"Origin": PAGE, **bearer("a-good-key.0123")})
        refused = await gateway.post(question, path, headers={"Origin": PAGE})
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == PAGE
    assert asked.headers["access-control-allow-methods"] == "POST"
    assert "X-API-Key" in asked.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in asked.headers
    assert (answered.status_code, refused.status_code) == (200, 401)
    for response in (answered, refused):
        assert response.headers["access-control-allow-origin"] == PAGE
        assert "Origin" in response.headers["vary"]
    assert "WWW-Authenticate" in answered.headers["access-control-expose-headers"]


@pytest.mark.parametrize(
    "origin",
    [
        "https://app.example.evil.example",
        "http://app.example",
        "https://app.example:444",
        "null",
        "https://sub.app.example",
    ],
)
async def test_other_pages_may_not(engines: Any, origin: str) -> None:
    """An origin that is not listed letter by letter is told nothing that lets its script read an answer."""
    async with running([entry("e", await engines())], {"server": {"cors_origins": [PAGE]}}) as gateway:
        asked = await gateway.client.options("/rcp", headers={"Origin": origin, **PREFLIGHT})
        answered = await gateway.post(PING, headers={"Origin": origin})
    assert asked.status_code == 400
    for response in (asked, answered):
        assert "access-control-allow-origin" not in response.headers


async def test_listed_pages_may_speak_mcp(engines: Any) -> None:
    """A listed page's script is let ask `/mcp` with MCP's headers, and read the session that it is given."""
    settings = {"server": {"cors_origins": [PAGE]}, **SERVED}
    wish = {"Access-Control-Request-Headers": "authorization,content-type,mcp-protocol-version,mcp-method,mcp-name"}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}
    async with running([entry("e", await engines())], settings) as gateway:
        asked = await gateway.client.options("/mcp", headers={"Origin": PAGE, **PREFLIGHT, **wish})
        answered = await gateway.post(
            message, "/mcp", {"Origin": PAGE, "Accept": ACCEPT, "Content-Type": "application/json"}
        )
        ended = await gateway.client.delete("/mcp", headers={"Origin": PAGE})
        unknown_client = await gateway.post(message, "/mcp", {"Origin": "https://evil.example", "Accept": ACCEPT})
        unasked = await gateway.client.options("/mcp", headers={"Origin": "https://evil.example", **PREFLIGHT})
    assert (asked.status_code, answered.status_code, ended.status_code) == (200, 200, 405)
    for response in (asked, answered, ended):
        assert response.headers["access-control-allow-origin"] == PAGE
        assert "access-control-allow-credentials" not in response.headers
    assert "Mcp-Session-Id" in answered.headers["access-control-expose-headers"]
    assert answered.headers["mcp-session-id"]
    assert (unknown_client.status_code, unasked.status_code) == (403, 400)
    for response in (unknown_client, unasked):
        assert "access-control-allow-origin" not in response.headers


async def test_by_default_no_page_may_speak_mcp(engines: Any) -> None:
    """An origin that is only served, as pages of this machine are, is told nothing that lets its script read it."""
    page = "http://localhost:6274"
    async with running([entry("e", await engines())], SERVED) as gateway:
        asked = await gateway.client.options("/mcp", headers={"Origin": page, **PREFLIGHT})
        answered = await gateway.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, "/mcp", {"Origin": page})
    assert asked.status_code == 405
    for response in (asked, answered):
        assert not [name for name in response.headers if name.startswith("access-control")]


async def test_pages_reach_nothing_but_rcp(engines: Any) -> None:
    """What is the operator's, and the probes, are opened to no page."""
    async with running([entry("e", await engines())], {"server": {"cors_origins": [PAGE]}}) as gateway:
        for path in ("/engines", "/metrics", "/livez", "/readyz", "/", "/rcpx"):
            for response in (
                await gateway.client.get(path, headers={"Origin": PAGE}),
                await gateway.client.options(path, headers={"Origin": PAGE, **PREFLIGHT}),
            ):
                assert "access-control-allow-origin" not in response.headers, path


async def test_no_list_is_no_page() -> None:
    """By default no page is told anything, and a preflight is 405."""
    async with running([], reach=False) as gateway:
        asked = await gateway.client.options("/rcp", headers={"Origin": PAGE, **PREFLIGHT})
        answered = await gateway.post(PING, headers={"Origin": PAGE})
    assert asked.status_code == 405
    for response in (asked, answered):
        assert not [name for name in response.headers if name.startswith("access-control")]


async def test_an_event_stream_of_a_page(engines: Any) -> None:
    """Its answer may be a stream as well."""
    async with running([entry("e", await engines())], {"server": {"cors_origins": [PAGE]}}) as gateway:
        params = {"query": "q", "_meta": {"progressToken": "t"}}
        message = {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": params}
        answered = await gateway.post(message, headers={"Origin": PAGE, "Accept": "text/event-stream"})
    assert answered.headers["content-type"].startswith("text/event-stream")
    assert answered.headers["access-control-allow-origin"] == PAGE
