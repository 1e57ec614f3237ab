"""Sessions: what a trajectory of questions was answered once is not answered again, whatever the engines do."""

from typing import Any

import pytest

from tests.support.corpora import ids, pages_of, serving
from tests.support.running_gateway import entry, running
from tests.support.scripted_engine import RpcFault, hit


async def test_sessions_are_advertised(engines: Any) -> None:
    """The gateway offers sessions by itself, and says for how long."""
    async with running([entry("e", await engines())], {"state": {"session_ttl_seconds": 60}}) as gateway:
        assert (await gateway.result("info"))["capabilities"]["session"] == {"dedup": True, "ttlSeconds": 60}


async def test_hits_of_a_session_are_not_answered_twice(engines: Any) -> None:
    """Later answers leave out what was answered before, and are filled up from deeper; others see nothing of it."""
    one, two = await serving(engines, *range(60)), await serving(engines, *range(30, 90))
    async with running([entry("one", one), entry("two", two)]) as gateway:
        answers = [await gateway.retrieve(query=f"q{number}", sessionId="s") for number in range(6)]
        other = await gateway.retrieve(query="q0", sessionId="t")
        free = await gateway.retrieve(query="q0")
    found = ids(*answers)
    assert len(found) == len(set(found)) == 60
    assert ids(other) == ids(free) == ids(answers[0])


async def test_a_session_goes_on_until_engines_have_no_more(engines: Any) -> None:
    """When everything was answered the answer is empty, and that is no error."""
    engine = await serving(engines, *range(35))
    async with running([entry("e", engine)]) as gateway:
        answers = [await gateway.retrieve(sessionId="s") for _ in range(5)]
    assert [len(answer["hits"]) for answer in answers] == [10, 10, 10, 5, 0]
    assert "nextCursor" not in answers[-1]


async def test_no_engine_is_asked_beyond_its_bound(engines: Any) -> None:
    """Over-fetching for a session stays within each engine's `maxK`."""
    engine = await serving(engines, *range(200), max_k=25)
    async with running([entry("e", engine)]) as gateway:
        answers = [await gateway.retrieve(sessionId="s") for _ in range(4)]
    assert [len(answer["hits"]) for answer in answers] == [10, 10, 5, 0]
    assert max(request.params["k"] for request in engine.requests()) == 25


async def test_an_answer_is_filled_in_a_second_round(engines: Any) -> None:
    """If too little is new the engines are asked once more, deeper; the report has every engine that gave its part."""
    wide, narrow = await serving(engines, *range(100)), await serving(engines, 1000, 1001)
    async with running([entry("wide", wide), entry("narrow", narrow)]) as gateway:
        for _ in range(5):
            await gateway.retrieve(sessionId="s", k=16)
        before = len(wide.requests()), len(narrow.requests())
        answer = await gateway.retrieve(sessionId="s", k=16)
        after = len(wide.requests()), len(narrow.requests())
    assert len(answer["hits"]) == 16
    assert (after[0] - before[0], after[1] - before[1]) == (2, 1)
    report = {engine["id"]: engine for engine in answer["_meta"]["x-gateway"]["engines"]}
    assert [report[name]["status"] for name in ("narrow", "wide")] == ["ok", "ok"]
    assert report["wide"]["k"] > 80


async def test_engines_see_a_scoped_session(engines: Any) -> None:
    """An engine without dedup is told a session of ours, always the same; one with dedup of its own is told nothing."""
    plain = await engines()
    dedups = await engines(capabilities={"retrieve": {}, "session": {"dedup": True}})
    entries = [entry("plain", plain), entry("dedups", dedups)]
    async with running(entries) as gateway:
        for _ in range(2):
            await gateway.retrieve(sessionId="secret")
    async with running(entries, {"server": {"id": "another"}}) as gateway:
        await gateway.retrieve(sessionId="secret")
    told = [request.params.get("sessionId") for request in plain.requests()]
    assert told[0] == told[1] != told[2]
    assert "secret" not in told
    assert all("sessionId" not in request.params for request in dedups.requests())


async def test_pages_of_a_session(engines: Any) -> None:
    """Paging within a session repeats nothing, leaves nothing out, and may be repeated page by page."""
    engine = await serving(engines, *range(50))
    async with running([entry("e", engine)]) as gateway:
        first = await gateway.retrieve(sessionId="s")
        second = await gateway.retrieve(sessionId="s", cursor=first["nextCursor"])
        again = await gateway.retrieve(sessionId="s", cursor=first["nextCursor"])
        rest = await pages_of(gateway, (7,), sessionId="s", cursor=second["nextCursor"])
        nothing = await gateway.retrieve(sessionId="s", query="another")
    assert ids(first, second, *rest) == list(range(50))
    assert again["hits"] == second["hits"]
    assert nothing["hits"] == []


async def test_another_question_between_two_pages(engines: Any) -> None:
    """What another question of the session was answered meanwhile is left out of the next page, too."""
    engine = await serving(engines, *range(50))
    async with running([entry("e", engine)]) as gateway:
        first = await gateway.retrieve(sessionId="s", k=5)
        other = await gateway.retrieve(sessionId="s", k=5, query="another")
        rest = await pages_of(gateway, (5,), sessionId="s", cursor=first["nextCursor"])
    found = ids(first, other, *rest)
    assert len(found) == len(set(found)) == 50


async def test_a_cursor_belongs_to_its_session(engines: Any) -> None:
    """Another session, or none, is another question."""
    engine = await serving(engines, *range(50))
    async with running([entry("e", engine)]) as gateway:
        cursor = (await gateway.retrieve(sessionId="s"))["nextCursor"]
        for session in ({}, {"sessionId": "t"}):
            error = await gateway.error("retrieve", {"query": "q", "cursor": cursor, **session})
            assert error["code"] == -32602


async def test_min_score_and_budget_within_a_session(engines: Any) -> None:
    """A floor and a budget bind what is new, and what the budget cut off is not taken for answered."""
    texts = [hit(number, 1 - number / 100, text="x" * 40) for number in range(9)]
    engine = await engines(results=texts)
    async with running([entry("e", engine)]) as gateway:
        answers = [await gateway.retrieve(sessionId="s", tokenBudget=20) for _ in range(3)]
        none = await gateway.retrieve(sessionId="s", minScore=0.99)
    assert ids(*answers) == [0, 1, 2, 3, 4, 5]
    assert none["hits"] == []


async def test_a_failed_answer_leaves_no_trace(engines: Any) -> None:
    """What was never answered is not remembered."""
    engine = await serving(engines, *range(30))
    async with running([entry("e", engine)]) as gateway:
        script = engine.answers["retrieve"]
        engine.answers["retrieve"] = RpcFault(-32010)
        await gateway.error("retrieve", {"query": "q", "sessionId": "s"})
        engine.answers["retrieve"] = script
        assert ids(await gateway.retrieve(sessionId="s")) == list(range(10))


async def test_one_engine_down_does_not_keep_a_session_from_filling(engines: Any) -> None:
    """The others are asked deeper; the one that failed is not asked twice for one answer."""
    engine, down = await serving(engines, *range(100)), await engines()
    down.answers["retrieve"] = RpcFault(-32010)
    unguarded = entry("down", down, retries=0, breaker={"failures": 0})
    async with running([entry("e", engine), unguarded]) as gateway:
        answers = [await gateway.retrieve(sessionId="s", k=16) for _ in range(6)]
    assert [len(answer["hits"]) for answer in answers] == [16] * 6
    assert len(down.requests()) == 6
    assert all(answer["_meta"]["degraded"] == ["down"] for answer in answers)


@pytest.mark.parametrize("identity", ["uri", "content"])
async def test_sessions_by_another_identity(engines: Any, identity: str) -> None:
    """Under every identity policy a document is answered once, and then not by its id either."""

    def copies(prefix: str) -> list[dict[str, Any]]:
        return [
            hit(f"{prefix}{n}", 1 - n / 100, text=f"text {n}", citation={"uri": f"https://x/{n}"}) for n in range(15)
        ]

    one, two = await engines(results=copies("a")), await engines(results=copies("b"))
    async with running([entry("one", one), entry("two", two)]) as gateway:
        answers = [await gateway.retrieve(**{"sessionId": "s", "x-gateway": {"identity": identity}}) for _ in range(2)]
        by_id = await gateway.retrieve(sessionId="s", k=50)
    uris = [found["citation"]["uri"] for answer in answers for found in answer["hits"]]
    assert len(uris) == len(set(uris)) == 15
    assert not set(ids(*answers)) & set(ids(by_id))


async def test_sessions_are_bounded(engines: Any) -> None:
    """Of too many hits the oldest are forgotten, of too many sessions the least recently used."""
    engine = await serving(engines, *range(100))
    bounds = {"state": {"max_session_hits": 15, "max_sessions": 2}}
    async with running([entry("e", engine)], bounds) as gateway:
        answers = [await gateway.retrieve(sessionId="s") for _ in range(3)]
        for other in ("t", "u"):
            await gateway.retrieve(sessionId=other)
        forgotten = await gateway.retrieve(sessionId="s")
    assert [ids(answer) for answer in answers] == [[*range(10)], [*range(10, 20)], [*range(5), *range(20, 25)]]
    assert ids(forgotten) == [*range(10)]
