"""`/engines/{id}/rcp`: one engine by itself through the gateway, its own advertisement, params, scores and order."""

import asyncio
import json
from typing import Any

import pytest

from tests.gateway.conftest import Starter
from tests.support.listening_gateway import asking, listening, question
from tests.support.ports import free_port
from tests.support.running_gateway import Json, entry, running, until
from tests.support.scripted_engine import Bytes, RpcFault, ScriptedEngine, hang, hit

DOCS = {"base": "/engines/docs/rcp"}
CAPABILITIES: Json = {
    "retrieve": {"maxK": 7, "modes": ["sparse"], "scoreScale": "bm25"},
    "rerank": {"methods": ["cross-encoder"]},
    "x-acme": {"rank": True},
    "log": {"levels": ["info"]},
    "graph": None,
}


async def test_it_is_that_engine_and_no_other(engines: Starter) -> None:
    """Params, hits, scores and their order are as the engine has them; nobody else is asked."""
    scrambled = [hit("b", 0.2, 0.1), hit("a", 17.5, 0.9), hit("b", 3, extra={"kept": [1]})]
    docs, other = await engines(results=scrambled), await engines()
    docs.answers["retrieve"] = {"hits": scrambled, "usage": {"candidates": 3}, "_meta": {"own": 1}, "unknown": True}
    async with running([entry("docs", docs, idNamespace="d"), entry("other", other)]) as gateway:
        params = {"query": "q", "k": 3, "minScore": 9, "cursor": "c", "x-gateway": {"theirs": 1}, "nested": {"a": None}}
        result = await gateway.result("retrieve", params, **DOCS)
    assert result["hits"] == scrambled
    assert (result["usage"], result["unknown"], result["_meta"]["own"]) == ({"candidates": 3}, True, 1)
    (report,) = result["_meta"]["x-gateway"]["engines"]
    assert (report["id"], report["status"], report["attempts"]) == ("docs", "ok", 1)
    (asked,) = docs.requests()
    assert {key: value for key, value in asked.params.items() if key != "_meta"} == params
    assert other.requests() == []


async def test_hits_that_nobody_could_read_do_not_pass(engines: Starter) -> None:
    """What is no hit is left out here as in the federation, noted and counted; without `hits` it is no answer."""
    docs = await engines(results=[hit("a", 0.2), {"id": "b"}, hit("c", 0.9)])
    async with running([entry("docs", docs)]) as gateway:
        result = await gateway.result("retrieve", {"query": "q"}, **DOCS)
        assert [found["id"] for found in result["hits"]] == ["a", "c"]
        assert result["usage"]["notes"] == [
            "docs: 1 malformed hit(s) dropped (a hit needs a usable id and a numeric score)"
        ]
        assert await gateway.metric("rcp_gateway_hits_dropped_total", engine="docs", reason="malformed") == 1
        docs.answers["retrieve"] = {"answers": []}
        assert (await gateway.error("retrieve", {"query": "q"}, **DOCS))["code"] == -32010
        assert await gateway.metric("rcp_gateway_legs_total", engine="docs", outcome="protocol") == 1


async def test_it_describes_itself_as_that_engine(engines: Starter) -> None:
    """`initialize` and `info` tell the engine's own server and capabilities, without what does not reach through."""
    docs = await engines(capabilities=CAPABILITIES, name="docs-server")
    async with running([entry("docs", docs)]) as gateway:
        for method in ("initialize", "info"):
            result = await gateway.result(method, **DOCS)
            assert result["server"]["name"] == "docs-server"
            assert result["capabilities"] == {key: CAPABILITIES[key] for key in ("retrieve", "rerank", "x-acme")}
            assert result["_meta"]["x-gateway"]["engine"] == "docs"
            assert result["_meta"]["conformance"] == "L0"
        assert await gateway.result("ping", {"nonce": "n"}, **DOCS) == {"nonce": "n"}
        assert await gateway.result("shutdown", **DOCS) == {}
        assert (await gateway.error("initialize", {"protocolVersion": 0}, **DOCS))["code"] == -32002
    assert docs.requests("shutdown") == []


async def test_the_level_is_what_the_engine_claims(engines: Starter) -> None:
    """The gateway claims no more than the lowest level for an engine that claims none, whatever it advertises."""
    docs = await engines()
    said = {"protocolVersion": 1, "server": {"name": "s", "version": "1"}, "capabilities": {"retrieve": {}}}
    docs.answers["initialize"] = docs.answers["info"] = {**said, "_meta": {"conformance": "L2"}}
    async with running([entry("docs", docs)]) as gateway:
        assert (await gateway.result("info", **DOCS))["_meta"]["conformance"] == "L2"


async def test_every_method_it_advertises_is_passed(engines: Starter) -> None:
    """A method reaches the engine if it advertises it: else -32003, or -32004 if it is not of RCP."""
    docs = await engines(capabilities=CAPABILITIES)
    docs.answers |= {"rerank": {"scores": [1, 2]}, "x-acme/rank": {"ranked": ["a"]}}
    async with running([entry("docs", docs)]) as gateway:
        rerank = {"query": "q", "passages": ["a", "b"]}
        assert (await gateway.result("rerank", rerank, **DOCS))["scores"] == [1, 2]
        assert (await gateway.result("x-acme/rank", {"any": "thing"}, **DOCS))["ranked"] == ["a"]
        for method, code in (("graph", -32003), ("embed", -32003), ("x-other/rank", -32003), ("nonsense", -32004)):
            assert (await gateway.error(method, **DOCS))["code"] == code
        assert await gateway.metric("rcp_gateway_legs_total", engine="docs", outcome="ok") == 2
    assert docs.requests("x-acme/rank")[0].params["any"] == "thing"


async def test_writing_is_passed_only_where_it_is_allowed(engines: Starter) -> None:
    """`index` is there only with `index.enabled`; an addition is sent once, a deletion may be sent twice."""
    docs = await engines(capabilities={"retrieve": {}, "index": {"writable": True}})
    docs.answers |= {"index/add": {"ids": ["a"]}, "index/delete": {"deleted": 1}}
    add = {"documents": [{"text": "t"}]}
    async with running([entry("docs", docs)]) as gateway:
        assert "index" not in (await gateway.result("info", **DOCS))["capabilities"]
        assert (await gateway.error("index/add", add, **DOCS))["code"] == -32003
    assert docs.requests("index/add") == []
    async with running([entry("docs", docs)], {"index": {"enabled": True}}) as gateway:
        assert (await gateway.result("info", **DOCS))["capabilities"]["index"] == {"writable": True}
        assert (await gateway.result("index/add", add, **DOCS))["ids"] == ["a"]
        docs.answers |= {"index/add": Bytes(b""), "index/delete": Bytes(b"")}
        for method, params, times in (("index/add", add, 2), ("index/delete", {"ids": ["a"]}, 2)):
            await gateway.retrieve()  # leaves an open connection
            assert (await gateway.error(method, params, **DOCS))["code"] == -32010
            assert len(docs.requests(method)) == times, method


async def test_deadline_and_path_hold(engines: Starter) -> None:
    """The engine gets strictly less time than the caller gave, one level less depth, and the path with our identity."""
    docs = await engines()
    async with running([entry("docs", docs)], {"server": {"id": "us"}}) as gateway:
        meta = {"deadlineMs": 9000, "federation": {"depth": 2, "path": ["a"]}, "traceId": "t", "progressToken": 1}
        await gateway.result("retrieve", {"query": "q", "_meta": meta}, **DOCS)
        sent = docs.requests()[0].params["_meta"]
        assert 0 < sent.pop("deadlineMs") < 9000
        assert sent == {"federation": {"depth": 1, "path": ["a", "us"]}, "traceId": "t"}
        for stop in ({"depth": 0}, {"path": ["us"]}):
            error = await gateway.error("retrieve", {"query": "q", "_meta": {"federation": stop}}, **DOCS)
            assert (error["code"], error["data"]["retryable"]) == (-32010, False)
        docs.answers["retrieve"] = hang
        error = await gateway.error("retrieve", {"query": "q", "_meta": {"deadlineMs": 60}}, **DOCS)
        assert error["code"] == -32014
        bad = await gateway.error("retrieve", {"query": "q", "_meta": {"deadlineMs": 0}}, **DOCS)
        assert (bad["code"], bad["data"]["field"]) == (-32602, "_meta.deadlineMs")
    assert len(docs.requests()) == 2


@pytest.mark.parametrize("code", [-32602, -32005, -32003, -32015, -32011, -32603, -32099])
async def test_its_own_error_is_the_answer(engines: Starter, code: int) -> None:
    """Whatever code the engine answers with is the caller's, with the field it names."""
    docs = await engines()
    docs.answers["retrieve"] = RpcFault(code, "because", {"field": "filter.x"})
    async with running([entry("docs", docs)]) as gateway:
        error = await gateway.error("retrieve", {"query": "q"}, **DOCS)
    assert error["code"] == code
    assert "because" in error["message"]
    if code in (-32602, -32005):
        assert error["data"]["field"] == "filter.x"


async def test_an_engine_that_is_down(engines: Starter) -> None:
    """-32010 while it is down, from `initialize` too, so that a selector goes on; `info` still describes it."""
    docs = await engines(free_port())
    settings = {"engines": {"health_interval_seconds": 600}}
    async with running(
        [entry("docs", docs), entry("never", "http://127.0.0.1:9/rcp")], settings, reach=False
    ) as gateway:
        error = await gateway.error("initialize", base="/engines/never/rcp")
        assert (error["code"], error["data"]["retryable"]) == (-32010, True)
        assert (await gateway.error("info", base="/engines/never/rcp"))["code"] == -32010
        assert (await gateway.error("retrieve", {"query": "q"}, base="/engines/never/rcp"))["code"] == -32010
        await until(lambda: gateway.state.engines.engines[0].up)
        await gateway.result("initialize", **DOCS)
        await docs.stop()
        assert (await gateway.error("retrieve", {"query": "q"}, **DOCS))["code"] == -32010
        for method in ("initialize", "ping"):
            assert (await gateway.error(method, **DOCS))["code"] == -32010
        assert (await gateway.result("info", **DOCS))["server"]["name"] == "scripted"


async def test_ids_with_slashes_and_methods_with_slashes(engines: Starter) -> None:
    """Ids and methods both hold slashes; the engines there are decide which is which."""
    team = await engines(capabilities={"retrieve": {}, "x-acme": {}, "rerank": {}}, name="team/docs")
    odd = await engines(name="team/docs/rcp/odd")
    team.answers["x-acme/rcp"] = {"ok": 1}
    async with running([entry("team/docs", team), entry("team/docs/rcp/odd", odd)]) as gateway:
        for path, name in (("team/docs", "team/docs"), ("team/docs/rcp/odd", "team/docs/rcp/odd")):
            assert (await gateway.result("info", base=f"/engines/{path}/rcp"))["server"]["name"] == name
        message = {"jsonrpc": "2.0", "id": 1, "method": "info"}
        assert (await gateway.post(message, "/engines/team/docs/rcp")).json()["result"]["server"]["name"] == "team/docs"
        assert (await gateway.post(message, "/engines/team%2Fdocs/rcp/info")).json()["id"] == 1
        assert (await gateway.result("x-acme/rcp", base="/engines/team/docs/rcp"))["ok"] == 1


@pytest.mark.parametrize("path", ["/engines/nobody/rcp", "/engines/nobody/rcp/retrieve", "/engines/off/rcp"])
async def test_an_engine_that_is_not_there_is_404(engines: Starter, path: str) -> None:
    """An unknown engine, or one that is disabled, is 404 with -32015."""
    off = entry("off", "http://127.0.0.1:9/rcp", enabled=False)
    async with running([entry("docs", await engines()), off]) as gateway:
        response = await gateway.post({"jsonrpc": "2.0", "id": 1, "method": "info"}, path)
        assert (response.status_code, response.json()["error"]["code"]) == (404, -32015)


async def test_framing_is_that_of_the_gateway(engines: Starter) -> None:
    """The same bounds, statuses, batches and notifications; the operator's list is where it was."""
    docs = await engines()
    async with running([entry("docs", docs)], {"server": {"max_body_bytes": 2048}}) as gateway:
        path = "/engines/docs/rcp"
        assert (await gateway.client.get("/engines")).json()["engines"][0]["id"] == "docs"
        assert (await gateway.client.get(path)).status_code == 405
        assert (await gateway.post(b" " * 3000, path)).status_code == 413
        assert (await gateway.post(b"{", path)).status_code == 400
        assert (await gateway.post({"jsonrpc": "2.0", "method": "ping"}, path)).status_code == 204
        assert (await gateway.client.get("/engines/docs")).status_code == 404
        wrong = (await gateway.post({"jsonrpc": "2.0", "id": 1, "method": "info"}, f"{path}/ping")).json()
        assert wrong["error"]["code"] == -32600
        batch = [{"jsonrpc": "2.0", "id": n, "method": "retrieve", "params": {"query": "q"}} for n in range(3)]
        answers = (await gateway.post(batch, path)).json()
        assert sorted(answer["id"] for answer in answers) == [0, 1, 2]
        assert all(len(answer["result"]["hits"]) == 3 for answer in answers)


async def test_catalog_lists_where_each_engine_is(engines: Starter) -> None:
    """With `server.public_url` each entry has its endpoint, else none."""
    docs = await engines()
    settings = {"server": {"public_url": "https://rcp.example/base/"}}
    async with running([entry("team/docs", docs)], settings) as gateway:
        (listed,) = (await gateway.result("catalog/list"))["engines"]
        assert listed["endpoint"] == {"transport": "http", "url": "https://rcp.example/base/engines/team/docs/rcp"}
    async with running([entry("team/docs", docs)]) as gateway:
        assert "endpoint" not in (await gateway.result("catalog/list"))["engines"][0]


async def test_events_end_with_the_answer() -> None:
    """A caller of events gets a stream that stays alive and ends with the engine's answer."""
    docs = await ScriptedEngine().start()
    release = asyncio.Event()

    async def slow(asked: Any) -> Json:
        await release.wait()
        return {"hits": [hit("a")]}

    docs.answers["retrieve"] = slow
    try:
        settings = {"server": {"sse_comment_seconds": 0.05}}
        async with (
            listening([entry("docs", docs)], settings) as (_, port),
            asking(port, question(), path="/engines/docs/rcp/retrieve") as caller,
        ):
            await caller.head()
            assert caller.headers["content-type"].startswith("text/event-stream")
            assert await caller.frame() == b": keep-alive"
            release.set()
            frame = await caller.frame()
            while frame is not None and frame.startswith(b":"):
                frame = await caller.frame()
            assert frame is not None
            assert json.loads(frame.removeprefix(b"data: "))["result"]["hits"] == [hit("a")]
            assert await caller.frame() is None
    finally:
        await docs.stop()


async def test_what_is_called_off_is_answered_once(engines: Starter) -> None:
    """`notifications/cancel` of the same session ends it, answered once with -32006."""
    docs = await engines()
    docs.answers["retrieve"] = hang
    headers = {"RCP-Session": "mine"}
    async with running([entry("docs", docs, timeoutMs=60_000)]) as gateway:
        message = {"jsonrpc": "2.0", "id": 9, "method": "retrieve", "params": {"query": "q"}}
        waiting = asyncio.create_task(gateway.post(message, "/engines/docs/rcp", headers))
        await until(lambda: bool(docs.requests()))
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancel", "params": {"id": 9}}
        await gateway.post(cancel, "/engines/docs/rcp", headers)
        assert (await waiting).json()["error"]["code"] == -32006
