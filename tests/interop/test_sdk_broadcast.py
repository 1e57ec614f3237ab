"""The published Python SDK on both sides, over HTTP: methods that several of its servers answer together."""

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


def found(*ids: str) -> list[Json]:
    return [{"id": name, "score": 1.0 - place / 10, "text": f"about {name}"} for place, name in enumerate(ids)]


def scholar(name: str, *ids: str) -> SdkEngine:
    """An SDK server with a graph, memories, an ear for feedback, and these documents."""
    engine = SdkEngine(
        name,
        {
            "retrieve": {"maxK": 50, "modes": ["sparse"]},
            "graph": {"ops": ["local", "global", "drift", "communities", "neighbors"]},
            "memory": {"scopes": ["global"], "clues": True},
            "feedback": {},
        },
    )
    answers: dict[str, Json] = {
        "local": {"hits": found(*ids)},
        "drift": {"hits": found(*ids), "followups": ["What else?", f"Why {name}?"]},
        "global": {"summary": f"{name} knows.", "communities": [{"id": 1, "score": len(ids)}]},
        "communities": {"communities": [{"id": 1, "score": len(ids)}]},
        "neighbors": {"nodes": [{"id": ids[0]}], "edges": [{"src": ids[0], "dst": ids[-1]}]},
    }
    engine.on("retrieve", lambda params: {"hits": found(*ids)[: params["k"]]})
    engine.on("graph", lambda params: answers[params["op"]])
    engine.on("feedback", lambda params: {"accepted": len(params["signals"])})
    engine.on("memory/build", lambda params: {"memoryId": params.get("memoryId", "m"), "tokens": 7})
    engine.on("memory/recall", lambda params: {"clues": [{"query": name, "weight": len(ids)}], "hits": found(*ids)})
    return engine


@asynccontextmanager
async def federation(**engines: SdkEngine) -> AsyncIterator[Callable[[Asks], Any]]:
    """A gateway in front of these; asks it through an SDK client of its own."""
    with ExitStack() as servers:
        for engine in engines.values():
            servers.enter_context(engine.serving())
        async with listening(
            [{"id": name, "url": engine.url, "timeoutMs": LEISURE_MS} for name, engine in engines.items()]
        ) as (_, port):

            async def ask(asks: Asks) -> Any:
                return await asyncio.to_thread(lambda: asks(rcp.connect_http(f"http://127.0.0.1:{port}/rcp")))

            yield ask


def told(engine: SdkEngine, method: str) -> list[Json]:
    """The params of each call of `method` that its handler got."""
    return [params for name, params in engine.asked if name == method]


async def test_graphs() -> None:
    """Every operation through the SDK's client, joined of two of its servers."""
    one, two = scholar("one", "a", "b"), scholar("two", "b", "c", "d")
    async with federation(one=one, two=two) as ask:
        local = await ask(lambda client: client.graph("local", {"query": "q", "k": 3}))
        drift = await ask(lambda client: client.graph("drift", {"query": "q"}))
        whole = await ask(lambda client: client.graph("global", {"query": "q"}))
        communities = await ask(lambda client: client.graph("communities"))
        neighbors = await ask(lambda client: client.graph("neighbors", {"seedIds": ["a"], "hops": 9}))
        with pytest.raises(rcp.RcpError) as error:
            await ask(lambda client: client.graph("neighbors", {}))
    assert [hit["id"] for hit in local["hits"]] == ["b", "a", "c"]
    assert drift["followups"] == ["What else?", "Why one?", "Why two?"]
    assert whole["summary"] == "one: one knows.\n\ntwo: two knows."
    assert [one["id"] for one in whole["communities"]] == ["two:1", "one:1"]
    assert communities["communities"] == whole["communities"]
    assert [node["id"] for node in neighbors["nodes"]] == ["a", "b"]
    assert [(edge["src"], edge["dst"]) for edge in neighbors["edges"]] == [("a", "b"), ("b", "d")]
    assert [params["hops"] for params in told(one, "graph") if params["op"] == "neighbors"] == [5]
    assert error.value.code == -32602


async def test_memories() -> None:
    """Built in the engine that is named, recalled from it or from all."""
    one, two = scholar("one", "a"), scholar("two", "b", "c")
    async with federation(one=one, two=two) as ask:
        named = {"documents": [{"text": "t"}], "x-gateway": {"engine": "two"}}
        built = await ask(lambda client: client.call("memory/build", named))
        again = await ask(lambda client: client.memory_build(memory_id=built["memoryId"], scope="global"))
        its_own = await ask(lambda client: client.memory_recall("q", memory_id=built["memoryId"]))
        all_of_them = await ask(lambda client: client.memory_recall("q", n=5))
        with pytest.raises(rcp.RcpError) as error:
            await ask(lambda client: client.memory_recall("q", memory_id="m"))
    assert again == {**again, "memoryId": built["memoryId"], "tokens": 7}
    assert [clue["query"] for clue in its_own["clues"]] == ["two"]
    assert [clue["query"] for clue in all_of_them["clues"]] == ["two", "one"]
    assert {hit["id"] for hit in all_of_them["hits"]} == {"a", "b", "c"}
    assert [params.get("memoryId") for params in told(two, "memory/build")] == [None, "m"]
    assert [params.get("memoryId") for params in told(one, "memory/recall")] == [None]
    assert error.value.code == -32015


async def test_memories_without_naming_an_engine() -> None:
    """All that the SDK's client can say: the default writer builds, and its name leads back to it."""
    one, two = scholar("one", "a"), scholar("two", "b", "c")
    async with federation(one=one, two=two) as ask:
        built = await ask(lambda client: client.memory_build(documents=[{"text": "t"}]))
        recalled = await ask(lambda client: client.memory_recall("q", memory_id=built["memoryId"]))
    assert [clue["query"] for clue in recalled["clues"]] == ["one"]
    assert (len(told(one, "memory/build")), told(two, "memory/build")) == (1, [])


async def test_feedback() -> None:
    """Signals on hits of a session find the servers that these came from."""
    one, two = scholar("one", "a", "b"), scholar("two", "b", "c")
    signals = [{"hitId": "a", "used": True}, {"hitId": "b", "reward": 0.5}]
    async with federation(one=one, two=two) as ask:
        await ask(lambda client: client.search("q", opts={"sessionId": "s"}))
        result = await ask(lambda client: client.feedback(signals, query="q", session_id="s"))
    assert result["accepted"] == 2
    assert [params["signals"] for params in told(one, "feedback")] == [signals]
    assert [params["signals"] for params in told(two, "feedback")] == [signals[1:]]


async def test_the_union_is_reranked() -> None:
    """Servers that cannot rerank, one that can, and a client that asks for it: its order, and what it was told."""
    one, two = scholar("one", "a", "b"), scholar("two", "c")
    judge = SdkEngine("judge", {"rerank": {"methods": ["llm"], "maxCandidates": 10}})
    judge.on("rerank", lambda params: {"scores": [float(ord(text[-1])) for text in params["passages"]]})
    async with federation(one=one, two=two, judge=judge) as ask:
        assert await ask(lambda client: client.capabilities["retrieve"]["rerankBuiltin"]) is True
        opts = {"rerank": {"method": "llm", "topN": 3}}
        result = await ask(lambda client: client.search("q", k=3, opts=opts))
    assert [hit["id"] for hit in result["hits"]] == ["c", "b", "a"]
    assert [hit["scores"]["rerank"] for hit in result["hits"]] == [99.0, 98.0, 97.0]
    scores = [hit["score"] for hit in result["hits"]]
    assert scores == sorted(scores, reverse=True)
    assert result["usage"]["reranked"] == 3
    assert sorted(told(judge, "rerank")[0]["passages"]) == ["about a", "about b", "about c"]
