"""The sets of engines that sessions began with: kept once, found again, and the same after a trip through JSON."""

from app.federation.capabilities import EngineOffer
from app.federation.session_engines import MAX_ENGINES, SessionEngines, SessionSets, engines_of, with_departed
from app.state.store import MemoryStore
from tests.support.fake_engine import FakeEngine, advertised
from tests.support.plain_store import PlainStore

FULL = {"retrieve": {"maxK": 5, "scoreFloor": 0}, "filter": {"fields": {"y": "int"}, "operators": ["eq"]}, "x-a": {}}


def offer(engine_id: str, priority: int = 0) -> EngineOffer:
    return EngineOffer(engine_id, priority, advertised(FULL, gateway_id="other"), writer=True)


async def test_a_thousand_sessions_hold_one_set() -> None:
    store = MemoryStore(10, 100)
    sets = SessionSets(store, 60)
    digests = {(await sets.keep([offer("a"), offer("b")])).digest for _ in range(1000)}
    assert (len(digests), len(store)) == (1, 1)
    assert (await sets.keep([offer("a")])).digest not in digests


async def test_what_comes_back_from_a_shared_store_is_what_was_kept() -> None:
    """So that engines which are as they were are asked the short way. It outlives any session that uses it."""
    store = PlainStore()
    kept = await SessionSets(store, 60).keep([offer("a", 3)])
    assert await SessionSets(store, 60).find(kept.digest) == kept
    assert await SessionSets(store, 60).find("none") is None
    assert store.seconds[kept.digest] == 120


async def test_an_advertisement_that_nests_too_deep_to_be_written() -> None:
    deep: list[object] = []
    for _ in range(500):
        deep = [deep]
    sets = SessionSets(PlainStore(), 60)
    kept = await sets.keep([EngineOffer("a", 0, advertised({**FULL, "x-deep": deep}))])
    found = await sets.find(kept.digest)
    assert found is not None
    said = found.advertisement("a")
    assert said is not None
    assert said.retrieve is not None


def test_the_engines_of_a_session() -> None:
    """Those that are as they were are themselves; who has left stands in its place, and is never required."""
    same = FakeEngine("same", capabilities=FULL, gateway_id="other")
    kept = engines_of(SessionEngines("digest", (offer("left", 5), offer("same"))), [same, FakeEngine("new")])
    assert [engine.id for engine in kept] == ["left", "same"]
    assert kept[1] is same
    assert (kept[0].entry.priority, kept[0].entry.writer, kept[0].entry.required) == (5, True, False)


def test_sets_are_bounded() -> None:
    before = [offer(f"old{number}") for number in range(MAX_ENGINES)]
    both = with_departed([offer("new"), offer("old0")], before)
    assert len(both) == MAX_ENGINES
    assert [one.id for one in both[:3]] == ["new", "old0", "old1"]
