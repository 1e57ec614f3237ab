"""What engines are sent besides the question, what they may quote of it, and what their connections may still bring."""

import json
from typing import Any

import pytest

from tests.support.log_lines import own_log
from tests.support.running_gateway import Json, entry, running
from tests.support.scripted_engine import DEFAULT_CAPABILITIES, Asked, Bytes, Http, RpcFault, hits


def message(method: str = "retrieve", **params: Any) -> Json:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"query": "q", **params}}


@pytest.mark.parametrize("client", ["http", "httpx"])
@pytest.mark.parametrize("path", ["/rcp", "/engines/e/rcp"])
async def test_callers_request_id_reaches_engines(engine: Any, client: str, path: str) -> None:
    """In the header and in `_meta`, for every method of every call; one that is not sound is not passed on."""
    async with running([entry("e", engine, client=client)]) as gateway:
        for sent in ("order-7/a.b", "not sound", "x" * 200, None):
            headers = {} if sent is None else {"x-request-id": sent, "traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
            await gateway.post(message(), path, headers)
        await gateway.post(message(_meta={"requestId": "own"}), path, {"x-request-id": "order-8"})
    seen = [(asked.headers.get("x-request-id"), asked.params["_meta"].get("requestId")) for asked in engine.requests()]
    assert seen == [("order-7/a.b",) * 2, *[(None, None)] * 3, ("order-8", "own")]
    assert all("traceparent" in asked.headers for asked in engine.requests()[:3])


SECRET = "s3cr3t-t0k3n-value"


async def test_secret_quoted_by_an_engine_is_masked_everywhere(engines: Any) -> None:
    """In notes, in names, in capabilities, in views and in the log; what a hit says is the engine's data."""
    quoting: Json = {**DEFAULT_CAPABILITIES, "x-acme": {"key": SECRET, SECRET: ["a", SECRET]}}
    engine = await engines(name=f"docs {SECRET}", capabilities=quoting)
    well = await engines()
    entries = [
        entry("e", f"{engine.url}?key={SECRET}", headers={"Authorization": f"Bearer {SECRET}"}),
        entry("w", well),
    ]
    told: list[str] = []
    with own_log() as log:
        async with running(entries) as gateway:
            for answer in (
                {"hits": hits("a"), "usage": {"notes": [f"quoting {SECRET}", 7]}},
                *[RpcFault(code, f"no {SECRET}") for code in (-32603, -32010, -32602)] * 6,
            ):
                engine.answers["retrieve"] = answer
                told.append(json.dumps(await gateway.retrieve()))
                told.append((await gateway.post(message(), "/engines/e/rcp")).text)
            for method in ("catalog/list", "info"):
                told.append(json.dumps(await gateway.result(method)))
            for path in ("/engines", "/admin/engines", "/metrics"):
                told.append((await gateway.client.get(path)).text)
        assert "breaker_opened" in log.text
    assert SECRET not in log.text
    assert not [text for text in told if SECRET in text]
    assert "quoting ***" in told[0]


async def test_names_in_plain_headers_keep_their_meaning(engines: Any) -> None:
    """A header that says which index is meant makes nothing of that name unreadable in what is advertised."""
    capabilities: Json = {**DEFAULT_CAPABILITIES, "filter": {"fields": {"wiki-pages": "int"}}}
    engine = await engines(capabilities=capabilities)
    entries = [entry("e", f"{engine.url}?index=wiki-pages", headers={"X-Index": "wiki-pages", "X-Mode": "dense"})]
    async with running(entries) as gateway:
        said = (await gateway.result("info"))["capabilities"]
    assert said["filter"]["fields"] == {"wiki-pages": "int"}
    assert "dense" in said["retrieve"]["modes"]


async def test_vendors_method_that_nobody_knows_is_unknown(engines: Any) -> None:
    """-32004 as the engine says, which tells nobody to try again."""
    engine, other = await engines(capabilities={"x-acme": {}}), await engines(capabilities={"x-acme": {}})
    for each in (engine, other):
        each.answers["x-acme/rank"] = RpcFault(-32004, "no such method")
    async with running([entry("e", engine), entry("o", other)]) as gateway:
        error = await gateway.error("x-acme/rank", {})
        other.answers["x-acme/rank"] = {"ok": True}
        assert (await gateway.result("x-acme/rank", {}))["ok"]
    assert error["code"] == -32004
    assert not error["data"]["retryable"]


@pytest.mark.parametrize("client", ["http", "httpx"])
@pytest.mark.parametrize("stale", [200, 408])
async def test_late_answer_on_a_kept_connection_costs_nothing(engines: Any, client: str, stale: int) -> None:
    """The question before is answered once more, or given up, just as the next one is sent: it is asked anew."""
    engine = await engines()
    async with running([entry("e", engine, client=client, retries=0)]) as gateway:
        first = await gateway.retrieve()
        before = engine.requests()[-1].id
        body = json.dumps({"jsonrpc": "2.0", "id": before, "result": {"hits": hits("stale")}}).encode()
        raw = b"HTTP/1.1 %d Late\r\nContent-Length: %d\r\n\r\n%b" % (stale, len(body), body)
        script = [Bytes(raw, keep=True), {"hits": hits("b")}]

        async def late(asked: Asked) -> Any:
            return script.pop(0)

        engine.answers["retrieve"] = late
        second = await gateway.retrieve()
        engine.answers["retrieve"] = Http(200, body)
        third = await gateway.error("retrieve", {"query": "q"})
    assert [hit["id"] for hit in first["hits"]] == ["a", "b", "c"]
    assert [hit["id"] for hit in second["hits"]] == ["b"]
    assert "another request's id" in third["data"]["detail"]
