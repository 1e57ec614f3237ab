"""The published Python SDK on both sides, over HTTP: its servers as engines, its client as caller, method by method."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
import rcp

from tests.support.listening_gateway import listening
from tests.support.running_gateway import LEISURE_MS
from tests.support.sdk_engine import Json, SdkEngine

Asks = Callable[[rcp.Client], Any]


def embedder(name: str, identity: str) -> SdkEngine:
    """An SDK server that embeds a text as its length, two texts at a time."""
    engine = SdkEngine(
        name,
        {
            "embed": {"identity": identity, "dimension": 1, "batchLimit": 2, "encodings": ["json", "f32-base64"]},
            "sparseEmbed": {"identity": identity},
            "multiVector": {"identity": identity, "dimension": 1},
        },
    )

    def embed(params: Json) -> Json:
        vectors = [[float(len(text))] for text in params["inputs"]]
        payload, more = rcp.encode_vectors(vectors, params.get("encoding", "json"))
        return {"vectors": payload, **more}

    engine.on("embed", embed)
    engine.on(
        "embed/sparse", lambda params: {"sparse": [{"indices": [len(t)], "values": [1.0]} for t in params["texts"]]}
    )
    engine.on("embed/multi", lambda params: {"matrices": [[[float(len(t))]] for t in params["inputs"]], "dimension": 1})
    return engine


def judge(name: str) -> SdkEngine:
    """An SDK server that finds short passages better."""
    engine = SdkEngine(name, {"rerank": {"methods": ["llm"], "maxCandidates": 5}, "transform": {"methods": ["hyde"]}})
    engine.on("rerank", lambda params: {"scores": [-float(len(text)) for text in params["passages"]]})
    engine.on("query/transform", lambda params: {"queries": [params["query"]], "hypothetical": "h"})
    return engine


def library(name: str) -> SdkEngine:
    """An SDK server that keeps documents."""
    engine = SdkEngine(name, {"index": {"writable": True}})
    kept: dict[str, str] = {}

    def add(params: Json) -> Json:
        ids = [document.get("id", f"new{len(kept) + place}") for place, document in enumerate(params["documents"])]
        kept.update(zip(ids, (document["text"] for document in params["documents"]), strict=True))
        return {"ids": ids}

    engine.on("index/add", add)
    engine.on(
        "index/delete", lambda params: {"deleted": sum(kept.pop(name, None) is not None for name in params["ids"])}
    )
    return engine


@asynccontextmanager
async def federation(*engines: tuple[str, SdkEngine, Json]) -> AsyncIterator[Callable[[Asks], Any]]:
    """A gateway in front of these; asks it through an SDK client of its own."""
    with ExitStack() as servers:
        for _, engine, _ in engines:
            servers.enter_context(engine.serving())
        registry = [{"id": name, "url": engine.url, "timeoutMs": LEISURE_MS, **more} for name, engine, more in engines]
        async with listening(registry, {"index": {"enabled": True}}) as (_, port):

            async def ask(asks: Asks) -> Any:
                return await asyncio.to_thread(lambda: asks(rcp.connect_http(f"http://127.0.0.1:{port}/rcp")))

            yield ask


def code_of(asks: Asks) -> Asks:
    """The code of the error that asking comes to."""

    def asking(client: rcp.Client) -> int:
        with pytest.raises(rcp.RcpError) as error:
            asks(client)
        code: int = error.value.code
        return code

    return asking


async def test_embeddings() -> None:
    """Dense, sparse and multi-vector, in parts and binary, and the same space when the first engine is broken."""
    first, twin, other = embedder("first", "m"), embedder("twin", "m"), embedder("other", "n")
    async with federation(("a", first, {"priority": 3}), ("b", other, {"priority": 2}), ("c", twin, {})) as ask:
        texts = ["a", "bb", "ccc", "dddd", "eeeee"]
        assert await ask(lambda client: client.embed(texts)) == [[1.0], [2.0], [3.0], [4.0], [5.0]]
        assert sorted(len(params["inputs"]) for _, params in first.asked) == [1, 2, 2]
        binary = await ask(lambda client: client.call("embed", {"texts": texts[:3], "encoding": "f32-base64"}))
        assert rcp.decode_vectors(binary["vectors"], binary["encoding"], binary["dimension"]) == [[1.0], [2.0], [3.0]]
        sparse = await ask(lambda client: client.embed_sparse(["bb"]))
        assert sparse["sparse"] == [{"indices": [2], "values": [1.0]}]
        multi = await ask(lambda client: client.embed_multi(["bb"]))
        assert (multi["matrices"], multi["dimension"]) == ([[[2.0]]], 1)

        def broken(params: Json) -> Json:
            raise RuntimeError("out of memory")

        first.on("embed", broken)
        assert await ask(lambda client: client.embed(["a"])) == [[1.0]]
    assert [method for method, _ in twin.asked] == ["embed"]
    assert other.asked == []


async def test_reranking_and_transforming() -> None:
    """Scores for the SDK's client, the other form beside them; a refusal comes back with its code."""
    engine = judge("judge")
    async with federation(("judge", engine, {})) as ask:
        assert await ask(lambda client: client.rerank("q", ["ccc", "a"])) == [-3.0, -1.0]
        both = await ask(lambda client: client.call("rerank", {"query": "q", "documents": ["ccc", "a"], "topN": 1}))
        assert (both["order"], both["results"]) == ([1], [{"index": 1, "score": -1.0}])
        assert (await ask(lambda client: client.transform("q", "hyde")))["hypothetical"] == "h"
        assert await ask(code_of(lambda client: client.transform("q", "step-back"))) == -32005
        assert await ask(code_of(lambda client: client.rerank("q", ["x"] * 6))) == -32602
        assert await ask(code_of(lambda client: client.embed(["x"]))) == -32003
        assert await ask(code_of(lambda client: client.call("x-acme/do"))) == -32003
        assert await ask(code_of(lambda client: client.call("nonsense"))) == -32004


async def test_writing() -> None:
    """Documents find their engine by prefix, and are deleted by the ids that came back."""
    docs, code = library("docs"), library("code")
    async with federation(("docs", docs, {"idNamespace": "d"}), ("code", code, {})) as ask:
        documents = [{"id": "d:1", "text": "t"}, {"text": "u"}]
        added = await ask(lambda client: client.index_add({"documents": documents, "x-gateway": {"engine": "docs"}}))
        assert added["ids"] == ["d:1", "d:new1"]
        assert (await ask(lambda client: client.index_delete({"ids": added["ids"]})))["deleted"] == 2
        assert (await ask(lambda client: client.index_delete({"ids": added["ids"]})))["deleted"] == 0
    assert [params["documents"][0]["id"] for method, params in docs.asked if method == "index/add"] == ["1"]
    assert code.asked == []


async def test_writing_without_naming_an_engine() -> None:
    """All that the SDK's client can say. Two servers take documents: one is the default writer, both are cleaned up."""
    one, two = library("one"), library("two")
    async with federation(("one", one, {}), ("two", two, {"priority": 1})) as ask:
        added = await ask(lambda client: client.index_add({"documents": [{"id": "x", "text": "t"}, {"text": "u"}]}))
        assert added["ids"] == ["x", "new1"]
        assert added["_meta"]["x-gateway"]["writer"] == "two"
        assert one.asked == []
        elsewhere = {"documents": [{"id": "x", "text": "old"}], "x-gateway": {"engine": "one"}}
        await ask(lambda client: client.index_add(elsewhere))
        assert (await ask(lambda client: client.index_delete({"ids": ["x"]})))["deleted"] == 2
        assert (await ask(lambda client: client.index_delete({"ids": ["x", "new1"]})))["deleted"] == 1
