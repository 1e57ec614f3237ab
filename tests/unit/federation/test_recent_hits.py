"""Hits that were answered lately, to whom they were answered."""

from app.federation.sessions import RecentHits
from app.federation.tenants import Tenant
from app.settings.mcp import McpSettings
from tests.support.plain_store import PlainStore

RED, BLUE = Tenant("red", scope="red:1:"), Tenant("blue", scope="blue:1:")
HIT = {"id": 7, "score": 1.0, "text": "seven"}
LONG = [
    {"id": "a", "score": 1.0, "text": "x" * 5000},
    {"id": "b", "score": 1.0, "content": [{"text": "x" * 3000}]},
    HIT,
]


async def test_a_hit_is_found_by_whom_it_was_answered_to() -> None:
    """By its id as text, within the tenant and what it saw; for nobody else."""
    recent = RecentHits(PlainStore(), 60.0)
    await recent.keep(RED, [HIT, {"id": "a", "score": 0.5}])
    assert await recent.find(RED, "7") == HIT
    assert await recent.find(RED, "a") == {"id": "a", "score": 0.5}
    for other in (None, BLUE, Tenant("red", scope="red:2:")):
        assert await recent.find(other, "7") is None


async def test_the_last_answer_counts() -> None:
    """A hit that is answered again is kept as it was answered last, and its time begins anew."""
    now = [0.0]
    recent = RecentHits.from_settings(McpSettings(fetch_ttl_seconds=10), clock=lambda: now[0])
    await recent.keep(None, [HIT])
    now[0] = 8.0
    await recent.keep(None, [{**HIT, "text": "other"}])
    now[0] = 17.0
    found = await recent.find(None, "7")
    assert found is not None
    assert found["text"] == "other"
    now[0] = 18.0
    assert await recent.find(None, "7") is None


async def test_long_hits_count_for_more() -> None:
    """One for each KiB of text, also of content blocks, so that the store is bounded in bytes, too."""
    store = PlainStore()
    recent = RecentHits(store, 60.0)
    await recent.keep(None, LONG)
    assert list(store.sizes.values()) == [5, 3, 1]
    assert repr(recent).startswith("<Recent hits of 60 s in ")
