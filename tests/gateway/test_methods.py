"""Every method that goes to one engine, through a whole gateway: what engines got over the wire, and what came back."""

import asyncio
import base64
import struct
from typing import Any

import pytest

from tests.support.ports import free_port
from tests.support.running_gateway import Json, entry, running, until
from tests.support.scripted_engine import Asked, Bytes, Http, RpcFault, hang

RERANKS: Json = {"rerank": {"methods": ["llm"], "maxCandidates": 10}}
EMBEDS: Json = {"embed": {"identity": "m", "dimension": 2, "batchLimit": 2, "encodings": ["f32-base64"]}}
WRITES: Json = {"index": {"writable": True}}
WRITING: Json = {"index": {"enabled": True}}
PASSAGES: Json = {"query": "q", "passages": ["a", "b"]}
DOCUMENT: Json = {"documents": [{"text": "t"}]}
NAMED: Json = {"documents": [{"text": "t", "id": "x"}]}

CALLS: dict[str, tuple[Json, Json, Json]] = {
    "embed": ({"embed": {}}, {"inputs": ["x"]}, {"vectors": [[1.0]]}),
    "embed/sparse": ({"sparseEmbed": {}}, {"texts": ["x"]}, {"sparse": [{"indices": [1], "values": [0.5]}]}),
    "embed/multi": ({"multiVector": {}}, {"inputs": ["x"]}, {"matrices": [[[1.0]]], "dimension": 1}),
    "rerank": (RERANKS, PASSAGES, {"scores": [0.1, 0.2]}),
    "query/transform": ({"transform": {"methods": ["hyde"]}}, {"query": "q", "method": "hyde"}, {"queries": ["r"]}),
    "index/add": (WRITES, NAMED, {"ids": ["x"]}),
    "index/delete": (WRITES, {"ids": ["x"]}, {"deleted": 1}),
    "x-acme/do": ({"x-acme": {}}, {"a": 1}, {"b": 2}),
}
"""Method -> (capabilities, params, result)."""

each_method = pytest.mark.parametrize("method", CALLS)


def series(method: str) -> str:
    """The label that a method has in the metrics."""
    return "x-*" if method.startswith("x-") else method


@each_method
async def test_a_method_is_advertised_asked_answered_and_counted(engines: Any, method: str) -> None:
    """The whole way: capability, `_meta`, params, result with its report, request and leg in the metrics."""
    capabilities, params, answer = CALLS[method]
    engine = await engines(capabilities=capabilities)
    engine.answers[method] = answer
    async with running([entry("e", engine)], WRITING) as gateway:
        assert capabilities.keys() <= (await gateway.result("info"))["capabilities"].keys()
        meta = {"deadlineMs": 9000, "federation": {"depth": 2, "path": ["up"]}, "traceId": "t", "progressToken": 1}
        result = await gateway.result(method, {**params, "_meta": meta})
        identity = gateway.state.membership.current().identity
        assert await gateway.metric("rcp_gateway_requests_total", method=series(method), outcome="ok") == 1
        assert await gateway.metric("rcp_gateway_legs_total", engine="e", outcome="ok") == 1
    assert {key: result[key] for key in answer} == answer
    (told,) = result["_meta"]["x-gateway"]["engines"]
    assert (told["id"], told["status"], told["attempts"]) == ("e", "ok", 1)
    assert result["_meta"]["x-gateway"]["id"] == identity
    (asked,) = engine.requests(method)
    assert asked.path == f"/rcp/{method}"
    sent = asked.params.pop("_meta")
    assert sent.pop("deadlineMs") < 9000
    assert sent == {"federation": {"depth": 1, "path": ["up", identity]}, "traceId": "t"}
    assert {key: asked.params[key] for key in params} == params
    assert "x-gateway" not in asked.params


@each_method
async def test_a_method_nobody_offers(engines: Any, method: str) -> None:
    """-32003, before the params are looked at; a name that is no method of RCP at all is -32004."""
    engine = await engines()
    async with running([entry("e", engine)], WRITING) as gateway:
        assert (await gateway.error(method, {"inputs": 7, "x-gateway": 7}))["code"] == -32003
        assert (await gateway.error(f"{method}/nonsense" if "x-" not in method else "x-acme"))["code"] == -32004
    assert not engine.requests(method)


@each_method
async def test_a_method_whose_params_are_wrong(engines: Any, method: str) -> None:
    """Once it is offered, -32602 with the field; the engines hear nothing of it."""
    capabilities, params, _ = CALLS[method]
    engine = await engines(capabilities=capabilities)
    async with running([entry("e", engine)], WRITING) as gateway:
        for wrong, field in (
            ({"x-gateway": {"engines": []}}, "x-gateway.engines"),
            ({"x-gateway": {"engines": ["zz"]}}, "x-gateway.engines"),
            ({"x-gateway": 7}, "x-gateway"),
            ({"_meta": {"deadlineMs": 0}}, "_meta.deadlineMs"),
            ({"_meta": {"federation": {"path": 7}}}, "_meta.federation.path"),
        ):
            error = await gateway.error(method, {**params, **wrong})
            assert (error["code"], error["data"]["field"]) == (-32602, field)
    assert not engine.requests(method)


@each_method
async def test_an_engine_that_is_down(engines: Any, method: str) -> None:
    """It keeps its advertisement, and the call is -32010 that names it and may be tried again."""
    capabilities, params, _ = CALLS[method]
    engine = await engines(free_port(), capabilities=capabilities)
    async with running([entry("e", engine)], WRITING) as gateway:
        await engine.stop()
        assert capabilities.keys() <= (await gateway.result("info"))["capabilities"].keys()
        error = await gateway.error(method, params)
        assert await gateway.metric("rcp_gateway_requests_total", method=series(method), outcome="error") == 1
    assert (error["code"], error["data"]["retryable"]) == (-32010, True)
    assert error["data"]["notes"][0].startswith("e: connect")


@each_method
async def test_the_callers_time_is_over(engines: Any, method: str) -> None:
    """An engine that hangs, and a caller in haste: -32014, and the call is off the engine's hands."""
    capabilities, params, _ = CALLS[method]
    engine = await engines(capabilities=capabilities)
    engine.answers[method] = hang
    async with running([entry("e", engine)], WRITING) as gateway:
        error = await gateway.error(method, {**params, "_meta": {"deadlineMs": 60}})
        assert gateway.state.engines.engines[0].semaphore.in_flight == 0
    assert error["code"] == -32014


async def test_before_anybody_is_reached(engines: Any) -> None:
    """Nobody knows yet what will be offered: -32010, worth asking again; but writing is off whoever comes."""
    async with running([entry("e", "http://127.0.0.1:1/rcp")], reach=False) as gateway:
        error = await gateway.error("rerank", PASSAGES)
        assert (error["code"], error["data"]["retryable"]) == (-32010, True)
        assert (await gateway.error("index/add", NAMED))["code"] == -32003


@pytest.mark.parametrize(
    "answer",
    [
        Bytes(b""),
        Http(503),
        Http(200, b"<html>"),
        RpcFault(-32010),
        RpcFault(-32011),
        RpcFault(-32014),
        RpcFault(-32603),
    ],
    ids=repr,
)
async def test_the_next_engine_answers(engines: Any, answer: Any) -> None:
    """Whatever fails on the way to the first engine, the second one is asked, and the answer says so."""
    first, second = await engines(capabilities=RERANKS), await engines(capabilities=RERANKS)
    first.answers["rerank"], second.answers["rerank"] = answer, {"results": [{"index": 1, "score": 3}]}
    async with running([entry("a", first), entry("b", second)]) as gateway:
        result = await gateway.result("rerank", PASSAGES)
        assert await gateway.metric("rcp_gateway_requests_total", method="rerank", outcome="degraded") == 1
    assert result["_meta"]["degraded"] == ["a"]
    assert (result["order"], result["scores"]) == ([1], [3, 3])


async def test_an_engines_refusal_is_handed_on(engines: Any) -> None:
    """Its code, what it says and the field it names; and nobody else is asked."""
    first, second = await engines(capabilities=RERANKS), await engines(capabilities=RERANKS)
    first.answers["rerank"] = RpcFault(-32602, "'passages' must be short", {"field": "passages", "secret": 1})
    async with running([entry("a", first), entry("b", second)]) as gateway:
        error = await gateway.error("rerank", PASSAGES)
    assert error["code"] == -32602
    assert "must be short" in error["message"]
    assert error["data"]["field"] == "passages"
    assert "secret" not in error["data"]
    assert not second.requests("rerank")


async def test_priority_and_names_decide_who_is_asked(engines: Any) -> None:
    """The highest priority first; `x-gateway.engines` restricts, and one that is down counts as failed."""
    started = [await engines(capabilities=RERANKS) for _ in range(3)]
    for engine in started:
        engine.answers["rerank"] = {"scores": [1, 2]}
    low, high, down = started
    async with running(
        [entry("low", low), entry("high", high, priority=5), entry("down", down, priority=1)]
    ) as gateway:
        await gateway.result("rerank", PASSAGES)
        assert (len(high.requests("rerank")), len(low.requests("rerank"))) == (1, 0)
        await down.stop()
        result = await gateway.result("rerank", {**PASSAGES, "x-gateway": {"engines": ["down", "low"]}})
        assert result["_meta"]["degraded"] == ["down"]
        assert (len(high.requests("rerank")), len(low.requests("rerank"))) == (1, 1)
        error = await gateway.error("rerank", {**PASSAGES, "x-gateway": {"engines": ["down"]}})
    assert error["code"] == -32010


async def test_a_large_batch_comes_back_in_order(engines: Any) -> None:
    """Split by the engine's `batchLimit`, sent side by side, joined; binary vectors measured on the way."""
    engine = await engines(capabilities=EMBEDS)
    packed = [base64.b64encode(struct.pack("<2f", number, 0.5)).decode() for number in range(7)]
    waiting: list[list[str]] = []
    together = asyncio.Event()

    async def embeds(asked: Asked) -> Json:
        waiting.append(asked.params["inputs"])
        if len(waiting) == 4:
            together.set()
        await together.wait()
        vectors = [packed[int(text)] for text in asked.params["inputs"]]
        return {"vectors": vectors, "encoding": "f32-base64", "dimension": 2}

    engine.answers["embed"] = embeds
    async with running([entry("e", engine)]) as gateway:
        inputs = [f"{number}" for number in range(7)]
        result = await gateway.result("embed", {"inputs": inputs, "encoding": "f32-base64"})
        assert result["vectors"] == packed
        assert sorted(map(len, waiting)) == [1, 2, 2, 2]
        engine.answers["embed"] = {"vectors": [packed[0][:-4]], "encoding": "f32-base64", "dimension": 2}
        error = await gateway.error("embed", {"inputs": ["0"], "encoding": "f32-base64"})
    assert error["code"] == -32010


async def test_no_other_space_takes_over(engines: Any) -> None:
    """Vectors of another model in place of those asked for would be worse than none."""
    first, other = await engines(capabilities=EMBEDS), await engines(capabilities={"embed": {"identity": "n"}})
    async with running([entry("a", first), entry("b", other)]) as gateway:
        assert (await gateway.result("info"))["capabilities"]["embed"] == EMBEDS["embed"]
        await first.stop()
        assert (await gateway.error("embed", {"inputs": ["x"]}))["code"] == -32010
    assert not other.requests("embed")


async def test_writing_is_off_by_default(engines: Any) -> None:
    """`index.enabled` is off: neither advertised nor sent to anybody (B125)."""
    engine = await engines(capabilities=WRITES)
    engine.answers["index/add"] = {"ids": ["x"]}
    async with running([entry("e", engine)]) as gateway:
        assert "index" not in (await gateway.result("info"))["capabilities"]
        for method in ("index/add", "index/delete"):
            assert (await gateway.error(method, {"documents": 7}))["code"] == -32003
    async with running([entry("e", engine)], WRITING) as gateway:
        assert (await gateway.result("info"))["capabilities"]["index"] == {"writable": True}
        assert (await gateway.result("index/add", NAMED))["ids"] == ["x"]
    assert len(engine.requests("index/add")) == 1


@pytest.mark.parametrize(
    ("params", "meta", "times"), [(DOCUMENT, {}, 1), (NAMED, {}, 2), (DOCUMENT, {"idempotencyKey": "k"}, 2)]
)
async def test_a_connection_that_dies_under_a_write(engines: Any, params: Json, meta: Json, times: int) -> None:
    """The engine closes a used connection on the request: asked once more only if twice is as good as once (B56)."""
    engine = await engines(capabilities=WRITES)
    engine.answers["index/add"] = Bytes(b"")
    async with running([entry("e", engine)], WRITING) as gateway:
        await gateway.result("ping")
        await gateway.state.engines.engines[0].check(1e9)
        error = await gateway.error("index/add", {**params, "_meta": meta})
    assert error["code"] == -32010
    assert len(engine.requests("index/add")) == times


async def test_documents_find_their_engine_by_their_prefix(engines: Any) -> None:
    """Added without it and known by it; deleted wherever they are."""
    docs, code = await engines(capabilities=WRITES), await engines(capabilities=WRITES)

    async def added(asked: Asked) -> Json:
        return {"ids": [document.get("id", "new") for document in asked.params["documents"]]}

    async def deleted(asked: Asked) -> Json:
        return {"deleted": len(asked.params["ids"])}

    for engine in (docs, code):
        engine.answers |= {"index/add": added, "index/delete": deleted}
    registry = [entry("docs", docs, idNamespace="d"), entry("code", code, idNamespace="c")]
    async with running(registry, WRITING) as gateway:
        ids = ["c:1", "d:1", "c:2"]
        result = await gateway.result("index/add", {"documents": [{"id": name, "text": "t"} for name in ids]})
        assert result["ids"] == ids
        assert (await gateway.result("index/delete", {"ids": ids}))["deleted"] == 3
        await gateway.result("index/add", DOCUMENT)
    assert [document["id"] for document in code.requests("index/add")[0].params["documents"]] == ["1", "2"]
    assert docs.requests("index/delete")[0].params["ids"] == ["1"]
    assert (len(code.requests("index/add")), len(docs.requests("index/add"))) == (2, 1)


async def test_the_advertised_index_is_that_of_the_default_writer(engines: Any) -> None:
    """What one call can rely on that names no engine: every option that is advertised works."""
    plain = await engines(capabilities={"index": {"writable": True}})
    able = await engines(capabilities={"index": {"writable": True, "chunking": True}})
    able.answers["index/add"] = {"ids": ["x"]}
    async with running([entry("plain", plain, priority=5), entry("able", able)], WRITING) as gateway:
        assert (await gateway.result("info"))["capabilities"]["index"] == {"writable": True}
    async with running([entry("plain", plain, priority=5), entry("able", able, writer=True)], WRITING) as gateway:
        assert (await gateway.result("info"))["capabilities"]["index"] == {"writable": True, "chunking": True}
        await gateway.result("index/add", {**DOCUMENT, "chunk": True})
    assert plain.requests("index/add") == []


async def test_a_caller_that_leaves_takes_its_call_along(engines: Any) -> None:
    """Hanging up cancels the call at the engine, for every method."""
    engine = await engines(capabilities=RERANKS)
    engine.answers["rerank"] = hang
    async with running([entry("e", engine)]) as gateway:
        call = asyncio.create_task(gateway.call("rerank", PASSAGES))
        await until(lambda: bool(engine.requests("rerank")))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: gateway.state.engines.engines[0].semaphore.in_flight == 0)
        assert await gateway.metric("rcp_gateway_legs_total", engine="e", outcome="cancelled") == 1


async def test_a_caller_may_call_its_own_call_off(engines: Any) -> None:
    """`notifications/cancel` ends any method's legs, and the call is answered once, with -32006."""
    engine = await engines(capabilities=RERANKS)
    engine.answers["rerank"] = hang
    session = {"RCP-Session": "s"}
    async with running([entry("e", engine)]) as gateway:
        message = {"jsonrpc": "2.0", "id": 7, "method": "rerank", "params": PASSAGES}
        call = asyncio.create_task(gateway.post(message, headers=session))
        await until(lambda: bool(engine.requests("rerank")))
        await gateway.post({"jsonrpc": "2.0", "method": "notifications/cancel", "params": {"id": 7}}, headers=session)
        answer = (await call).json()
    assert (answer["id"], answer["error"]["code"]) == (7, -32006)


async def test_what_is_served_is_what_conformance_counts(engines: Any) -> None:
    """A reranker on top of L1 makes L2, for it can really be called; alone it is L0."""
    full = {
        "retrieve": {"maxK": 50, "modes": ["dense", "sparse", "hybrid"]},
        "filter": {"fields": {"lang": "keyword"}},
        "citations": {},
    }
    plain, judge = await engines(capabilities=full), await engines(capabilities=RERANKS)
    async with running([entry("plain", plain), entry("judge", judge)]) as gateway:
        assert (await gateway.result("info"))["_meta"]["conformance"] == "L2"
    async with running([entry("judge", judge)]) as gateway:
        assert (await gateway.result("info"))["_meta"]["conformance"] == "L0"


async def test_a_refusal_reveals_no_secret(engines: Any) -> None:
    """An engine that quotes its own credentials in what it refuses does not make us pass them on (B102)."""
    engine = await engines(capabilities=RERANKS)
    engine.answers["rerank"] = RpcFault(-32602, "no s3cret-token", {"field": "s3cret-token"})
    registry = [entry("e", engine, headers={"Authorization": "Bearer s3cret-token"})]
    async with running(registry) as gateway:
        error = await gateway.error("rerank", PASSAGES)
    assert error["code"] == -32602
    assert error["data"]["field"] == "***"
    assert "s3cret-token" not in f"{error}"
