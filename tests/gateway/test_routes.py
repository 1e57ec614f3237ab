"""Everything the gateway answers is a route of the FastAPI application."""

from typing import Any

import pytest

from app.main import build_app
from tests.support.running_gateway import made_state, running

ROUTES = {
    *("/rcp", "/rcp/{method:path}", "/engines/{id:path}/rcp", "/engines/{id:path}/rcp/{method:path}"),
    *("/mcp", "/mcp/", "/.well-known/oauth-protected-resource/mcp"),
    *("/livez", "/readyz", "/metrics"),
    *("/engines", "/admin/session", "/admin/engines", "/admin/overlap", "/admin/settings"),
    *("/admin/explain", "/admin/fuse", "/admin/actions"),
    *("/openapi.json", "/docs"),
    *("/", "/console.css", "/console.js", "/favicon.ico"),
}


def paths(settings: dict[str, Any] | None = None) -> set[str]:
    """The paths of all routes."""
    routes: list[Any] = build_app(made_state([], settings)).routes
    return {route.path for route in routes}


def test_every_endpoint_is_a_route() -> None:
    """`app.routes` shows all that is served, and what the settings switch off is not among it."""
    assert paths() >= ROUTES
    assert ROUTES - paths({"mcp": {"enabled": False}}) == {"/mcp", "/mcp/", "/.well-known/oauth-protected-resource/mcp"}
    assert ROUTES - paths({"server": {"docs": False}}) == {"/openapi.json", "/docs"}
    assert ROUTES - paths({"metrics": {"port": 9464}}) == {"/metrics"}


@pytest.mark.parametrize("path", ["/rcpx", "/RCP", "/x/rcp", "/engines//rcp", "/engines/rcp", "/mcp/x", "/rcp2/ping"])
async def test_other_paths_are_not_found(path: str) -> None:
    """A path that only looks like one of RCP or MCP is 404 with a JSON-RPC body, whatever the method."""
    async with running([]) as gateway:
        for method in ("GET", "POST"):
            answer = await gateway.client.request(method, path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, -32015)
