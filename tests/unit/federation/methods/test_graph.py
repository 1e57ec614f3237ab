"""`graph` with scripted engines: what only shows without an endpoint. The rest is in tests/gateway/test_graph.py."""

from typing import Any

from app.federation.methods.graph import graph
from tests.support.broadcast_calls import context_of, temporary_pages
from tests.support.fake_engine import FakeEngine, Json, hits


def offering(name: str, answer: Any, offer: Any = None, **wishes: Any) -> FakeEngine:
    return FakeEngine(name, answer, capabilities={"graph": {} if offer is None else offer}, **wishes)


async def ask(*engines: FakeEngine, settings: Any = None, **params: Any) -> Json:
    return await graph(context_of("graph", params, *engines, settings=settings), temporary_pages())


async def test_an_engine_that_lists_no_operations_is_asked_for_any() -> None:
    """Presence means supported; a list is taken at its word."""
    free = offering("free", {"hits": hits("a")})
    bound = offering("bound", {"hits": hits("b")}, {"ops": ["global"]})
    result = await ask(free, bound, op="local", query="q")
    assert [hit["id"] for hit in result["hits"]] == ["a"]
    assert bound.asked == []


async def test_how_deep_engines_are_asked_for_hits() -> None:
    """As `retrieve` asks them: by its settings, never for more than a list may hold."""
    engine = offering("e", {"hits": [], "communities": []})
    await ask(engine, op="local", query="q", k=30)
    await ask(engine, op="drift", query="q", settings={"retrieve": {"window_min": 3, "overfetch": 1.5}})
    await ask(engine, op="communities", k=5000)
    assert [params.get("k") for params in engine.asked] == [60, 15, 200]


async def test_hits_that_come_beside_other_things() -> None:
    """An engine may add hits to any answer; they are fused, too."""
    result = await ask(offering("e", {"summary": "s", "hits": hits("a")}), op="global", query="q")
    assert [hit["id"] for hit in result["hits"]] == ["a"]
    assert result["communities"] == []


async def test_origins_are_learned_in_sessions_with_feedback() -> None:
    """Only of what was answered, and only if anybody takes feedback."""
    deaf = offering("e", {"hits": hits("a", "b")})
    pages = temporary_pages()
    await graph(context_of("graph", {"op": "local", "query": "q", "sessionId": "s"}, deaf), pages)
    assert await pages.origins.load("s") == {}
    capabilities = {"graph": {}, "feedback": {}}
    hearing = FakeEngine("e", {"hits": hits("a", "b")}, capabilities=capabilities)
    await graph(context_of("graph", {"op": "local", "query": "q", "sessionId": "s", "k": 1}, hearing), pages)
    assert await pages.origins.load("s") == {"a": {"e": "a"}}
