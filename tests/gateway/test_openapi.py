"""`/openapi.json` and `/docs` describe what the gateway answers, to anybody, unless they are switched off."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from app.api.console import FILES
from app.api.cors import PAGE_HEADERS
from app.api.openapi import openapi_document
from app.main import build_app
from app.protocol.method_names import GATES, UNGATED
from tests.support.running_gateway import Json, entry, made_state, running

EVERYTHING: Json = {
    "retrieve": {"maxK": 100},
    "embed": {"identity": "m", "dimension": 2},
    "sparseEmbed": {"identity": "s"},
    "multiVector": {"identity": "v", "dimension": 2},
    "rerank": {"methods": ["cross-encoder"]},
    "transform": {"methods": ["multi-query"]},
    "graph": {"ops": ["neighbors"]},
    "index": {"writable": True},
    "memory": {"scopes": ["global"]},
    "feedback": {},
}
"""All capabilities that gate a method."""


def document() -> Json:
    """The document of a gateway with default settings."""
    return openapi_document(list(build_app(made_state([])).routes))


def operations() -> Iterator[tuple[str, Json]]:
    """(path, operation) of all RCP methods."""
    for path, described in document()["paths"].items():
        if path.startswith("/rcp/"):
            yield path, described["post"]


def resolved(schema: Any, definitions: Json) -> Any:
    """A schema with its references written out."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            return {**resolved(definitions[schema["$ref"].rpartition("/")[2]], definitions), **rest}
        return {key: resolved(value, definitions) for key, value in schema.items()}
    return [resolved(member, definitions) for member in schema] if isinstance(schema, list) else schema


def test_every_method_and_route_is_described() -> None:
    """A path for each RCP method, and one for each other route but pages and MCP, which describes itself."""
    paths = set(document()["paths"])
    assert paths >= {f"/rcp/{method}" for method in UNGATED | GATES.keys()}
    routes: list[Any] = build_app(made_state([])).routes
    others = {route.path for route in routes} - set(FILES) - {"/favicon.ico", "/openapi.json", "/docs"}
    assert {path for path in others if "{" not in path and "mcp" not in path} <= paths


def test_examples_match_their_schemas() -> None:
    """Every example is what the schema beside it describes, and every reference leads somewhere."""
    found = document()
    definitions = found["components"]["schemas"]
    examples = 0
    for described in found["paths"].values():
        for operation in described.values():
            bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
            for media in (media for body in bodies for media in body.get("content", {}).values()):
                schema = resolved(media["schema"], definitions)
                Draft202012Validator.check_schema(schema)
                if "example" in media:
                    examples += 1
                    Draft202012Validator(schema).validate(media["example"])
    assert examples >= 2 * len(UNGATED | GATES.keys())


async def test_the_examples_are_accepted(engines: Any) -> None:
    """What the document shows as a request can be sent as it is."""
    engine = await engines(capabilities=EVERYTHING)
    settings = {"index": {"enabled": True}}
    examples = [operation["requestBody"]["content"]["application/json"]["example"] for _, operation in operations()]
    async with running([entry("docs", engine)], settings) as gateway:
        for example in examples:
            answer = (await gateway.post(example, f"/rcp/{example['method']}")).json()
            # The engine of this test may have no good answer; the request must not be at fault.
            assert answer.get("error", {}).get("code") not in (-32600, -32602, -32003, -32004, -32005), answer


async def test_anybody_may_read_them(engines: Any) -> None:
    """Neither needs a key or names anything of this deployment; the page loads nothing but the console's style."""
    tenants = {"acme": {"keys": [{"id": "k", "sha256": "0" * 64}]}}
    async with running([entry("secret-engine", await engines())], tenants=tenants) as gateway:
        described = await gateway.client.get("/openapi.json")
        page = await gateway.client.get("/docs")
    assert described.json() == document()
    for answer in (described, page):
        assert answer.status_code == 200
        assert "secret-engine" not in answer.text
        assert "acme" not in answer.text
        assert answer.headers["content-security-policy"] == PAGE_HEADERS["content-security-policy"]
    assert set(re.findall(r'(?:src|href)="([^"]+)"', page.text)) == {"/console.css", "/openapi.json"}
    assert "<script" not in page.text
    assert "style=" not in page.text
    for path in described.json()["paths"]:
        assert f" {path}</code>" in page.text


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/redoc"])
async def test_they_can_be_switched_off(path: str) -> None:
    """With `server.docs: false` there is nothing there; FastAPI's own pages are never served."""
    async with running([], {"server": {"docs": False}}) as gateway:
        assert (await gateway.client.get(path)).status_code == 404
