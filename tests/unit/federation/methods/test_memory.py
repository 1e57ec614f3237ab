"""Memories of scripted engines: what only shows without an endpoint. The rest is in tests/gateway/test_memory.py."""

from typing import Any

from app.federation.methods.memory import MemoryRef, memory_build, memory_id_of, memory_recall
from tests.support.broadcast_calls import context_of, temporary_pages
from tests.support.fake_engine import FakeEngine, Json

MEMORY: Json = {"memory": {}}


async def build(*engines: FakeEngine, meta: Json | None = None, **params: Any) -> Json:
    context = context_of("memory/build", params, *engines, meta=meta)
    return await memory_build(context.call, context.members, context.settings, context.instrumentation)


async def test_an_engine_that_lists_no_scopes_takes_any() -> None:
    """Presence means supported."""
    engine = FakeEngine("m", {"memoryId": "1"}, capabilities=MEMORY)
    assert (await build(engine, scope="session"))["memoryId"] == memory_id_of(MemoryRef("m", "1"))
    assert engine.asked[0]["scope"] == "session"


async def test_a_build_is_sent_as_what_must_not_run_twice() -> None:
    """Unless the caller gives a key by which the engine knows it again."""
    engine = FakeEngine("m", {"memoryId": "1"}, capabilities=MEMORY)
    await build(engine)
    await build(engine, meta={"idempotencyKey": "k"})
    assert engine.idempotent == [False, True]
    assert engine.asked[1]["_meta"]["idempotencyKey"] == "k"


async def test_an_engine_may_rename_its_memory() -> None:
    """The name it answers is what counts from then on."""
    engine = FakeEngine("m", {"memoryId": "2"}, capabilities=MEMORY)
    assert (await build(engine, memoryId=memory_id_of(MemoryRef("m", "1"))))["memoryId"] == memory_id_of(
        MemoryRef("m", "2")
    )
    assert engine.asked[0]["memoryId"] == "1"


async def test_unknown_fields_are_handed_through() -> None:
    """Of the first engine that has them."""
    engines = [FakeEngine(name, {"clues": [], "x-of": name}, capabilities=MEMORY) for name in "ab"]
    result = await memory_recall(context_of("memory/recall", {"query": "q"}, *engines), temporary_pages())
    assert result["x-of"] == "a"
