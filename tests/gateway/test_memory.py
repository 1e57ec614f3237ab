"""`memory/build` and `memory/recall`: which engine builds, names that carry their engine, clues of several engines."""

import asyncio
from typing import Any

import pytest

from tests.support.corpora import ids
from tests.support.graphs import bare, remembering, reported
from tests.support.listening_gateway import asking, listening
from tests.support.running_gateway import Json, entry, running
from tests.support.scripted_engine import Http, RpcFault, ScriptedEngine, hang, hits

BUILT: Json = {"memoryId": "m-1", "tokens": 12}


def sent(engine: ScriptedEngine, method: str) -> Json:
    """The params of the last request of this method, without `_meta`."""
    params = dict(engine.requests(method)[-1].params)
    params.pop("_meta")
    return params


async def test_the_only_engine_with_memories_builds(engines: Any) -> None:
    """It is sent the documents as they are; the name that comes back is ours, and leads to it again."""
    engine = await remembering(engines, build=BUILT, recall={"clues": [{"query": "c"}]})
    documents = [{"id": "d", "text": "t"}, {"text": ""}]
    async with running([entry("mem", engine), entry("other", await engines())]) as gateway:
        built = await gateway.result("memory/build", {"documents": documents, "scope": "session", "x-acme": 1})
        first = sent(engine, "memory/build")
        again = await gateway.result("memory/build", {"memoryId": built["memoryId"]})
        recalled = await gateway.result("memory/recall", {"query": "q", "memoryId": built["memoryId"], "n": 3})
    assert first == {"documents": documents, "scope": "session", "x-acme": 1}
    assert built["tokens"] == 12
    assert built["memoryId"] == again["memoryId"] != "m-1"
    assert sent(engine, "memory/build") == {"memoryId": "m-1"}
    assert sent(engine, "memory/recall") == {"query": "q", "memoryId": "m-1", "n": 3}
    assert reported(built) == {"mem": "ok", "other": "capability"}
    assert bare(recalled["clues"]) == [{"query": "c"}]


async def test_a_name_outlives_the_gateway(engines: Any) -> None:
    """Another process with another registry knows the same memory by the same name."""
    engine = await remembering(engines, build=BUILT, recall={"clues": []})
    async with running([entry("mem", engine)]) as gateway:
        built = await gateway.result("memory/build", {})
    async with running([entry("mem", engine), entry("new", await engines())], fingerprint="1" * 8) as gateway:
        await gateway.result("memory/recall", {"query": "q", "memoryId": built["memoryId"]})
    assert sent(engine, "memory/recall")["memoryId"] == "m-1"


async def test_the_default_writer_builds(engines: Any) -> None:
    """With several engines, unless `x-gateway.engine` or `x-gateway.engines` names another one."""
    one, two = await remembering(engines, build=BUILT), await remembering(engines, build=BUILT)
    async with running([entry("one", one), entry("two", two)]) as gateway:
        plain = await gateway.result("memory/build", {})
        named = await gateway.result("memory/build", {"x-gateway": {"engine": "two"}})
        await gateway.result("memory/build", {"x-gateway": {"engines": ["one"]}})
        unknown = await gateway.error("memory/build", {"x-gateway": {"engine": "nobody"}})
        other = {"memoryId": named["memoryId"], "x-gateway": {"engine": "one"}}
        foreign = await gateway.error("memory/build", other)
    assert reported(plain) == {"one": "ok", "two": "not_needed"}
    assert plain["_meta"]["x-gateway"]["writer"] == "one"
    assert (len(one.requests("memory/build")), len(two.requests("memory/build"))) == (2, 1)
    assert (unknown["code"], unknown["data"]["field"]) == (-32602, "x-gateway.engine")
    assert (foreign["code"], foreign["data"]["field"]) == (-32602, "x-gateway.engine")


async def test_the_same_own_name_at_two_engines(engines: Any) -> None:
    """Names that engines give are no clash: ours tell the engines apart."""
    one = await remembering(engines, build=BUILT, recall={"clues": []})
    two = await remembering(engines, build=BUILT, recall={"clues": []})
    async with running([entry("one", one), entry("two", two)]) as gateway:
        names = [
            (await gateway.result("memory/build", {"x-gateway": {"engine": name}}))["memoryId"]
            for name in ("one", "two")
        ]
        result = await gateway.result("memory/recall", {"query": "q", "memoryId": names[1]})
    assert len(set(names)) == 2
    assert one.requests("memory/recall") == []
    assert reported(result) == {"one": "not_needed", "two": "ok"}


@pytest.mark.parametrize("damage", ["other", "", "mem1.", "mem1.!!!", "mem1.AAAA", "{}x", "x{}", "{}="])
async def test_a_name_that_was_not_given_out(engines: Any, damage: str) -> None:
    """An unknown or altered one is -32015 (an empty one -32602), and no engine is asked."""
    engine = await remembering(engines, build=BUILT, recall={"clues": []})
    async with running([entry("mem", engine)]) as gateway:
        name = (await gateway.result("memory/build", {}))["memoryId"]
        for method, params in (("memory/recall", {"query": "q"}), ("memory/build", {})):
            error = await gateway.error(method, {**params, "memoryId": damage.format(name)})
            assert (error["code"], error["data"]["field"]) == (-32015 if damage else -32602, "memoryId")
    assert engine.requests("memory/recall") == []
    assert len(engine.requests("memory/build")) == 1


async def test_every_altered_engine_request_is_noticed(engines: Any) -> None:
    """No single letter of a name can be another one."""
    engine = await remembering(engines, build=BUILT, recall={"clues": []})
    async with running([entry("mem", engine)]) as gateway:
        name = (await gateway.result("memory/build", {}))["memoryId"]
        for place in range(len(name)):
            altered = name[:place] + ("B" if name[place] == "A" else "A") + name[place + 1 :]
            error = await gateway.error("memory/recall", {"query": "q", "memoryId": altered})
            assert error["code"] == -32015
    assert engine.requests("memory/recall") == []


async def test_a_memory_whose_engine_is_not_there(engines: Any) -> None:
    """Gone from the registry: -32015. Switched off, or not reached yet: -32010. Not among those named: -32602."""
    engine = await remembering(engines, build=BUILT, recall={"clues": []})
    other = await remembering(engines, recall={"clues": []})
    async with running([entry("mem", engine)]) as gateway:
        name = (await gateway.result("memory/build", {}))["memoryId"]
    recall = {"query": "q", "memoryId": name}
    async with running([entry("other", other)]) as gateway:
        gone = await gateway.error("memory/recall", recall)
    async with running([entry("mem", engine, enabled=False), entry("other", other)]) as gateway:
        off = await gateway.error("memory/recall", recall)
        built = await gateway.error("memory/build", {"memoryId": name})
    async with running([entry("mem", engine), entry("other", other)]) as gateway:
        excluded = await gateway.error("memory/recall", {**recall, "x-gateway": {"engines": ["other"]}})
    async with running([entry("mem", await engines()), entry("other", other)]) as gateway:
        changed = await gateway.error("memory/recall", recall)
    assert (gone["code"], changed["code"]) == (-32015, -32015)
    assert (off["code"], built["code"]) == (-32010, -32010)
    assert (excluded["code"], excluded["data"]["field"]) == (-32602, "x-gateway.engines")


async def test_an_engines_refusal_of_a_memory_is_the_answer(engines: Any) -> None:
    """It alone can know whether the memory is still there: its own code comes back. Failures are -32010."""
    engine = await remembering(engines, build=BUILT, recall=RpcFault(-32015, "forgotten"))
    async with running([entry("mem", engine)]) as gateway:
        name = (await gateway.result("memory/build", {}))["memoryId"]
        refused = await gateway.error("memory/recall", {"query": "q", "memoryId": name})
        engine.answers["memory/recall"] = RpcFault(-32010, "down")
        failed = await gateway.error("memory/recall", {"query": "q", "memoryId": name})
        engine.answers["memory/build"] = RpcFault(-32016, "building")
        conflict = await gateway.error("memory/build", {"memoryId": name})
    assert (refused["code"], failed["code"], conflict["code"]) == (-32015, -32010, -32016)
    assert "forgotten" in refused["message"]


@pytest.mark.parametrize("answer", [{}, {"memoryId": ""}, {"memoryId": 7}, {"memoryId": "x" * 5000}])
async def test_a_memory_without_a_usable_name(engines: Any, answer: Json) -> None:
    """The engine broke the protocol: -32010 tells so, and nothing is built elsewhere."""
    engine = await remembering(engines, build=answer)
    async with running([entry("mem", engine)]) as gateway:
        error = await gateway.error("memory/build", {})
    assert error["code"] == -32010
    assert "memoryId" in error["data"]["detail"]


async def test_a_build_is_not_sent_twice(engines: Any) -> None:
    """After an answer that tells nothing another engine is not asked, nor the same again."""
    engine = await remembering(engines, build=Http(503))
    async with running([entry("mem", engine)]) as gateway:
        error = await gateway.error("memory/build", {})
    assert error["code"] == -32010
    assert len(engine.requests("memory/build")) == 1


async def test_a_scope_that_nobody_has(engines: Any) -> None:
    """-32005 with the option, whether RCP knows it or not; scopes are advertised as the union."""
    engine: ScriptedEngine = await engines(capabilities={"memory": {"scopes": ["global"]}})
    other: ScriptedEngine = await engines(capabilities={"memory": {"clues": True}})
    async with running([entry("mem", engine)]) as gateway:
        errors = [await gateway.error("memory/build", {"scope": scope}) for scope in ("session", "mine")]
    async with running([entry("mem", engine), entry("other", other)]) as gateway:
        offered = (await gateway.result("info"))["capabilities"]["memory"]
    assert [(error["code"], error["data"]["option"]) for error in errors] == [(-32005, "scope")] * 2
    assert offered == {"scopes": ["global"], "clues": True}


async def test_all_engines_with_memories_are_asked_to_recall(engines: Any) -> None:
    """Clues are joined by weight, the same clue once with its larger weight; hits are fused; `n` bounds the clues."""
    one = await remembering(
        engines, recall={"clues": [{"query": "What?", "weight": 0.4}, {"query": "Why?"}], "hits": hits("a", "b")}
    )
    two = await remembering(
        engines,
        recall={"clues": [{"query": "what? ", "weight": 0.9}, {"seedIds": ["7"], "weight": 0.5}], "hits": hits("b")},
    )
    async with running([entry("one", one), entry("two", two, idNamespace="t"), entry("x", await engines())]) as gateway:
        result = await gateway.result("memory/recall", {"query": "q", "sessionId": "s"})
        few = await gateway.result("memory/recall", {"query": "q", "n": 1})
    assert bare(result["clues"]) == [
        {"query": "What?", "weight": 0.9},
        {"seedIds": ["t:7"], "weight": 0.5},
        {"query": "Why?"},
    ]
    assert result["clues"][0]["meta"]["engines"] == [{"id": "one"}, {"id": "two"}]
    assert set(ids(result)) == {"a", "b", "t:b"}
    assert len(few["clues"]) == 1
    assert one.requests("memory/recall")[0].params["sessionId"] == two.requests("memory/recall")[0].params["sessionId"]
    assert one.requests("memory/recall")[0].params["sessionId"] != "s"
    assert reported(result) == {"one": "ok", "two": "ok", "x": "capability"}


async def test_without_hits_none_are_answered(engines: Any) -> None:
    """`hits` is there if an engine sent it, even empty."""
    engine = await remembering(engines, recall={"clues": []})
    async with running([entry("mem", engine)]) as gateway:
        without = await gateway.result("memory/recall", {"query": "q"})
        engine.answers["memory/recall"] = {"clues": [], "hits": hits("a")}
        hit = await gateway.result("memory/recall", {"query": "q"})
    assert "hits" not in without
    assert without["clues"] == []
    assert ids(hit) == ["a"]


async def test_a_partial_recall(engines: Any) -> None:
    """Who fails is named; malformed clues are dropped with a note; nobody left: -32010."""
    good = await remembering(engines, recall={"clues": [{"query": "c"}, {}, "x", {"seedIds": []}]})
    bad = await remembering(engines, recall={"hits": []})
    late = await remembering(engines, recall=hang)
    async with running([entry("good", good), entry("bad", bad), entry("late", late, timeoutMs=100)]) as gateway:
        result = await gateway.result("memory/recall", {"query": "q"})
        nobody = {"query": "q", "x-gateway": {"engines": ["bad", "late"]}}
        error = await gateway.error("memory/recall", nobody)
    assert bare(result["clues"]) == [{"query": "c"}]
    assert result["_meta"]["degraded"] == ["bad", "late"]
    assert any(note.startswith("good: 3 malformed") for note in result["usage"]["notes"])
    assert error["code"] == -32010


@pytest.mark.parametrize(
    ("method", "params", "field"),
    [
        ("memory/recall", {}, "query"),
        ("memory/recall", {"query": ""}, "query"),
        ("memory/recall", {"query": "q", "n": 0}, "n"),
        ("memory/recall", {"query": "q", "memoryId": 7}, "memoryId"),
        ("memory/recall", {"query": "q", "sessionId": 7}, "sessionId"),
        ("memory/build", {"documents": {}}, "documents"),
        ("memory/build", {"documents": ["x"]}, "documents[0]"),
        ("memory/build", {"documents": [{"text": "t"}, {}]}, "documents[1].text"),
        ("memory/build", {"documents": [{"id": True, "text": "t"}]}, "documents[0].id"),
        ("memory/build", {"scope": 7}, "scope"),
        ("memory/build", {"x-gateway": {"engine": 7}}, "x-gateway.engine"),
    ],
)
async def test_what_is_malformed(engines: Any, method: str, params: Json, field: str) -> None:
    """-32602 names the field, and no engine is asked."""
    engine = await remembering(engines, build=BUILT, recall={"clues": []})
    async with running([entry("e", engine)]) as gateway:
        error = await gateway.error(method, params)
    assert (error["code"], error["data"]["field"]) == (-32602, field)
    assert engine.requests(method) == []


@pytest.mark.parametrize("method", ["memory/build", "memory/recall"])
async def test_without_memories(engines: Any, method: str) -> None:
    """-32003, before the params are looked at."""
    async with running([entry("e", await engines())]) as gateway:
        error = await gateway.error(method, {"query": 7})
    assert error["code"] == -32003


async def test_where_nobody_may_be_asked(engines: Any) -> None:
    """At a used-up depth a recall is an empty success with a note; a build cannot be one."""
    engine = await remembering(engines, build=BUILT, recall={"clues": []})
    meta = {"federation": {"depth": 0}}
    async with running([entry("e", engine)]) as gateway:
        recalled = await gateway.result("memory/recall", {"query": "q", "_meta": meta})
        built = await gateway.error("memory/build", {"_meta": meta})
    assert recalled["clues"] == []
    assert recalled["usage"]["notes"] == ["no engine was asked: the federation depth is exhausted"]
    assert built["code"] == -32010
    assert engine.requests("memory/build") == engine.requests("memory/recall") == []


async def test_a_recall_sends_progress(engines: Any) -> None:
    """As an event stream, with the hits so far until the last engine has ended."""
    first_told = asyncio.Event()

    async def later(asked: Any) -> Any:
        await first_told.wait()
        return {"clues": []}

    engine = await remembering(engines, recall={"clues": [{"query": "c"}], "hits": hits("a")})
    slow = await remembering(engines, recall=later)
    params = {"query": "q", "_meta": {"progressToken": "t"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "memory/recall", "params": params}
    entries = [entry("mem", engine), entry("slow", slow)]
    async with listening(entries) as (_, port), asking(port, message) as reader:
        await reader.head()
        recall = await reader.progress()
        first_told.set()
        end, fuse = await reader.progress(), await reader.progress()
        last = await reader.message()
    assert (recall["stage"], end["stage"], fuse["stage"]) == ("recall", "recall", "fuse")
    assert ids(recall["partial"]) == ids(last["result"]) == ["a"]
    assert "partial" not in end
