"""`graph`: who is asked for what, and what the answers of several graphs become; every operation and its failures."""

from typing import Any

import pytest

from tests.support.corpora import ids
from tests.support.graphs import bare, graphing, reported
from tests.support.listening_gateway import asking, listening
from tests.support.running_gateway import Json, entry, running, until
from tests.support.scripted_engine import RpcFault, ScriptedEngine, hang, hit, hits


def sent(engine: ScriptedEngine) -> Json:
    """The params of the last `graph`, without `_meta`."""
    params = dict(engine.requests("graph")[-1].params)
    params.pop("_meta")
    return params


async def test_local_fuses_hits_as_retrieve_does(engines: Any) -> None:
    """Every engine with the operation is asked for more than `k`; copies become one hit that says whose it is."""
    one = await graphing(engines, {"hits": hits("a", "b", "c")})
    two = await graphing(engines, {"hits": hits("b", "d")})
    other = await graphing(engines, {"hits": hits("z")}, ops=["global"])
    async with running([entry("one", one), entry("two", two), entry("other", other)]) as gateway:
        result = await gateway.result("graph", {"op": "local", "query": "q", "k": 3, "level": 1, "x-acme": {"a": 1}})
    assert ids(result) == ["b", "a", "d"]
    assert {mark["id"] for mark in result["hits"][0]["meta"]["engines"]} == {"one", "two"}
    assert sent(one) == sent(two) == {"op": "local", "query": "q", "k": 20, "level": 1, "x-acme": {"a": 1}}
    assert other.requests("graph") == []
    assert reported(result) == {"one": "ok", "two": "ok", "other": "option"}
    assert result["usage"]["candidates"] == 5
    assert result["usage"]["latencyMs"] >= 0
    assert set(result) == {"hits", "usage", "_meta"}


async def test_what_engines_get_besides_the_params(engines: Any) -> None:
    """Less time than the caller has, one level less, our identity, and what else its `_meta` says; not its token."""
    engine = await graphing(engines, {"hits": []})
    meta = {"deadlineMs": 9000, "federation": {"depth": 2, "path": ["p"]}, "progressToken": "t", "traceId": "x"}
    async with running([entry("e", engine)]) as gateway:
        identity = gateway.state.membership.current().identity
        await gateway.result("graph", {"op": "local", "query": "q", "_meta": meta})
    told = engine.requests("graph")[0].params["_meta"]
    assert 0 < told.pop("deadlineMs") < 9000
    assert told == {"federation": {"depth": 1, "path": ["p", identity]}, "traceId": "x"}


async def test_drift_joins_followups_without_repeats(engines: Any) -> None:
    """Hits are fused; questions come by turns, each once, however they are spaced and cased."""
    one = await graphing(engines, {"hits": hits("a"), "followups": ["Why so?", "What then?"]})
    two = await graphing(engines, {"hits": hits("b"), "followups": ["why  so?", "Who?", 7, " "]})
    async with running([entry("two", two), entry("one", one)]) as gateway:
        result = await gateway.result("graph", {"op": "drift", "query": "q"})
    assert result["followups"] == ["Why so?", "What then?", "Who?"]
    assert set(ids(result)) == {"a", "b"}
    assert result["usage"]["notes"] == ["two: 2 malformed member(s) of its result dropped"]


async def test_global_joins_summaries_and_communities(engines: Any) -> None:
    """Summaries become paragraphs behind their engines' names; communities are ordered by score, and ids that two
    engines use are told apart by the engine."""
    one = await graphing(engines, {"summary": "All is well.", "communities": [{"id": 1, "score": 0.4}, {"id": "x"}]})
    two = await graphing(engines, {"summary": "Mostly.", "communities": [{"id": "1", "score": 0.9, "summary": "s"}]})
    async with running([entry("one", one), entry("two", two, priority=1)]) as gateway:
        result = await gateway.result("graph", {"op": "global", "query": "q"})
    assert result["summary"] == "two: Mostly.\n\none: All is well."
    assert bare(result["communities"]) == [
        {"id": "two:1", "score": 0.9, "summary": "s"},
        {"id": "one:1", "score": 0.4},
        {"id": "x"},
    ]
    assert [found["meta"]["engine"] for found in result["communities"]] == ["two", "one", "one"]
    assert "hits" not in result


async def test_one_engines_answer_stays_what_it_is(engines: Any) -> None:
    """A lone summary has no name before it, ids keep their type, and fields that we do not know are handed through."""
    one = await graphing(engines, {"summary": "All.", "communities": [{"id": 1}], "x-model": "m", "report": {"a": 1}})
    async with running([entry("one", one)]) as gateway:
        result = await gateway.result("graph", {"op": "global", "query": "q"})
    assert (result["summary"], bare(result["communities"])) == ("All.", [{"id": 1}])
    assert (result["x-model"], result["report"]) == ("m", {"a": 1})


async def test_communities_are_bounded_by_k(engines: Any) -> None:
    """The best `k` of all engines' communities; an `idNamespace` is always put before ids."""
    one = await graphing(engines, {"communities": [{"id": "a", "score": 3}, {"id": "b", "score": 1}]})
    two = await graphing(engines, {"communities": [{"id": "a", "score": 2}]})
    async with running([entry("one", one, idNamespace="n"), entry("two", two)]) as gateway:
        result = await gateway.result("graph", {"op": "communities", "k": 2})
    assert bare(result["communities"]) == [{"id": "n:a", "score": 3}, {"id": "a", "score": 2}]
    assert sent(one)["k"] == 2


async def test_neighbors_joins_nodes_and_edges(engines: Any) -> None:
    """Nodes are one by id, edges by their ends and kind; the largest weight is kept, missing fields are filled in."""
    one = await graphing(
        engines,
        {
            "nodes": [{"id": "a", "score": 0.2, "label": "A"}, {"id": "b"}],
            "edges": [{"src": "a", "dst": "b", "weight": 0.5}, {"src": "a", "dst": "b", "type": "cites"}],
        },
    )
    two = await graphing(
        engines, {"nodes": [{"id": "a", "score": 0.7, "kind": "k"}], "edges": [{"src": "a", "dst": "b", "weight": 0.9}]}
    )
    async with running([entry("one", one), entry("two", two)]) as gateway:
        result = await gateway.result("graph", {"op": "neighbors", "seedIds": ["a"], "hops": 2})
    assert bare(result["nodes"]) == [{"id": "a", "score": 0.7, "label": "A", "kind": "k"}, {"id": "b"}]
    assert bare(result["edges"]) == [{"src": "a", "dst": "b", "weight": 0.9}, {"src": "a", "dst": "b", "type": "cites"}]
    assert result["nodes"][0]["meta"]["engines"] == [{"id": "one"}, {"id": "two"}]
    assert sent(one) == {"op": "neighbors", "seedIds": ["a"], "hops": 2}


async def test_seeds_go_to_their_owners(engines: Any) -> None:
    """A seed with a namespace reaches only that namespace's engines, without it; others reach those that have none. Ids
    come back with it, also at the ends of edges."""
    answer = {"nodes": [{"id": "1"}], "edges": [{"src": "1", "dst": "2"}]}
    docs, code = await graphing(engines, answer), await graphing(engines, answer)
    entries = [entry("docs", docs, idNamespace="d"), entry("code", code)]
    async with running(entries) as gateway:
        both = await gateway.result("graph", {"op": "neighbors", "seedIds": ["d:1", "7", "e:9", 5]})
        only = await gateway.result("graph", {"op": "neighbors", "seedIds": ["d:1", "d:2"]})
    assert docs.requests("graph")[0].params["seedIds"] == ["1"]
    assert code.requests("graph")[0].params["seedIds"] == ["7", "e:9", 5]
    assert bare(both["nodes"]) == [{"id": "1"}, {"id": "d:1"}]
    assert bare(both["edges"]) == [{"src": "1", "dst": "2"}, {"src": "d:1", "dst": "d:2"}]
    assert docs.requests("graph")[1].params["seedIds"] == ["1", "2"]
    assert len(code.requests("graph")) == 1
    assert reported(only) == {"docs": "ok", "code": "seeds"}


async def test_seeds_that_no_engine_owns(engines: Any) -> None:
    """If the owner has no graph nobody is asked: -32602 names the field. With a query it is asked without them."""
    plain = await engines()
    graph = await graphing(engines, {"hits": hits("a"), "nodes": []})
    async with running([entry("plain", plain, idNamespace="p"), entry("graph", graph)]) as gateway:
        error = await gateway.error("graph", {"op": "neighbors", "seedIds": ["p:1"]})
        result = await gateway.result("graph", {"op": "local", "query": "q", "seedIds": ["p:1"]})
    assert (error["code"], error["data"]["field"]) == (-32602, "seedIds")
    assert ids(result) == ["a"]
    assert "seedIds" not in sent(graph)


async def test_hops_are_bounded(engines: Any) -> None:
    """More than five are lowered, with a note."""
    engine = await graphing(engines, {"nodes": [], "edges": []})
    async with running([entry("e", engine)]) as gateway:
        result = await gateway.result("graph", {"op": "neighbors", "seedIds": ["a"], "hops": 9})
        await gateway.result("graph", {"op": "neighbors", "seedIds": ["a"], "hops": 5})
    assert [asked.params["hops"] for asked in engine.requests("graph")] == [5, 5]
    assert result["usage"]["notes"] == ["hops: at most 5 are walked, not 9"]


async def test_sessions_reach_engines_under_another_name(engines: Any) -> None:
    """As for `retrieve`: hashed, and not where an engine leaves out hits by itself."""
    one = await graphing(engines, {"hits": []})
    two = await graphing(engines, {"hits": []}, session={"dedup": True})
    async with running([entry("one", one), entry("two", two)]) as gateway:
        await gateway.result("graph", {"op": "local", "query": "q", "sessionId": "mine"})
    assert sent(one)["sessionId"] not in ("mine", "")
    assert "sessionId" not in sent(two)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({}, "op"),
        ({"op": 7}, "op"),
        ({"op": "neighbors"}, "seedIds"),
        ({"op": "neighbors", "seedIds": []}, "seedIds"),
        ({"op": "neighbors", "seedIds": [True]}, "seedIds[0]"),
        ({"op": "local", "query": " "}, "query"),
        ({"op": "local", "query": "q", "k": 0}, "k"),
        ({"op": "local", "query": "q", "k": True}, "k"),
        ({"op": "neighbors", "seedIds": ["a"], "hops": 0}, "hops"),
        ({"op": "local", "level": -1}, "level"),
        ({"op": "local", "sessionId": ""}, "sessionId"),
        ({"op": "local", "x-gateway": {"engines": []}}, "x-gateway.engines"),
        ({"op": "local", "x-gateway": {"engines": ["nobody"]}}, "x-gateway.engines"),
        ({"op": "local", "_meta": {"deadlineMs": 0}}, "_meta.deadlineMs"),
    ],
)
async def test_what_is_malformed(engines: Any, params: Json, field: str) -> None:
    """-32602 names the field, and no engine is asked."""
    engine = await graphing(engines, {"hits": []})
    async with running([entry("e", engine)]) as gateway:
        error = await gateway.error("graph", params)
    assert (error["code"], error["data"]["field"]) == (-32602, field)
    assert engine.requests("graph") == []


@pytest.mark.parametrize("op", ["drift", "dig"])
async def test_an_operation_that_nobody_has(engines: Any, op: str) -> None:
    """-32005 with the option, whether RCP knows it or not."""
    engine = await graphing(engines, {"hits": []}, ops=["local"])
    async with running([entry("e", engine)]) as gateway:
        error = await gateway.error("graph", {"op": op, "query": "q"})
    assert (error["code"], error["data"]["option"]) == (-32005, "op")


async def test_without_a_graph(engines: Any) -> None:
    """-32003, before the params are looked at; then `graph` is not advertised either."""
    async with running([entry("e", await engines())]) as gateway:
        error = await gateway.error("graph", {"op": 7})
        offered = (await gateway.result("info"))["capabilities"]
    assert error["code"] == -32003
    assert "graph" not in offered


async def test_the_advertisement_is_the_union(engines: Any) -> None:
    """Operations of all engines that have a graph."""
    one, two = await graphing(engines, {}, ops=["local"]), await graphing(engines, {}, ops=["global", "local"])
    async with running([entry("one", one), entry("two", two)]) as gateway:
        assert (await gateway.result("info"))["capabilities"]["graph"] == {"ops": ["local", "global"]}


async def test_an_engine_that_fails_is_left_out(engines: Any) -> None:
    """A partial answer names it in notes, report and `_meta.degraded`; malformed answers are failures, too."""
    good = await graphing(engines, {"hits": hits("a")})
    broken = await graphing(engines, {"nodes": []})
    gone = await graphing(engines, RpcFault(-32010, "gone"))
    async with running([entry("good", good), entry("broken", broken), entry("gone", gone)]) as gateway:
        result = await gateway.result("graph", {"op": "local", "query": "q"})
        assert await gateway.metric("rcp_gateway_legs_total", engine="broken", outcome="protocol") == 1
        assert await gateway.metric("rcp_gateway_requests_total", method="graph", outcome="degraded") == 1
    assert ids(result) == ["a"]
    assert result["_meta"]["degraded"] == ["broken", "gone"]
    assert reported(result) == {"good": "ok", "broken": "protocol", "gone": "refused"}
    assert [note.split(" after ")[0] for note in result["usage"]["notes"]] == ["broken: protocol", "gone: refused"]


async def test_every_engine_fails(engines: Any) -> None:
    """-32010 with a note for each; -32014 if the caller's own deadline was the reason."""
    one, two = await graphing(engines, RpcFault(-32603)), await graphing(engines, hang)
    async with running([entry("one", one), entry("two", two, timeoutMs=200)]) as gateway:
        error = await gateway.error("graph", {"op": "local", "query": "q"})
        late = {"op": "local", "query": "q", "x-gateway": {"engines": ["two"]}, "_meta": {"deadlineMs": 50}}
        timeout = await gateway.error("graph", late)
    assert error["code"] == -32010
    assert [note.split(" after ")[0] for note in error["data"]["notes"]] == ["one: protocol", "two: timeout"]
    assert timeout["code"] == -32014


async def test_a_required_engine_fails_the_whole(engines: Any) -> None:
    """With its own code, whoever else answered."""
    good, bad = await graphing(engines, {"hits": []}), await graphing(engines, RpcFault(-32016, "busy"))
    async with running([entry("good", good), entry("bad", bad, required=True)]) as gateway:
        error = await gateway.error("graph", {"op": "local", "query": "q"})
    assert error["code"] == -32016
    assert "required engine 'bad'" in error["message"]


async def test_only_named_engines_are_asked(engines: Any) -> None:
    """`x-gateway.engines` restricts; an engine that is configured and down counts as failed."""
    one, two = await graphing(engines, {"hits": hits("a")}), await graphing(engines, {"hits": hits("b")})
    entries = [entry("one", one), entry("two", two), entry("down", "http://127.0.0.1:9/rcp")]
    async with running(entries, reach=False) as gateway:
        await until_two(gateway)
        some = await gateway.result("graph", {"op": "local", "query": "q", "x-gateway": {"engines": ["one", "down"]}})
        none = await gateway.error("graph", {"op": "local", "query": "q", "x-gateway": {"engines": ["down"]}})
    assert ids(some) == ["a"]
    assert reported(some) == {"one": "ok", "two": "not_selected", "down": "unreached"}
    assert some["_meta"]["degraded"] == ["down"]
    assert none["code"] == -32010


async def until_two(gateway: Any) -> None:
    await until(lambda: sum(engine.advertisement is not None for engine in gateway.state.engines.engines) == 2)


@pytest.mark.parametrize(
    ("op", "empty"),
    [
        ("local", {"hits": []}),
        ("drift", {"hits": [], "followups": []}),
        ("global", {"summary": "", "communities": []}),
        ("communities", {"communities": []}),
        ("neighbors", {"nodes": [], "edges": []}),
    ],
)
async def test_where_nobody_may_be_asked(engines: Any, op: str, empty: Json) -> None:
    """A used-up depth, or our own identity in the path: an empty success with a note, as for `retrieve`."""
    engine = await graphing(engines, {})
    async with running([entry("e", engine)]) as gateway:
        identity = gateway.state.membership.current().identity
        for federation in ({"depth": 0}, {"path": [identity]}):
            params = {"op": op, "query": "q", "seedIds": ["a"], "_meta": {"federation": federation}}
            result = await gateway.result("graph", params)
            assert {key: result[key] for key in result if key not in ("usage", "_meta")} == empty
            assert result["usage"]["notes"][0].startswith("no engine was asked: ")
    assert engine.requests("graph") == []


async def test_a_graph_sends_progress(engines: Any) -> None:
    """As an event stream: each engine that ended, then `fuse`, then the plain answer."""
    one = await graphing(engines, {"hits": [hit("a")]})
    message = {"jsonrpc": "2.0", "id": 1, "method": "graph"}
    async with listening([entry("one", one)]) as (_, port):
        params = {"op": "local", "query": "q", "_meta": {"progressToken": 5, "logLevel": "debug"}}
        async with asking(port, {**message, "params": params}) as reader:
            await reader.head()
            frames = [frame async for frame in every_frame(reader)]
        plain = {"op": "global", "query": "q", "_meta": {"progressToken": 5}}
        one.answers["graph"] = {"summary": "s"}
        async with asking(port, {**message, "params": plain}) as reader:
            await reader.head()
            others = [frame async for frame in every_frame(reader)]
    log, first, second, last = frames
    assert log["method"] == "notifications/log"
    assert (first["params"]["stage"], first["params"]["progressToken"], first["params"]["progress"]) == ("recall", 5, 1)
    assert "partial" not in first["params"]  # it was the last engine: the response is next
    assert ids(last["result"]) == ["a"]
    assert second["params"]["stage"] == "fuse"
    assert "partial" not in others[0]["params"]
    assert others[0]["params"]["message"].startswith("one: answered after ")
    assert others[-1]["result"]["summary"] == "s"


async def every_frame(reader: Any) -> Any:
    while (message := await reader.message()) is not None:
        yield message
