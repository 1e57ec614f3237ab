"""`retrieve` with `rerank` where the engines that retrieve cannot: the union is reranked by an engine that can."""

import asyncio
from typing import Any

import pytest

from tests.support.corpora import ids, pages_of, serving
from tests.support.listening_gateway import asking, listening, question
from tests.support.running_gateway import Json, RunningGateway, entry, running
from tests.support.scripted_engine import Asked, RpcFault, ScriptedEngine, hang, hit, hits

JUDGE: Json = {"rerank": {"methods": ["cross-encoder"], "models": ["m1"]}}
RERANK: Json = {"method": "cross-encoder"}


async def by_number(asked: Asked) -> Json:
    """Whose text ends with the larger number is better: the reverse of what the engines of `serving` say."""
    return {"scores": [float(text.rpartition(" ")[2]) for text in asked.params["passages"]]}


async def judging(engines: Any, answer: Any = by_number, **offer: Any) -> ScriptedEngine:
    """An engine that offers nothing but `rerank`."""
    judge: ScriptedEngine = await engines(capabilities={"rerank": {**JUDGE["rerank"], **offer}})
    judge.answers["rerank"] = answer
    return judge


def verdict(result: Json) -> Json:
    """What the report says of reranking."""
    found: Json = result["_meta"]["x-gateway"]["fusion"]["rerank"]
    return found


def scores(result: Json) -> list[float]:
    return [found["score"] for found in result["hits"]]


async def test_the_best_of_the_union_are_reranked(engines: Any) -> None:
    """Engines are asked without `rerank`; the reranker gets the query and the texts under both names, its values order
    the top and stand in `scores.rerank`, and the scores are those of the fused order, place by place."""
    one, two = await serving(engines, *range(10)), await serving(engines, *range(10, 20))
    judge = await judging(engines)
    async with running([entry("one", one), entry("two", two), entry("judge", judge)]) as gateway:
        plain = await gateway.retrieve(k=20)
        result = await gateway.retrieve(k=6, rerank={**RERANK, "model": "m1", "topN": 8})
    top = ids(plain)[:8]
    assert ids(result) == sorted(top, reverse=True)[:6]
    assert scores(result) == scores(plain)[:6]
    assert [found["scores"]["rerank"] for found in result["hits"]] == [float(found) for found in ids(result)]
    assert all(found["meta"]["fusedScore"] > 0 for found in result["hits"])
    assert result["usage"]["reranked"] == 8
    assert "notes" not in result["usage"]
    assert "degraded" not in result["_meta"]
    assert verdict(result)["engine"] == "judge"
    assert (verdict(result)["topN"], verdict(result)["reranked"]) == (8, 8)
    assert [(told["id"], told["status"]) for told in verdict(result)["asked"]] == [("judge", "ok")]
    assert "rerank" not in one.requests()[-1].params
    (asked,) = judge.requests("rerank")
    assert asked.params["passages"] == asked.params["documents"] == [f"text of {found}" for found in top]
    assert (asked.params["query"], asked.params["method"], asked.params["model"]) == ("q", "cross-encoder", "m1")
    assert "topN" not in asked.params
    assert asked.params["_meta"]["federation"]["path"] == [gateway.state.membership.current().identity]
    assert 0 < asked.params["_meta"]["deadlineMs"] < 10_000


async def test_what_is_beyond_the_top_follows_in_the_fused_order(engines: Any) -> None:
    """After the reranked top the fused order goes on, without values, and the scores go on falling."""
    one = await serving(engines, *range(20))
    async with running([entry("one", one), entry("judge", await judging(engines))]) as gateway:
        plain = await gateway.retrieve(k=12)
        pages = await pages_of(gateway, (5, 4, 3), rerank={**RERANK, "topN": 5})
    assert ids(*pages)[:12] == [4, 3, 2, 1, 0, *range(5, 12)]
    assert [score for page in pages for score in scores(page)][:12] == scores(plain)
    assert all("scores" not in found for found in pages[1]["hits"])


async def test_engines_are_asked_deep_enough_for_the_top(engines: Any) -> None:
    """With `topN` above the usual window each engine is asked for so many; without it the window is reranked."""
    one, judge = await serving(engines, *range(60), max_k=500), await judging(engines)
    async with running([entry("one", one), entry("judge", judge)]) as gateway:
        await gateway.retrieve(k=5, rerank={**RERANK, "topN": 50})
        await gateway.retrieve(k=5, rerank=RERANK)
    assert [asked.params["k"] for asked in one.requests()] == [50, 20]
    assert [len(asked.params["passages"]) for asked in judge.requests("rerank")] == [50, 20]


async def test_engines_that_rerank_by_themselves_come_first(engines: Any) -> None:
    """As long as one retrieving engine can rerank as asked, it is routed there and no union is reranked."""
    able = await engines(capabilities={"retrieve": {"rerankBuiltin": True}, **JUDGE}, results=hits(1, 2))
    plain, judge = await serving(engines, 3, 4), await judging(engines)
    entries = [entry("able", able), entry("plain", plain), entry("judge", judge)]
    async with running(entries) as gateway:
        strict = await gateway.retrieve(rerank=RERANK)
        lenient = await gateway.retrieve(rerank=RERANK, strict=False)
        other = await gateway.retrieve(rerank=RERANK, **{"x-gateway": {"engines": ["plain", "judge"]}})
    assert ids(strict) == [1, 2]
    assert set(ids(lenient)) == {1, 2, 3, 4}
    assert ids(other) == [4, 3]
    assert able.requests()[0].params["rerank"] == RERANK
    assert len(judge.requests("rerank")) == 1


@pytest.mark.parametrize(
    "rerank", [{"method": "llm"}, {"method": "cross-encoder", "model": "m2"}], ids=["method", "model"]
)
async def test_a_rerank_that_no_engine_offers(engines: Any, rerank: Json) -> None:
    """Strict it is -32005 as from one engine; else the answer is not reranked, and says so."""
    entries = [entry("one", await serving(engines, 1, 2)), entry("judge", await judging(engines))]
    async with running(entries) as gateway:
        error = await gateway.error("retrieve", {"query": "q", "rerank": rerank})
        result = await gateway.retrieve(rerank=rerank, strict=False)
    assert (error["code"], error["data"]["option"]) == (-32005, "rerank")
    assert ids(result) == [1, 2]
    assert "rerank" not in result["_meta"]["x-gateway"]["fusion"]
    assert any("asked without 'rerank'" in note for note in result["usage"]["notes"])


async def test_lenient_requests_are_reranked_too(engines: Any) -> None:
    """`strict: false` degrades only what nobody can do."""
    entries = [entry("one", await serving(engines, 1, 2)), entry("judge", await judging(engines))]
    async with running(entries) as gateway:
        result = await gateway.retrieve(rerank=RERANK, strict=False)
    assert ids(result) == [2, 1]
    assert "notes" not in result["usage"]


async def test_it_can_be_switched_off(engines: Any) -> None:
    """Without `retrieve.rerank_union` the request is refused and `rerankBuiltin` is not advertised."""
    entries = [entry("one", await serving(engines, 1, 2)), entry("judge", await judging(engines))]
    async with running(entries) as gateway:
        offered = (await gateway.result("info"))["capabilities"]["retrieve"]
    async with running(entries, {"retrieve": {"rerank_union": False}}) as gateway:
        withdrawn = (await gateway.result("info"))["capabilities"]["retrieve"]
        error = await gateway.error("retrieve", {"query": "q", "rerank": RERANK})
    assert offered["rerankBuiltin"] is True
    assert "rerankBuiltin" not in withdrawn
    assert error["code"] == -32005


async def test_nothing_is_advertised_without_a_reranker(engines: Any) -> None:
    """`rerankBuiltin` needs an engine that reranks, in `retrieve` or by itself."""
    async with running([entry("one", await serving(engines, 1))]) as gateway:
        assert "rerankBuiltin" not in (await gateway.result("info"))["capabilities"]["retrieve"]


BROKEN = [
    (RpcFault(-32010, "gone"), "refused"),
    (RpcFault(-32602, "no"), "refused"),
    ({"scores": [1.0]}, "protocol"),
    ({"scores": ["1.0", "2.0"]}, "protocol"),
    ({"scores": [True, False]}, "protocol"),
    ({"results": []}, "protocol"),
    ({"results": [{"index": 7, "score": 1.0}]}, "protocol"),
    ({}, "protocol"),
]


@pytest.mark.parametrize(("answer", "kind"), BROKEN)
async def test_without_a_reranker_that_answers_the_fused_order_stands(engines: Any, answer: Any, kind: str) -> None:
    """A success with a note, the reranker among the degraded, whatever it did wrong."""
    judge = await judging(engines, answer)
    async with running([entry("one", await serving(engines, 1, 2)), entry("judge", judge)]) as gateway:
        result = await gateway.retrieve(rerank=RERANK)
        failures = await gateway.metric("rcp_gateway_legs_total", engine="judge", outcome=kind)
    assert ids(result) == [1, 2]
    assert all("scores" not in found for found in result["hits"])
    assert result["usage"]["reranked"] == 0
    assert result["_meta"]["degraded"] == ["judge"]
    failure, stands = result["usage"]["notes"]
    assert failure.startswith(f"rerank: judge: {kind} after ")
    assert stands == "rerank: the fused order is unchanged: no reranker answered"
    assert verdict(result)["engine"] is None
    assert verdict(result)["asked"][0]["reason"] == kind
    assert failures == 1


async def test_the_next_reranker_is_asked_when_one_fails(engines: Any) -> None:
    """By priority, then by id; who failed is noted, and the answer is whole."""
    first, second = await judging(engines, RpcFault(-32014, "late")), await judging(engines)
    third = await judging(engines)
    entries = [
        entry("one", await serving(engines, 1, 2)),
        entry("zz", first, priority=5),
        entry("b", third),
        entry("a", second),
    ]
    async with running(entries) as gateway:
        result = await gateway.retrieve(rerank=RERANK)
    assert ids(result) == [2, 1]
    assert verdict(result)["engine"] == "a"
    assert [told["id"] for told in verdict(result)["asked"]] == ["a", "zz"]
    assert "degraded" not in result["_meta"]
    assert [note.split(" after ")[0] for note in result["usage"]["notes"]] == ["rerank: zz: refused"]
    assert third.requests("rerank") == []


async def test_who_takes_all_passages_is_asked_first(engines: Any) -> None:
    """A reranker of fewer candidates is asked only when none takes all; it gets the best, and the others follow."""
    small = await judging(engines, maxCandidates=3)
    large = await judging(engines, maxCandidates=100)
    one = await serving(engines, *range(10))
    async with running([entry("one", one), entry("small", small, priority=9), entry("large", large)]) as gateway:
        result = await gateway.retrieve(rerank=RERANK)
        only = await gateway.retrieve(rerank=RERANK, **{"x-gateway": {"engines": ["one", "small"]}})
    assert verdict(result)["engine"] == "large"
    assert ids(only) == [2, 1, 0, *range(3, 10)]
    assert only["usage"]["reranked"] == 3
    assert any("scored only 3 of 10 passages" in note for note in only["usage"]["notes"])


async def test_results_by_index_are_understood(engines: Any) -> None:
    """`results` in place of `scores`; a passage that is not in it follows those that are."""
    judge = await judging(engines, {"results": [{"index": 2, "score": 0.9}, {"index": 0, "score": 0.4}]})
    async with running([entry("one", await serving(engines, 1, 2, 3)), entry("judge", judge)]) as gateway:
        result = await gateway.retrieve(rerank=RERANK)
    assert ids(result) == [3, 1, 2]
    assert result["usage"]["reranked"] == 2


async def test_hits_without_text_come_after_the_reranked(engines: Any) -> None:
    """There is nothing to judge them by; a note counts them. Without any text nobody is asked."""
    mute = {"id": "mute", "score": 1.0}
    one = await engines(results=[mute, hit(1, 0.9), hit(2, 0.8)])
    none = await engines(results=[mute])
    judge = await judging(engines)
    async with running([entry("one", one), entry("none", none), entry("judge", judge)]) as gateway:
        some = await gateway.retrieve(rerank=RERANK, **{"x-gateway": {"engines": ["one", "judge"]}})
        empty = await gateway.retrieve(rerank=RERANK, **{"x-gateway": {"engines": ["none", "judge"]}})
    assert ids(some) == [2, 1, "mute"]
    assert any("1 of the top 3 documents have no text" in note for note in some["usage"]["notes"])
    assert ids(empty) == ["mute"]
    assert empty["usage"]["notes"] == ["rerank: the fused order is unchanged: no document has text"]
    assert len(judge.requests("rerank")) == 1


async def test_texts_are_fetched_even_if_the_caller_wants_none(engines: Any) -> None:
    """`includeText: false` leaves them out of the answer, not out of what is judged."""
    one = await serving(engines, 1, 2)
    async with running([entry("one", one), entry("judge", await judging(engines))]) as gateway:
        result = await gateway.retrieve(rerank=RERANK, includeText=False)
    assert ids(result) == [2, 1]
    assert "includeText" not in one.requests()[0].params
    assert all("text" not in found for found in result["hits"])


async def test_an_empty_union_is_not_reranked(engines: Any) -> None:
    """Nothing to judge is no failure and no note."""
    judge = await judging(engines)
    async with running([entry("one", await serving(engines)), entry("judge", judge)]) as gateway:
        result = await gateway.retrieve(rerank=RERANK)
    assert result["hits"] == []
    assert "notes" not in result["usage"]
    assert judge.requests("rerank") == []


async def test_the_deadline_is_kept_for_a_slow_engine_and_a_slow_reranker(engines: Any) -> None:
    """The engines leave time for the reranker, and the reranker ends in time: the fused order is answered."""
    slow = await engines()
    slow.answers["retrieve"] = hang
    judge = await judging(engines, hang)
    entries = [entry("one", await serving(engines, 1, 2)), entry("slow", slow), entry("judge", judge)]
    async with running(entries) as gateway:
        result = await gateway.retrieve(rerank=RERANK, _meta={"deadlineMs": 4000})
    assert ids(result) == [1, 2]
    assert result["_meta"]["degraded"] == ["judge", "slow"]
    (asked,) = judge.requests("rerank")
    assert 0 < asked.params["_meta"]["deadlineMs"] <= 4000 * 0.3 + 100
    assert 0 < slow.requests()[0].params["_meta"]["deadlineMs"] <= 4000 * 0.7


async def test_the_next_reranker_has_no_more_time_than_is_left(engines: Any) -> None:
    """When the first takes the time there is, the fused order is unchanged, whatever became of the second."""
    first, second = await judging(engines, hang), await judging(engines, hang)
    entries = [entry("one", await serving(engines, 1, 2)), entry("a", first), entry("b", second)]
    async with running(entries, {"retrieve": {"reserve_ms": 0}}) as gateway:
        result = await gateway.retrieve(rerank=RERANK, _meta={"deadlineMs": 3000})
    assert ids(result) == [1, 2]
    assert verdict(result)["engine"] is None


@pytest.mark.parametrize("ks", [(3,), (4, 2, 7)])
async def test_pages_of_a_reranked_order_have_no_repeats_and_no_gaps(engines: Any, ks: Any) -> None:
    """Down to each engine's bound; within what is kept no reranker is asked again."""
    one, two = await serving(engines, *range(25)), await serving(engines, *range(20, 45), max_k=30)
    judge = await judging(engines)
    async with running([entry("one", one), entry("two", two), entry("judge", judge)]) as gateway:
        pages = await pages_of(gateway, ks, rerank={**RERANK, "topN": 10})
    found = ids(*pages)
    assert sorted(found) == list(range(45))
    assert 1 <= len(judge.requests("rerank")) < len(pages)
    for page in pages:
        assert scores(page) == sorted(scores(page), reverse=True)
        assert all(0 <= score <= 1 for score in scores(page))
    kept = [page for page in pages if page["usage"]["candidates"] == 0]
    assert kept
    assert all(page["usage"]["reranked"] == 0 for page in kept)


async def test_the_same_cursor_gives_the_same_page(engines: Any) -> None:
    """Also when the reranker would judge otherwise by then: the order that was kept is served."""
    one, judge = await serving(engines, *range(20)), await judging(engines)
    async with running([entry("one", one), entry("judge", judge)]) as gateway:
        first = await gateway.retrieve(k=5, rerank=RERANK)
        judge.answers["rerank"] = RpcFault(-32010)
        twice = [await gateway.retrieve(k=5, rerank=RERANK, cursor=first["nextCursor"]) for _ in range(2)]
    assert ids(first) == [19, 18, 17, 16, 15]
    assert [ids(page) for page in twice] == [[14, 13, 12, 11, 10]] * 2
    assert twice[0]["hits"] == twice[1]["hits"]


async def test_a_reranker_that_is_back_is_no_longer_degraded(engines: Any) -> None:
    """A page of what was kept still tells that nobody reranked it; a deeper question is reranked for itself."""
    one, judge = await serving(engines, *range(40)), await judging(engines, RpcFault(-32010))
    async with running([entry("one", one), entry("judge", judge)]) as gateway:
        first = await gateway.retrieve(k=15, rerank=RERANK)
        judge.answers["rerank"] = by_number
        kept = await gateway.retrieve(k=5, rerank=RERANK, cursor=first["nextCursor"])
        deeper = await gateway.retrieve(k=20, rerank=RERANK, cursor=kept["nextCursor"])
    assert first["_meta"]["degraded"] == kept["_meta"]["degraded"] == ["judge"]
    assert "degraded" not in deeper["_meta"]
    assert verdict(deeper)["engine"] == "judge"
    assert sorted(ids(first, kept, deeper)) == list(range(40))


async def test_sessions_go_on_through_reranked_answers(engines: Any) -> None:
    """What was answered under a session does not come again, and each answer is reranked for itself."""
    one = await serving(engines, *range(40))
    async with running([entry("one", one), entry("judge", await judging(engines))]) as gateway:
        answers = [await gateway.retrieve(query=f"q{turn}", k=10, rerank=RERANK, sessionId="s") for turn in range(4)]
    assert sorted(ids(*answers)) == list(range(40))
    for answer in answers:
        assert ids(answer) == sorted(ids(answer), reverse=True)


async def test_min_score_and_budget_apply_to_the_reranked_order(engines: Any) -> None:
    """`minScore` is compared with the score that is answered; `tokenBudget` packs from the reranked top."""
    one = await serving(engines, *range(10))
    async with running([entry("one", one), entry("judge", await judging(engines))]) as gateway:
        plain = await gateway.retrieve(k=10)
        floor = scores(plain)[3]
        floored = await gateway.retrieve(k=10, rerank={**RERANK, "topN": 10}, minScore=floor)
        packed = await gateway.retrieve(k=10, rerank={**RERANK, "topN": 10}, tokenBudget=6)
    assert ids(floored) == [9, 8, 7, 6]
    assert ids(packed) == [9, 8]


async def reading_progress(state: Any, port: int) -> list[Json]:
    frames: list[Json] = []
    async with asking(port, question(rerank=RERANK)) as reader:
        await reader.head()
        while (message := await reader.message()) is not None:
            frames.append(message)
    return frames


@pytest.mark.parametrize(
    ("answer", "said"), [(by_number, "judge: 2 documents reranked"), (RpcFault(-32010), "the fused order is unchanged")]
)
async def test_the_stream_has_a_stage_of_its_own(engines: Any, answer: Any, said: str) -> None:
    """After `fuse` comes `rerank`, then the response."""
    entries = [entry("one", await serving(engines, 1, 2)), entry("judge", await judging(engines, answer))]
    async with listening(entries) as (state, port):
        frames = await reading_progress(state, port)
    assert [frame["params"]["stage"] for frame in frames[:-1]] == ["recall", "fuse", "rerank"]
    assert frames[-2]["params"]["message"] == said
    assert frames[-2]["params"]["progress"] == 1.0
    assert frames[-1]["result"]["hits"]


async def test_a_caller_that_leaves_ends_the_rerank(engines: Any) -> None:
    """Cancelled while the reranker thinks: answered once with -32006, and the leg is counted as cancelled."""
    arrived = asyncio.Event()

    async def think(asked: Asked) -> Any:
        arrived.set()
        await asyncio.Event().wait()

    entries = [
        entry("one", await serving(engines, 1, 2)),
        entry("judge", await judging(engines, think), timeoutMs=60000),
    ]
    async with running(entries, {"retrieve": {"deadline_ms": 60000}}) as gateway:
        call = asyncio.create_task(asked_in_session(gateway))
        await arrived.wait()
        notice = {"jsonrpc": "2.0", "method": "notifications/cancel", "params": {"id": 7}}
        await gateway.post(notice, headers={"RCP-Session": "s"})
        answer = await call
        assert await gateway.metric("rcp_gateway_legs_total", engine="judge", outcome="cancelled") == 1
    assert answer["error"]["code"] == -32006


async def asked_in_session(gateway: RunningGateway) -> Json:
    message = {"jsonrpc": "2.0", "id": 7, "method": "retrieve", "params": {"query": "q", "rerank": RERANK}}
    answer: Json = (await gateway.post(message, headers={"RCP-Session": "s"})).json()
    return answer
