"""Places, stocks and turns: what is found again under a cursor, and what is not."""

import asyncio
from typing import Any

import pytest

from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.outcome import answered
from app.federation.pagination import FIRST, Pages, fingerprint, reproducible
from app.federation.result_set import ResultSet, page_of, result_set_of
from app.federation.retrieve import retrieve
from app.federation.sessions import HitOrigins, RetrieveSessions
from app.protocol.errors import CALL_KINDS, InvalidParams, NotFound
from app.protocol.retrieve_params import RetrieveParams
from app.settings.schema import GatewaySettings
from app.settings.state import StateSettings
from app.telemetry.metrics import Metrics
from tests.support.fake_engine import FakeEngine, call_of, hit, hits, members_of
from tests.support.plain_store import PlainStore
from tests.support.planning import planned


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def read(**params: Any) -> RetrieveParams:
    return call_of(**params).params


def result_set_for(params: RetrieveParams, *ids: Any) -> ResultSet:
    """What one engine gave."""
    plan = planned(members_of(FakeEngine("e")))
    result_set = result_set_of(plan, [answered("e", {"hits": hits(*ids)}, 0.01, 1)], params)
    assert result_set is not None
    return result_set


async def left_behind(pages: Pages, **params: Any) -> str:
    """The cursor after the first three hits of twenty."""
    asked = read(**params)
    result_set = result_set_for(asked, *range(20))
    turn = await pages.cursor_state(asked)
    return await pages.save(asked, turn, result_set, page_of(result_set.fusion, asked.options, 3), 20)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"k": 5}),
        ({}, {"cursor": "c"}),
        ({}, {"mode": None}),
        ({"seed": 1, "mode": "dense"}, {"mode": "dense", "seed": 1}),
        ({"fusion": {"rrfK": 1, "method": "rrf"}}, {"fusion": {"method": "rrf", "rrfK": 1}}),
        ({"x_gateway": {"engines": ["a"]}}, {"x_gateway": {"engines": ["a"], "identity": None}}),
    ],
)
def test_what_may_differ_from_page_to_page(one: Any, other: Any) -> None:
    """`k`, the cursor, what is null, and the order of keys are no part of the question."""
    assert fingerprint(read(**one)) == fingerprint(read(**other))


def test_what_may_not_differ() -> None:
    """Every other param is, down to types and nested values."""
    questions: list[dict[str, Any]] = [
        {},
        {"query": "Q"},
        {"query": "qq"},
        {"query": ["q"]},
        {"query": '["q"]'},
        {"seed": 1},
        {"x-seed": 1},
        {"x-seed": 1.5},
        {"x-seed": True},
        {"x-seed": "1"},
        {"x_gateway": {"engines": ["a"]}},
        {"x_gateway": {"later": 1}},
        {"strict": True},
        {"sessionId": "s"},
        {"query": "\ud800"},
    ]
    assert len({fingerprint(read(**question)) for question in questions}) == len(questions)


async def test_a_request_that_continues_nothing_finds_nothing() -> None:
    """Without cursor and session nothing is looked up."""
    assert await Pages.from_settings(StateSettings()).cursor_state(read()) is FIRST


async def test_a_cursor_leads_to_its_place() -> None:
    """The place, the stock, and what was answered are found again."""
    pages = Pages.from_settings(StateSettings())
    cursor = await left_behind(pages)
    turn = await pages.cursor_state(read(cursor=cursor))
    assert turn.result_set is not None
    assert (turn.record.start, turn.record.returned, turn.record.reach) == (3, ("0", "1", "2"), 20)
    assert page_of(turn.result_set.fusion, read().options, 2, turn.record.start).keys == ["3", "4"]


async def test_cursors_end_with_their_time() -> None:
    """After the time of the settings a cursor is not found any more."""
    clock = Clock()
    pages = Pages.from_settings(StateSettings(cursor_ttl_seconds=300), clock)
    cursor = await left_behind(pages)
    clock.now = 299.0
    await pages.cursor_state(read(cursor=cursor))
    clock.now = 300.0
    with pytest.raises(NotFound) as error:
        await pages.cursor_state(read(cursor=cursor))
    assert error.value.code == -32015


async def test_sessions_end_with_their_time() -> None:
    """A session is remembered for the time of the settings after its last answer."""
    clock = Clock()
    pages = Pages.from_settings(StateSettings(session_ttl_seconds=60), clock)
    asked = read(sessionId="s")
    turn = await pages.cursor_state(asked)
    result_set = result_set_for(asked, "a")
    await pages.remember("s", turn, page_of(result_set.fusion, asked.options, 3), result_set)
    for now, known in ((59.0, True), (60.0, False)):
        clock.now = now
        trajectory = (await pages.cursor_state(asked)).trajectory
        assert trajectory is not None
        assert ("a" in trajectory) is known


async def test_a_cursor_of_another_question_is_refused() -> None:
    """-32602 with the field, whatever differs."""
    pages = Pages.from_settings(StateSettings())
    cursor = await left_behind(pages)
    with pytest.raises(InvalidParams) as error:
        await pages.cursor_state(read(cursor=cursor, query="another"))
    assert error.value.data["field"] == "cursor"


async def test_a_place_outlives_its_result_set() -> None:
    """Without room for hits the place is still found, without a stock."""
    pages = Pages.from_settings(StateSettings(max_kept_hits=5))
    turn = await pages.cursor_state(read(cursor=await left_behind(pages)))
    assert turn.result_set is None
    assert turn.record.returned == ("0", "1", "2")


async def test_the_quicker_of_two_restocks_for_both() -> None:
    """When two ask deeper for one cursor at the same time, both serve what the first of them brought."""
    pages = Pages.from_settings(StateSettings())
    asked = read(cursor=await left_behind(pages))
    one, two = await pages.cursor_state(asked), await pages.cursor_state(asked)
    quick = await pages.replace_result_set(asked, one, result_set_for(asked, "x", "y"), 40)
    slow = await pages.replace_result_set(asked, two, result_set_for(asked, "z"), 40)
    assert quick.result_set is slow.result_set
    assert quick.record == slow.record
    assert (quick.record.start, quick.record.returned, quick.record.reach) == (0, ("0", "1", "2"), 40)
    later = await pages.cursor_state(asked)
    assert later.result_set is quick.result_set


async def test_names_are_made_by_chance_unless_all_is_pinned() -> None:
    """Equal questions have different cursors, but for a pinned snapshot with a seed, whose answers are equal to the
    bit; there another place or another order is another name."""
    pages = Pages.from_settings(StateSettings())
    assert await left_behind(pages) != await left_behind(pages)
    pinned = {"seed": 1, "indexVersion": "v1"}
    first = await left_behind(pages, **pinned)
    assert await left_behind(pages, **pinned) == first
    asked = read(**pinned)
    result_set = result_set_for(asked, *range(20))
    for k, order in ((4, result_set), (3, result_set_for(asked, *range(1, 21)))):
        page = page_of(order.fusion, asked.options, k)
        assert await pages.save(asked, FIRST, order, page, 20) != first


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, False),
        ({"seed": 1}, False),
        ({"indexVersion": "v"}, False),
        ({"seed": 0, "indexVersion": "v"}, True),
        ({"seed": 0, "indexVersion": "v", "sessionId": "s"}, False),
    ],
)
def test_what_must_be_the_same_to_the_bit(params: Any, expected: bool) -> None:
    """A seed and a snapshot, outside sessions."""
    assert reproducible(read(**params)) is expected


async def test_everything_can_be_kept_outside_the_process() -> None:
    """Over stores that keep nothing but JSON, pages within a session are what they are in memory."""
    places, stocks, sessions = PlainStore(), PlainStore(), PlainStore()
    outside = Pages(places, stocks, RetrieveSessions(sessions, 1800, 100), HitOrigins(sessions, 1800, 100), 300)
    settings = GatewaySettings()
    served: list[list[Any]] = []
    for pages in (outside, Pages.from_settings(settings.state)):
        engines = [corpus(f"e{number}", *range(number * 10, number * 10 + 35)) for number in range(3)]
        served.append(await paged(pages, *engines))
    assert served[0] == served[1]
    assert len(served[0]) == len(set(served[0])) == 55
    assert set(places.seconds.values()) == set(stocks.seconds.values()) == {300}
    assert {key.partition(":")[0] for key in (*places.texts, *stocks.texts, *sessions.texts)} == {
        "place",
        "stock",
        "session",
    }


def corpus(name: str, *ids: Any) -> FakeEngine:
    """An engine that gives as many of these as it is asked for."""

    async def answer(params: Any) -> Any:
        return {"hits": [hit(id, 1 - rank / 100) for rank, id in enumerate(ids)][: params["k"]]}

    return FakeEngine(name, answer)


async def paged(pages: Pages, *engines: FakeEngine) -> list[Any]:
    """The ids of all pages of one question in a session, in order."""
    metrics, settings = Metrics("test"), GatewaySettings()
    metrics.declare_engines([engine.id for engine in engines], CALL_KINDS)
    members, instrumentation = members_of(*engines), RetrieveInstrumentation(metrics)
    found: list[Any] = []
    params: dict[str, Any] = {"sessionId": "s", "k": 7, "x_gateway": {"mmr": {}}}
    while True:
        call = call_of(now=asyncio.get_running_loop().time(), **params)
        result: Any = (await retrieve(call, members, settings, instrumentation, None, pages)).result
        found += [hit["id"] for hit in result["hits"]]
        if "nextCursor" not in result:
            return found
        params["cursor"] = result["nextCursor"]


def test_repr() -> None:
    """How full each store is."""
    told = repr(Pages.from_settings(StateSettings(max_cursors=7)))
    assert told.startswith("<Pages <MemoryStore 0/7 entries")
    assert "<RetrieveSessions for 1800 s" in told
