"""`/openapi.json` and `/docs`: every endpoint of the gateway with schemas and examples, as OpenAPI and as a page.

Both describe the software and not this deployment: they name no engine, tenant or setting, and need no authentication.
The page has no script and loads its style from this gateway only. `server.docs: false` removes both.
"""

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from fastapi import APIRouter, Response
from fastapi.routing import APIRoute

from app.api.cors import PAGE_HEADERS
from app.api.operator_access import READ_METHODS
from app.protocol import envelope
from app.protocol.errors import RCP_CODES
from app.protocol.fuse_params import Refusion
from app.protocol.method_names import PROTOCOL_VERSION, gate_of
from app.protocol.method_schemas import METHODS, MethodSchema

Json = dict[str, Any]

DESCRIPTION = (
    "RCP is JSON-RPC 2.0 over HTTP POST. Send a request to `/rcp`, or to `/rcp/{method}` with the method of the body. "
    "`/engines/{id}/rcp` and `/engines/{id}/rcp/{method}` reach one engine. An array of requests at `/rcp` is a batch. "
    "With `Accept: text/event-stream` and `params._meta.progressToken`, the answer is an event stream of progress "
    "notifications that ends with the response. Errors of a method have HTTP status 200 and an `error` member."
)

OPERATIONS: Mapping[tuple[str, str], str] = {
    ("get", "/livez"): "Whether the process is alive.",
    ("get", "/readyz"): "Whether to send traffic here: 200, or 503 before an engine was reached and while draining.",
    ("get", "/metrics"): "All metrics in the Prometheus or OpenMetrics text format.",
    ("get", "/engines"): "The engines that the caller sees, with their state.",
    ("get", "/admin/session"): "The operator and what its requests reach.",
    ("get", "/admin/engines"): "All engines with breakers, replicas and statistics.",
    ("get", "/admin/calibration"): "Learned calibration of each engine, by tenant.",
    ("get", "/admin/health"): "Engines by state, those in trouble, recent partial answers, and links.",
    ("get", "/admin/cache"): "Answer cache: requests by status, entries, bytes, and the oldest answer served stale.",
    ("get", "/admin/sources"): "Engine sources with their files, faults and engines, and the origin of each engine.",
    (
        "get",
        "/admin/shadows",
    ): "Shadow engines: how their lists compare, and whether answers would be better with them.",
    ("get", "/admin/selection"): "Engine selection: coverage by number of engines, and how often each was asked.",
    ("get", "/admin/overlap"): "How much the results of engines overlap.",
    ("get", "/admin/settings"): "The settings in force, secrets masked, and where each comes from.",
    ("post", "/admin/explain"): "The plan of a retrieve, without asking any engine.",
    ("post", "/admin/fuse"): "Fuse ranked lists with given options.",
    ("post", "/admin/actions"): "Act on one engine: handshake, off, on, reset, drill, end_drill.",
}
"""(method, path) -> summary, for all operations besides RCP."""

_ERROR: Json = {
    "type": "object",
    "required": ["code", "message"],
    "properties": {
        "code": {"type": "integer", "enum": sorted(RCP_CODES)},
        "message": {"type": "string"},
        "data": {"type": "object", "description": "`retryable`, `retryAfterMs`, `field` and others (RCP §12)."},
    },
}
_ID: Json = {"type": ["string", "integer", "null"]}
_VERSION: Json = {"const": "2.0"}
_SECURITY_SCHEMES = {
    "apiKey": {"type": "http", "scheme": "bearer", "description": "An API key or a JWT, if authentication is on."}
}


def openapi_document(routes: list[Any]) -> Json:
    """The OpenAPI 3.1 description of an application with these `routes`."""
    paths: dict[str, Json] = {}
    for schema in METHODS:
        paths[f"/rcp/{schema.name}"] = {"post": _rcp_operation(schema)}
    paths["/rcp"] = {"post": _any_rcp_operation()}
    # Only what this deployment serves: settings can remove endpoints.
    served = {route.path for route in routes if isinstance(route, APIRoute)}
    for (verb, path), summary in OPERATIONS.items():
        if path in served:
            paths.setdefault(path, {})[verb] = _plain_operation(verb, path, summary)
    schemas: Json = {"Error": _ERROR}
    for described in (*(schema.params for schema in METHODS), *(schema for schema, _ in _OPERATOR_BODIES.values())):
        # pydantic puts shared schemas into each document; references point to the components of this one.
        schemas |= described.get("$defs", {})
    return {
        "openapi": "3.1.0",
        "info": {
            # The version of the protocol. The release of the gateway is for operators only.
            "title": "rcp-gateway",
            "version": str(PROTOCOL_VERSION),
            "description": DESCRIPTION,
        },
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": _SECURITY_SCHEMES},
        "security": [{}, {"apiKey": []}],
    }


def docs_routes(document: Json) -> APIRouter:
    """The routes of the document and of its page, which are rendered once."""
    router = APIRouter(include_in_schema=False)
    contents = {
        "/openapi.json": (envelope.dumps(document), "application/json"),
        "/docs": (docs_page(document).encode(), "text/html; charset=utf-8"),
    }
    for path, (content, media_type) in contents.items():

        async def answer(content: bytes = content, media_type: str = media_type) -> Response:
            return Response(content, headers=PAGE_HEADERS, media_type=media_type)

        router.add_api_route(path, _without_params(answer), methods=READ_METHODS)
    return router


def _without_params(answer: Any) -> Any:
    """`answer` without its default arguments, which FastAPI would take for query parameters."""

    async def endpoint() -> Response:
        found: Response = await answer()
        return found

    return endpoint


def _rcp_operation(schema: MethodSchema) -> Json:
    """The operation of one RCP method: its request and response with an example of each."""
    gate = gate_of(schema.name)
    params = _without_definitions(schema.params)
    request = {
        "type": "object",
        "required": ["jsonrpc", "id", "method", *(["params"] if params.get("required") else [])],
        "properties": {"jsonrpc": _VERSION, "id": _ID, "method": {"const": schema.name}, "params": params},
    }
    asked = {"jsonrpc": "2.0", "id": 1, "method": schema.name, "params": schema.example_params}
    answered = {"jsonrpc": "2.0", "id": 1, "result": schema.example_result}
    needs = f" Needs the capability `{gate}` of at least one engine (-32003 without)." if gate else ""
    return {
        "tags": ["RCP"],
        "summary": schema.summary,
        "description": f"RCP §{schema.section}.{needs}",
        "operationId": schema.name.replace("/", "_"),
        "requestBody": {"required": True, "content": {"application/json": {"schema": request, "example": asked}}},
        "responses": _rcp_responses(schema.result, answered),
    }


def _without_definitions(schema: Json) -> Json:
    return {key: value for key, value in schema.items() if key != "$defs"}


def _any_rcp_operation() -> Json:
    """The operation for all methods, batches and vendor extensions."""
    message = {"type": "object", "required": ["jsonrpc", "method"]}
    request = {"oneOf": [message, {"type": "array", "items": message, "minItems": 1}]}
    example = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {}}
    return {
        "tags": ["RCP"],
        "summary": "Any RCP method, an extension `x-<vendor>/<name>`, or a batch.",
        "description": "A batch is answered with an array, or with 204 if it holds notifications only.",
        "operationId": "rcp",
        "requestBody": {"required": True, "content": {"application/json": {"schema": request, "example": example}}},
        "responses": _rcp_responses({"type": "object"}, {"jsonrpc": "2.0", "id": 1, "result": {}}),
    }


def _rcp_responses(result: Json, example: Json) -> Json:
    response = {
        "type": "object",
        "required": ["jsonrpc", "id"],
        "properties": {
            "jsonrpc": _VERSION,
            "id": _ID,
            "result": result,
            "error": {"$ref": "#/components/schemas/Error"},
        },
        "oneOf": [{"required": ["result"]}, {"required": ["error"]}],
    }
    refused = {
        "400": "The body is not JSON-RPC.",
        "401": "The credentials are missing or invalid (-32012).",
        "403": "The caller may not do this (-32012).",
        "413": "The body is too large (-32013).",
        "429": "A limit of this caller is reached (-32011, `Retry-After`).",
        "503": "The gateway is at its limit (-32011, `Retry-After`) or shutting down (-32010).",
    }
    failure = {"application/json": {"schema": {**response, "required": ["jsonrpc", "id", "error"], "oneOf": [{}]}}}
    return {
        "200": {
            "description": "The response.",
            "content": {"application/json": {"schema": response, "example": example}},
        },
        **{status: {"description": reason, "content": failure} for status, reason in refused.items()},
    }


def _plain_operation(verb: str, path: str, summary: str) -> Json:
    """The operation of a probe or of an operator's endpoint."""
    media_type = "text/plain" if path == "/metrics" else "application/json"
    operation: Json = {
        "tags": ["Operators" if path.startswith(("/admin", "/engines")) else "Probes"],
        "summary": summary,
        "operationId": f"{verb}{path.replace('/', '_')}",
        "responses": {"200": {"description": summary, "content": {media_type: {"schema": {}}}}},
    }
    # `/engines` is open to all callers, and shows each its own engines.
    if path.startswith("/admin"):
        operation["description"] = (
            "For operators: requires the role `admin`, or without authentication a request from this machine."
        )
        operation["responses"]["403"] = {"description": "The caller is not an operator."}
    if path in ("/readyz", "/metrics"):
        status, reason = (
            ("503", "Not ready.") if path == "/readyz" else ("403", "`metrics.access` requires an operator.")
        )
        operation["responses"][status] = {"description": reason}
    if verb == "post":
        schema, example = _OPERATOR_BODIES[path]
        schema = _without_definitions(schema)
        content = {"application/json": {"schema": schema, "example": example}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


_OPERATOR_BODIES: Mapping[str, tuple[Json, Json]] = {
    "/admin/explain": (
        {"type": "object", "required": ["query"], "description": "The params of a `retrieve`."},
        {"query": "key rotation", "k": 5},
    ),
    "/admin/fuse": (
        Refusion.model_json_schema(ref_template="#/components/schemas/{model}"),
        {"lists": [{"engine": "docs", "hits": [{"key": "a", "score": 1.0}]}], "k": 1},
    ),
    "/admin/actions": (
        {
            "type": "object",
            "required": ["action", "engine"],
            "properties": {
                "action": {"enum": ["handshake", "off", "on", "reset", "drill", "end_drill"]},
                "engine": {"type": "string"},
            },
        },
        {"action": "reset", "engine": "docs"},
    ),
}
"""Path -> (schema, example) of the request body."""


def docs_page(document: Json) -> str:
    """The document as one HTML page with a collapsible entry for each operation."""
    entries = [
        _entry(verb, path, operation)
        for path, operations in document["paths"].items()
        for verb, operation in operations.items()
    ]
    info = document["info"]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>rcp-gateway API</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="stylesheet" href="/console.css"></head><body><main>'
        f"<h1>{escape(info['title'])} API</h1><p>{_prose(info['description'])}</p>"
        '<p>The same as <a href="/openapi.json">OpenAPI</a>.</p>'
        f"{''.join(entries)}</main></body></html>"
    )


def _entry(verb: str, path: str, operation: Json) -> str:
    parts = [f"<p>{_prose(operation[key])}</p>" for key in ("description",) if key in operation]
    parts += _content("Request", operation.get("requestBody", {}))
    parts += _content("Response", operation["responses"]["200"])
    others = "".join(
        f"<li>{escape(status)}: {_prose(response['description'])}</li>"
        for status, response in operation["responses"].items()
        if status != "200"
    )
    if others:
        parts.append(f"<ul>{others}</ul>")
    heading = f"<code>{escape(verb.upper())} {escape(path)}</code> {_prose(operation['summary'])}"
    return f"<details><summary>{heading}</summary>{''.join(parts)}</details>"


def _content(title: str, body: Json) -> list[str]:
    parts = []
    for media in body.get("content", {}).values():
        for name in ("example", "schema"):
            if media.get(name):
                text = json.dumps(media[name], indent=2, ensure_ascii=False)
                parts.append(f"<h3>{title} {name}</h3><pre>{escape(text)}</pre>")
    return parts


def _prose(text: str) -> str:
    """Text with `code` in backticks as HTML."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if index % 2 else piece for index, piece in enumerate(pieces))
