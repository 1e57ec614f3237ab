"""Cursors: pages that are slices of one order, go on as deep as engines go, and never repeat or leave out a hit."""

import asyncio
from typing import Any

import pytest

from tests.support.corpora import corpus, ids, pages_of, serving
from tests.support.running_gateway import entry, running
from tests.support.scripted_engine import RpcFault, hang, hit

Json = dict[str, Any]


async def test_pagination_is_advertised(engines: Any) -> None:
    """The gateway offers pages by itself, whatever the engines do."""
    async with running([entry("e", await engines())]) as gateway:
        assert (await gateway.result("info"))["capabilities"]["pagination"] == {}


async def test_a_page_is_a_slice_of_the_kept_order(engines: Any) -> None:
    """The second page is what a larger first would have gone on with; no engine is asked, and the answer says so."""
    one, two = await serving(engines, *range(20)), await serving(engines, *range(10, 30))
    async with running([entry("one", one), entry("two", two)]) as gateway:
        whole = await gateway.retrieve(k=10)
        first = await gateway.retrieve(k=4)
        second = await gateway.retrieve(k=6, cursor=first["nextCursor"])
    assert ids(first, second) == ids(whole)
    assert [found["score"] for page in (first, second) for found in page["hits"]] == [
        found["score"] for found in whole["hits"]
    ]
    assert len(one.requests()) == len(two.requests()) == 2
    assert second["usage"]["candidates"] == 0
    assert any("no engine was asked" in note for note in second["usage"]["notes"])
    report = {engine["id"]: (engine["status"], engine["reason"]) for engine in second["_meta"]["x-gateway"]["engines"]}
    assert report == {"one": ("skipped", "kept"), "two": ("skipped", "kept")}


@pytest.mark.parametrize("ks", [(10,), (1, 7, 40), (3,), (100,)])
async def test_pages_go_on_as_deep_as_engines_go(engines: Any, ks: Any) -> None:
    """Down to each engine's `maxK` nothing is repeated and nothing left out; then there is no cursor any more."""
    shallow = await serving(engines, *range(0, 30), max_k=25)
    deep = await serving(engines, *range(20, 90), max_k=500)
    async with running([entry("shallow", shallow), entry("deep", deep)]) as gateway:
        pages = await pages_of(gateway, ks)
    found = ids(*pages)
    assert len(found) == len(set(found))
    assert set(found) == set(range(0, 25)) | set(range(20, 90))
    assert all(len(page["hits"]) <= max(ks) for page in pages)
    assert "nextCursor" not in pages[-1]
    for page in pages:
        scores = [hit["score"] for hit in page["hits"]]
        assert scores == sorted(scores, reverse=True)
    asked = [asked.params["k"] for asked in deep.requests()]
    assert asked == sorted(set(asked))
    assert max(request.params["k"] for request in shallow.requests()) <= 25


async def test_engines_that_have_no_more_are_not_asked_again(engines: Any) -> None:
    """Deeper, only engines that may have more are asked; the others' part is kept, and the report says so."""
    small, large = await serving(engines, *range(5)), await serving(engines, *range(100, 160))
    async with running([entry("small", small), entry("large", large)]) as gateway:
        pages = await pages_of(gateway)
    assert set(ids(*pages)) == {*range(5), *range(100, 160)}
    assert len(small.requests()) == 1
    assert len(large.requests()) > 1
    reasons = [
        engine.get("reason")
        for page in pages
        for engine in page["_meta"]["x-gateway"]["engines"]
        if engine["id"] == "small"
    ]
    assert set(reasons[1:]) == {"kept", "exhausted"}


async def test_no_cursor_where_nothing_can_follow(engines: Any) -> None:
    """An answer that holds all there is has no cursor; one that holds all so far has, if an engine may have more."""
    few, full = await serving(engines, *range(3)), await serving(engines, *range(20), max_k=20)
    more = await serving(engines, *range(20))
    async with running([entry("few", few)]) as gateway:
        assert "nextCursor" not in await gateway.retrieve()
    async with running([entry("full", full)]) as gateway:
        assert "nextCursor" not in await gateway.retrieve(k=20)
        assert "nextCursor" in await gateway.retrieve(k=19)
    async with running([entry("more", more)], {"retrieve": {"overfetch": 1}}) as gateway:
        first = await gateway.retrieve(k=20)
        last = await gateway.retrieve(k=20, cursor=first["nextCursor"])
    assert last["hits"] == []
    assert "nextCursor" not in last


async def test_an_empty_answer_has_no_cursor(engines: Any) -> None:
    """No hits, no next page."""
    async with running([entry("e", await engines(results=[]))]) as gateway:
        assert "nextCursor" not in await gateway.retrieve()
        assert "nextCursor" not in await gateway.retrieve(_meta={"federation": {"depth": 0}})


@pytest.mark.parametrize(
    "change",
    [
        {"query": "another"},
        {"minScore": 0.1},
        {"filter": {"field": "lang", "op": "eq", "value": "en"}},
        {"x-gateway": {"identity": "uri"}},
        {"x-unknown": 1},
        {"fusion": {"rrfK": 10}},
    ],
)
async def test_a_cursor_belongs_to_its_params(engines: Any, change: Json) -> None:
    """With any other param than `k` and `_meta` it is -32602 with the field `cursor`, and stays valid for its own."""
    engine = await serving(engines, *range(30))
    async with running([entry("e", engine)]) as gateway:
        cursor = (await gateway.retrieve())["nextCursor"]
        error = await gateway.error("retrieve", {"query": "q", "cursor": cursor, **change})
        again = await gateway.retrieve(cursor=cursor, k=3, mode=None, _meta={"traceId": "other"})
    assert error["code"] == -32602
    assert error["data"]["field"] == "cursor"
    assert len(again["hits"]) == 3


async def test_nested_params_are_compared_whatever_their_order(engines: Any) -> None:
    """The same params in another order are the same params."""
    engine = await serving(engines, *range(30))
    async with running([entry("e", engine)]) as gateway:
        first = await gateway.retrieve(**{"fusion": {"rrfK": 9, "method": "rrf"}, "seed": 1})
        second = await gateway.result(
            "retrieve",
            {"cursor": first["nextCursor"], "seed": 1, "fusion": {"method": "rrf", "rrfK": 9}, "query": "q"},
        )
    assert len(second["hits"]) == 10


@pytest.mark.parametrize("cursor", ["", "nonsense", "x" * 10_000, "ü\ud800".encode("utf-16", "surrogatepass").hex()])
async def test_an_unknown_cursor_is_not_found(engines: Any, cursor: str) -> None:
    """What was never given out is -32015, and nobody is asked."""
    engine = await serving(engines, *range(30))
    async with running([entry("e", engine)]) as gateway:
        error = await gateway.error("retrieve", {"query": "q", "cursor": cursor})
    assert error["code"] == -32015
    assert not engine.requests()


async def test_an_altered_cursor_is_not_found(engines: Any) -> None:
    """A cursor with one character changed, added or taken away is -32015."""
    engine = await serving(engines, *range(30))
    async with running([entry("e", engine)]) as gateway:
        cursor = (await gateway.retrieve())["nextCursor"]
        for altered in (cursor + "0", cursor[:-1], ("0" if cursor[0] != "0" else "1") + cursor[1:]):
            assert (await gateway.error("retrieve", {"query": "q", "cursor": altered}))["code"] == -32015
        assert (await gateway.retrieve(cursor=cursor))["hits"]


async def test_a_cursor_must_be_a_string(engines: Any) -> None:
    """Any other type is malformed."""
    async with running([entry("e", await engines())]) as gateway:
        error = await gateway.error("retrieve", {"query": "q", "cursor": 7})
    assert error["code"] == -32602
    assert error["data"]["field"] == "cursor"


async def test_a_cursor_may_be_used_again_and_at_the_same_time(engines: Any) -> None:
    """Whoever comes with the same cursor gets the same page, also when engines must be asked for it."""
    engine = await serving(engines, *range(60))
    async with running([entry("e", engine)]) as gateway:
        first = await gateway.retrieve(k=15)
        params = {"query": "q", "k": 30, "cursor": first["nextCursor"]}
        message = {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": params}
        many = await asyncio.gather(*(gateway.post(message) for _ in range(5)))
        later = await gateway.retrieve(k=30, cursor=first["nextCursor"])
    assert len(later["hits"]) == 30
    assert all(page.json()["result"]["hits"] == later["hits"] for page in many)


async def test_the_first_page_asks_no_more_than_a_plain_retrieve(engines: Any) -> None:
    """Whether somebody will page or not, each engine is asked once, for the same."""
    engine = await serving(engines, *range(60))
    async with running([entry("e", engine)]) as gateway:
        await gateway.retrieve()
    assert [request.params["k"] for request in engine.requests()] == [20]
    assert "cursor" not in engine.requests()[0].params


async def test_min_score_ends_the_paging(engines: Any) -> None:
    """Where the floor is reached nothing follows, though engines would have more."""
    engine = await serving(engines, *range(60))
    async with running([entry("e", engine)]) as gateway:
        everything = await gateway.retrieve(k=20)
        floor = everything["hits"][12]["score"]
        pages = await pages_of(gateway, (5,), minScore=floor)
    assert ids(*pages) == ids(everything)[:13]
    assert all(found["score"] >= floor for page in pages for found in page["hits"])


async def test_a_token_budget_packs_each_page(engines: Any) -> None:
    """Each page is packed for itself; the next goes on after the last hit that was packed."""
    texts = [hit(number, 1 - number / 100, text="x" * (40 if number % 3 else 100)) for number in range(12)]
    engine = await engines(results=texts)
    async with running([entry("e", engine)]) as gateway:
        pages = await pages_of(gateway, (5,), tokenBudget=36)
    assert ids(*pages) == list(range(12))
    assert all(page["usage"]["tokens"] <= 36 for page in pages)
    assert [len(page["hits"]) for page in pages] == [2, 2, 2, 2, 2, 2]


async def test_text_stays_out_of_every_page(engines: Any) -> None:
    """`includeText: false` holds for later pages too."""
    engine = await serving(engines, *range(40))
    async with running([entry("e", engine)]) as gateway:
        pages = await pages_of(gateway, includeText=False)
    assert len(ids(*pages)) == 40
    assert all("text" not in found for page in pages for found in page["hits"])


async def test_an_engine_that_fails_deeper_keeps_its_part(engines: Any) -> None:
    """Where one engine fails deeper, its hits so far are served, and the answer is degraded; it is asked again."""
    steady, shaky = await serving(engines, *range(0, 40)), await serving(engines, *range(100, 140))
    async with running([entry("steady", steady), entry("shaky", shaky)]) as gateway:
        first = await gateway.retrieve(k=10)
        shaky.answers["retrieve"] = RpcFault(-32010, "gone")
        second = await gateway.retrieve(k=40, cursor=first["nextCursor"])
        shaky.answers["retrieve"] = corpus(*range(100, 140))
        third = await gateway.retrieve(k=40, cursor=second["nextCursor"])
    assert second["_meta"]["degraded"] == ["shaky"]
    assert any(note.startswith("shaky: refused") for note in second["usage"]["notes"])
    found = ids(first, second, third)
    assert len(found) == len(set(found))
    assert set(found) == {*range(40), *range(100, 140)}


async def test_nobody_answers_deeper(engines: Any) -> None:
    """What is kept is still served; then it is -32010, and the cursor remains good for when they are back."""
    engine = await serving(engines, *range(50))
    async with running([entry("e", engine)]) as gateway:
        first = await gateway.retrieve(k=10)
        engine.answers["retrieve"] = RpcFault(-32010, "gone")
        rest = await gateway.retrieve(k=10, cursor=first["nextCursor"])
        error = await gateway.error("retrieve", {"query": "q", "cursor": rest["nextCursor"]})
        engine.answers["retrieve"] = corpus(*range(50))
        again = await gateway.retrieve(k=10, cursor=rest["nextCursor"])
    assert ids(first, rest) == list(range(20))
    assert error["code"] == -32010
    assert error["data"]["retryable"]
    assert ids(again) == list(range(20, 30))


async def test_a_degraded_first_page_is_said_on_every_page(engines: Any) -> None:
    """An order that lacks an engine's part says so as long as it is served."""
    good, bad = await serving(engines, *range(20)), await engines()
    bad.answers["retrieve"] = RpcFault(-32010, "gone")
    async with running([entry("good", good), entry("bad", bad)]) as gateway:
        first = await gateway.retrieve(k=5)
        second = await gateway.retrieve(k=5, cursor=first["nextCursor"])
    assert first["_meta"]["degraded"] == second["_meta"]["degraded"] == ["bad"]


async def test_a_required_engine_that_fails_deeper_fails_the_page(engines: Any) -> None:
    """A required engine's failure is the page's, with its code."""
    engine = await serving(engines, *range(50))
    async with running([entry("e", engine, required=True)]) as gateway:
        first = await gateway.retrieve(k=20)
        engine.answers["retrieve"] = RpcFault(-32016, "no")
        kept = await gateway.retrieve(k=20, cursor=first["nextCursor"])
        error = await gateway.error("retrieve", {"query": "q", "cursor": kept["nextCursor"]})
    assert error["code"] == -32016


async def test_an_engine_that_changes_its_mind_loses_nothing(engines: Any) -> None:
    """If a deeper list lacks what an earlier one had, that is served all the same, once."""
    engine = await serving(engines, *range(40))
    async with running([entry("e", engine)]) as gateway:
        first = await gateway.retrieve(k=10)
        engine.answers["retrieve"] = corpus(*range(30, 70), *range(5))
        rest = await pages_of(gateway, (30,), cursor=first["nextCursor"])
    found = ids(first, *rest)
    assert len(found) == len(set(found))
    assert set(found) == {*range(20), *range(30, 70)}


async def test_an_engine_that_repeats_itself_ends(engines: Any) -> None:
    """An engine that gives the same few documents however deep it is asked does not keep a caller paging."""
    engine = await engines()

    async def answer(asked: Any) -> Json:
        return {"hits": [hit(number % 7, 1 - number / 1000) for number in range(asked.params["k"])]}

    engine.answers["retrieve"] = answer
    async with running([entry("e", engine)]) as gateway:
        pages = await pages_of(gateway, (5,))
    assert sorted(ids(*pages)) == list(range(7))


async def test_an_engine_that_always_gives_more_than_asked(engines: Any) -> None:
    """Hits beyond what was asked for are served, too, and do not keep a caller paging."""
    engine = await engines(results=[hit(number, 1 - number / 100) for number in range(50)])
    async with running([entry("e", engine)]) as gateway:
        pages = await pages_of(gateway, (10,))
    assert ids(*pages) == list(range(50))


async def test_a_late_engine_joins_deeper(engines: Any) -> None:
    """An engine that did not answer the first page is asked again when more is needed."""
    first_one, late = await serving(engines, *range(50)), await engines()
    late.answers["retrieve"] = hang
    async with running([entry("a", first_one), entry("late", late)]) as gateway:
        first = await gateway.retrieve(k=20, _meta={"deadlineMs": 3000})
        late.answers["retrieve"] = corpus(*range(100, 105))
        rest = await pages_of(gateway, (20,), cursor=first["nextCursor"])
    assert set(ids(first, *rest)) == {*range(50), *range(100, 105)}


async def test_cursors_are_bounded_and_forgotten(engines: Any) -> None:
    """Only so many cursors are kept: of more, the least recently used are -32015 before their time."""
    engine = await serving(engines, *range(60))
    async with running([entry("e", engine)], {"state": {"max_cursors": 3}}) as gateway:
        cursors = [(await gateway.retrieve())["nextCursor"] for _ in range(4)]
        error = await gateway.error("retrieve", {"query": "q", "cursor": cursors[0]})
        kept = [ids(await gateway.retrieve(cursor=cursor)) for cursor in cursors[2:]]
    assert error["code"] == -32015
    assert kept == [list(range(10, 20))] * 2


async def test_a_cursor_outlives_the_hits_it_was_to_serve(engines: Any) -> None:
    """Where hits are not kept the engines are asked again, and what was answered is left out."""
    one, two = await serving(engines, *range(30)), await serving(engines, *range(25, 60))
    async with running([entry("one", one), entry("two", two)], {"state": {"max_kept_hits": 0}}) as gateway:
        pages = await pages_of(gateway, (7,))
    found = ids(*pages)
    assert len(found) == len(set(found)) == 60
    assert len(one.requests()) == len(pages)


async def test_pages_without_engines(engines: Any) -> None:
    """A slice of what is kept is served even when no engine can be reached any more."""
    engine = await serving(engines, *range(20))
    async with running([entry("e", engine)]) as gateway:
        first = await gateway.retrieve()
        await engine.stop()
        second = await gateway.retrieve(cursor=first["nextCursor"])
    assert ids(first, second) == list(range(20))
