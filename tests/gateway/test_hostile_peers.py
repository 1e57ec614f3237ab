"""Peers that mean ill, or are merely broken in ways nobody plans for: what they cost is a note and nothing else."""

from typing import Any

import pytest

from tests.support.running_gateway import entry, running, until
from tests.support.scripted_engine import Http, hits


@pytest.mark.parametrize("count", [2**70, 2**63, -1, True, 1.5, "9"])
async def test_counts_that_cannot_be_written_are_not_added_up(engines: Any, count: Any) -> None:
    """`usage.candidates` of an engine counts only as an integer that RCP knows; the answer can always be written."""
    engine = await engines()
    engine.answers["retrieve"] = {"hits": hits("a", "b"), "usage": {"candidates": count, "reranked": count}}
    async with running([entry("e", engine)]) as gateway:
        result = await gateway.retrieve()
    assert result["usage"]["candidates"] == 2
    assert result["usage"]["reranked"] == 0


@pytest.mark.parametrize("methods", [7, {"cross-encoder": 1}, None, "cross-encoder", [["cross-encoder"]]])
async def test_a_list_that_is_none_states_nothing(engines: Any, methods: Any) -> None:
    """An advertisement with something else where a list belongs offers nothing there, and breaks no request."""
    capabilities = {
        "retrieve": {"maxK": 10, "rerankBuiltin": True},
        "rerank": {"methods": methods},
        "transform": {"methods": methods},
    }
    engine = await engines(capabilities=capabilities)
    async with running([entry("e", engine)]) as gateway:
        for option in ({"rerank": {"method": "cross-encoder", "topN": 10}}, {"rewrite": "hyde"}):
            error = await gateway.error("retrieve", {"query": "q", **option})
            assert error["code"] == -32005
        assert (await gateway.retrieve())["hits"]


async def test_a_secret_that_an_engine_quotes_back_is_masked(engines: Any) -> None:
    """What stands in an entry's headers or its URL's query never comes out again, even if the engine says it."""
    engine = await engines()
    body = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32010,"message":"no: Bearer SECRET2 ?key=SECRET1"}}'
    engine.answers["retrieve"] = Http(500, body)
    entries = [entry("e", f"{engine.url}?key=SECRET1", headers={"Authorization": "Bearer SECRET2"})]
    async with running(entries) as gateway:
        response = await gateway.post({"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": {"query": "q"}})
        listed = await gateway.client.get("/engines")
    assert response.json()["error"]["code"] == -32010
    assert "***" in response.text
    assert "SECRET" not in response.text + listed.text


async def test_an_advertisement_too_deep_to_compare_does_not_end_the_watch(engines: Any) -> None:
    """An engine whose handshake nests hundreds of levels deep is still looked after and asked."""
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    engine = await engines(capabilities={"retrieve": {"maxK": 10}, "x-deep": {"d": 1}})
    engine.capabilities = {"retrieve": {"maxK": 10}, "mystery": deep}
    async with running([entry("e", engine)], {"engines": {"health_interval_seconds": 0.05}}) as gateway:
        pings = len(engine.requests("ping")) + len(engine.requests("info"))
        await until(lambda: len(engine.requests("ping")) + len(engine.requests("info")) > pings + 5)
        assert (await gateway.retrieve())["hits"]


async def test_a_strange_accept_header_still_gets_the_metrics(engines: Any) -> None:
    """A version that is none in `Accept` is answered in Prometheus' text format."""
    async with running([entry("e", await engines())]) as gateway:
        response = await gateway.client.get(
            "/metrics", headers={"Accept": "application/openmetrics-text; version=not.a.number"}
        )
    assert response.status_code == 200
    assert "rcp_gateway_engine_up" in response.text


async def test_a_changed_engine_is_noticed_without_ever_being_down(engines: Any) -> None:
    """An engine that was replaced behind its address is asked again what it can do, every few checks."""
    engine = await engines(capabilities={"retrieve": {"maxK": 10}})
    async with running([entry("e", engine)], {"engines": {"health_interval_seconds": 0.05}}) as gateway:
        engine.capabilities = {"retrieve": {"maxK": 10, "modes": ["sparse"]}}
        remote = gateway.state.engines.engines[0]
        await until(lambda: "sparse" in remote.advertisement.retrieve.modes)  # type: ignore[union-attr]
        info = await gateway.result("info")
    assert info["capabilities"]["retrieve"]["modes"] == ["sparse"]


async def test_long_hits_are_kept_by_their_size(engines: Any) -> None:
    """What is kept for later pages is bounded by bytes too: long hits count as one for each KiB of their answer."""
    long = [{"id": str(number), "score": 1.0, "text": "x" * 50_000} for number in range(20)]
    engine = await engines(results=long)
    async with running([entry("e", engine)], {"state": {"max_kept_hits": 500}}) as gateway:
        page = await gateway.retrieve(k=5)
        asked = len(engine.requests())
        following = await gateway.retrieve(k=5, cursor=page["nextCursor"])
        assert len(engine.requests()) == asked + 1  # a megabyte is more than 500 KiB: it was not kept, but asked again
    assert [hit["id"] for hit in page["hits"] + following["hits"]] == [str(number) for number in range(10)]


@pytest.mark.parametrize("weight", [5e-324, 1e-300, 1e-160])
async def test_tiny_weights_are_weights(engines: Any, weight: float) -> None:
    """A weight near nothing divides nothing by nothing; scores stay in [0,1]."""
    one, two = await engines(), await engines()
    async with running([entry("one", one), entry("two", two)]) as gateway:
        result = await gateway.retrieve(fusion={"weights": {"one": weight, "two": weight}})
    assert all(0 <= hit["score"] <= 1 for hit in result["hits"])
