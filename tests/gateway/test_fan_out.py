"""One question, many engines: partial failure, required engines, deadlines, loops, and what is reported of each."""

import asyncio
from typing import Any

import pytest

from app.protocol.errors import CALL_KINDS
from tests.support.ports import free_port
from tests.support.running_gateway import RunningGateway, entry, running, until
from tests.support.scripted_engine import (
    DEFAULT_CAPABILITIES,
    Asked,
    Bytes,
    Http,
    RpcFault,
    ScriptedEngine,
    hang,
    hit,
    hits,
)

GRAPHING = {**DEFAULT_CAPABILITIES, "graph": {"ops": ["communities"]}}


def statuses(result: dict[str, Any]) -> dict[str, str]:
    return {engine["id"]: engine["status"] for engine in result["_meta"]["x-gateway"]["engines"]}


async def test_all_engines_are_asked_at_once(engines: Any) -> None:
    """No engine waits for another: each answers only once all three have been asked."""
    asked = 0
    everybody = asyncio.Event()

    async def rendezvous(request: Asked) -> Any:
        nonlocal asked
        asked += 1
        if asked == 3:
            everybody.set()
        await everybody.wait()
        return {"hits": hits("a")}

    made = [await engines() for _ in range(3)]
    for engine in made:
        engine.answers["retrieve"] = rendezvous
    async with running([entry(f"e{index}", engine) for index, engine in enumerate(made)]) as gateway:
        result = await gateway.retrieve()
    assert statuses(result) == {"e0": "ok", "e1": "ok", "e2": "ok"}
    assert len(result["hits"]) == 1


async def test_each_engine_is_asked_for_a_window_clamped_to_its_max_k(engines: Any) -> None:
    """k=10 asks for 20 of each engine, k=50 for 100, but an engine never for more than it advertises (B15)."""
    wide = await engines()
    narrow = await engines(capabilities={"retrieve": {"maxK": 20}})
    async with running([entry("wide", wide), entry("narrow", narrow)]) as gateway:
        await gateway.retrieve(k=1)
        await gateway.retrieve(k=10)
        await gateway.retrieve(k=50)
    assert [asked.params["k"] for asked in wide.requests()] == [20, 20, 100]
    assert [asked.params["k"] for asked in narrow.requests()] == [20, 20, 20]


async def test_an_answer_for_a_smaller_k_is_a_prefix(engines: Any) -> None:
    """Every k up to 10 gives a prefix of the answer for 10."""
    one = await engines(results=hits(*range(30)))
    two = await engines(results=hits(*range(20, 50)))
    async with running([entry("one", one), entry("two", two)]) as gateway:
        whole = [hit["id"] for hit in (await gateway.retrieve(k=10))["hits"]]
        for k in range(1, 11):
            assert [hit["id"] for hit in (await gateway.retrieve(k=k))["hits"]] == whole[:k]


@pytest.mark.parametrize("position", [0, 1, 2])
async def test_a_hanging_engine_costs_a_note_and_nothing_else(engines: Any, position: int) -> None:
    """Whichever place in the registry hangs, the others are fused and it is noted as a timeout (B26)."""
    made = [await engines(results=hits(name)) for name in "abc"]
    made[position].answers["retrieve"] = hang
    haste = [{"timeoutMs": 200} if index == position else {} for index in range(3)]
    entries = [entry(f"e{index}", engine, **haste[index]) for index, engine in enumerate(made)]
    async with running(entries) as gateway:
        result = await gateway.retrieve()
    sick = f"e{position}"
    assert result["_meta"]["degraded"] == [sick]
    assert {hit["id"] for hit in result["hits"]} == set("abc") - {"abc"[position]}
    (note,) = result["usage"]["notes"]
    assert note.startswith(f"{sick}: timeout after ")
    report = result["_meta"]["x-gateway"]["engines"][position]
    assert report["status"] == "failed"
    assert report["reason"] == "timeout"
    assert report["hits"] == 0
    assert report["tookMs"] > 0
    assert report["attempts"] == 1


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Http(503), "http_status"),
        (Http(404, b"<html>"), "http_status"),
        (Http(302, headers={"Location": "http://127.0.0.1:1/"}), "http_status"),
        (Http(200, b"<html>no</html>"), "protocol"),
        (Http(200, b'{"jsonrpc":"2.0","id":1,"resu'), "protocol"),
        (Http(200, b'{"jsonrpc":"2.0","id":987654,"result":{"hits":[]}}'), "protocol"),
        (Http(204), "protocol"),
        (Http(200), "protocol"),
        (Bytes(b"garbage that is no HTTP\r\n\r\n"), "protocol"),
        (RpcFault(-32603, "boom"), "protocol"),
        (RpcFault(-32602, "no"), "refused"),
        (RpcFault(-32010, "down"), "refused"),
        (RpcFault(-32011, "slow down", {"retryAfterMs": 1500}), "rate_limited"),
        (Http(429, headers={"Retry-After": "2"}), "rate_limited"),
        ({"hits": "none"}, "protocol"),
        ({}, "protocol"),
    ],
)
async def test_each_way_to_fail_has_its_class(engines: Any, answer: Any, kind: str) -> None:
    """An engine that fails is dropped with its class of failure; the healthy one's hits are all there (B33, B46)."""
    sick, well = await engines(), await engines()
    sick.answers["retrieve"] = answer
    async with running([entry("sick", sick), entry("well", well)]) as gateway:
        result = await gateway.retrieve()
        assert await gateway.metric("rcp_gateway_legs_total", engine="sick", outcome=kind) == 1
    assert kind in CALL_KINDS
    assert [hit["id"] for hit in result["hits"]] == ["a", "b", "c"]
    report = {engine["id"]: engine for engine in result["_meta"]["x-gateway"]["engines"]}
    assert (report["sick"]["status"], report["sick"]["reason"]) == ("failed", kind)
    assert result["_meta"]["degraded"] == ["sick"]


async def test_an_answer_beyond_the_limit_is_too_large(engines: Any) -> None:
    """A response longer than `engines.max_response_bytes` fails its engine as too_large."""
    sick, well = await engines(results=[hit("x", text="y" * 5000)]), await engines()
    limits = {"engines": {"max_response_bytes": 4096}}
    async with running([entry("sick", sick), entry("well", well)], limits) as gateway:
        result = await gateway.retrieve()
    assert result["_meta"]["x-gateway"]["engines"][0]["reason"] == "too_large"


async def test_a_required_engine_fails_the_whole_with_its_code(engines: Any) -> None:
    """The failure of a required engine is the failure of the request, with that engine's own code and name (B31)."""
    must, well = await engines(), await engines()
    must.answers["retrieve"] = RpcFault(-32016, "conflict")
    async with running([entry("must", must, required=True), entry("well", well)]) as gateway:
        error = await gateway.error("retrieve", {"query": "q"})
    assert error["code"] == -32016
    assert "must" in error["message"]


async def test_a_required_failure_does_not_wait_for_the_others(engines: Any) -> None:
    """Once a required engine failed, the legs under way are ended instead of waited for."""
    must, slow = await engines(), await engines()
    must.answers["retrieve"] = Http(500)
    slow.answers["retrieve"] = hang
    async with running([entry("must", must, required=True), entry("slow", slow, timeoutMs=60_000)]) as gateway:
        error = await gateway.error("retrieve", {"query": "q"})
        assert await gateway.metric("rcp_gateway_legs_total", engine="slow", outcome="cancelled") == 1
    assert error["code"] == -32010


async def test_a_required_engine_never_reached_is_an_error(engines: Any) -> None:
    """A required engine without a first handshake is an error that names it, not a clean success (B35)."""
    well = await engines()
    entries = [entry("must", "http://127.0.0.1:1/rcp", required=True), entry("well", well)]
    async with running(entries, reach=False) as gateway:
        await until(lambda: gateway.state.engines.engines[1].advertisement is not None)
        error = await gateway.error("retrieve", {"query": "q"})
    assert error["code"] == -32010
    assert "must" in error["message"]


async def test_everybody_failing_is_an_error_with_notes(engines: Any) -> None:
    """If nobody answers it is -32010 with a note per engine, never an empty success (B32)."""
    made = [await engines() for _ in range(2)]
    for engine in made:
        engine.answers["retrieve"] = Http(500)
    async with running([entry("a", made[0]), entry("b", made[1])]) as gateway:
        error = await gateway.error("retrieve", {"query": "q"})
    assert error["code"] == -32010
    assert [note.split(":")[0] for note in error["data"]["notes"]] == ["a", "b"]
    assert error["data"]["retryable"] is True


async def test_everybody_empty_is_a_success(engines: Any) -> None:
    """Zero hits from all engines is a clean empty answer; with a failure beside it, a partial one (B32)."""
    one, two = await engines(results=[]), await engines(results=[])
    async with running([entry("one", one), entry("two", two)]) as gateway:
        clean = await gateway.retrieve()
        two.answers["retrieve"] = Http(500)
        partial = await gateway.retrieve()
    assert clean["hits"] == []
    assert "degraded" not in clean["_meta"]
    assert "notes" not in clean["usage"]
    assert partial["hits"] == []
    assert partial["_meta"]["degraded"] == ["two"]


async def test_engines_without_retrieve_are_skipped_without_a_note(engines: Any) -> None:
    """Lacking the capability is no error: the engine is in the report with its reason, and nothing is degraded."""
    embedder, well = await engines(capabilities={"embed": {"dimension": 3, "identity": "m"}}), await engines()
    off = await engines()
    entries = [entry("embedder", embedder), entry("well", well), entry("off", off, enabled=False)]
    async with running(entries) as gateway:
        result = await gateway.retrieve()
    report = {engine["id"]: engine for engine in result["_meta"]["x-gateway"]["engines"]}
    assert (report["embedder"]["status"], report["embedder"]["reason"]) == ("skipped", "capability")
    assert (report["off"]["status"], report["off"]["reason"]) == ("skipped", "disabled")
    assert not embedder.requests()
    assert not off.asked
    assert "degraded" not in result["_meta"]


async def test_the_callers_deadline_bounds_the_engine_calls(engines: Any) -> None:
    """`deadlineMs` cuts the legs before it runs out; engines are told strictly less than what remained (B27, B28)."""
    slow, well = await engines(), await engines()
    slow.answers["retrieve"] = hang
    entries = [entry("slow", slow, timeoutMs=60_000), entry("well", well)]
    async with running(entries, {"retrieve": {"reserve_ms": 2000}}) as gateway:
        result = await gateway.retrieve(_meta={"deadlineMs": 4000})
    assert result["_meta"]["degraded"] == ["slow"]
    assert slow.requests()[0].params["_meta"]["deadlineMs"] < 4000
    assert result["usage"]["latencyMs"] < 4000


async def test_nobody_in_time_is_a_timeout(engines: Any) -> None:
    """If the caller's own deadline cut off every engine the answer is -32014."""
    slow = await engines()
    slow.answers["retrieve"] = hang
    async with running([entry("slow", slow, timeoutMs=60_000)]) as gateway:
        error = await gateway.error("retrieve", {"query": "q", "_meta": {"deadlineMs": 150}})
    assert error["code"] == -32014
    assert error["data"]["retryable"] is True


@pytest.mark.parametrize("deadline", [0, -5, "500", 1.5, True])
async def test_a_bad_deadline_is_refused(engines: Any, deadline: Any) -> None:
    """A deadline that is no positive integer is -32602 and names the field (B27)."""
    well = await engines()
    async with running([entry("well", well)]) as gateway:
        error = await gateway.error("retrieve", {"query": "q", "_meta": {"deadlineMs": deadline}})
    assert (error["code"], error["data"]["field"]) == (-32602, "_meta.deadlineMs")


async def test_a_deadline_beyond_the_servers_is_clamped(engines: Any) -> None:
    """A caller may only shorten `retrieve.deadline_ms`."""
    well = await engines()
    async with running([entry("well", well, timeoutMs=60_000)], {"retrieve": {"deadline_ms": 9000}}) as gateway:
        await gateway.retrieve(_meta={"deadlineMs": 60_000})
    assert well.requests()[0].params["_meta"]["deadlineMs"] <= 9000


async def test_federation_meta_is_decremented_and_extended(engines: Any) -> None:
    """Each engine gets one level less and a path that ends with our identity (RCP §16)."""
    well = await engines()
    async with running([entry("well", well)], {"server": {"id": "gw"}}) as gateway:
        await gateway.retrieve()
        await gateway.retrieve(_meta={"federation": {"depth": 2, "path": ["outer"]}, "traceId": "t1"})
    first, second = (asked.params["_meta"] for asked in well.requests())
    assert first["federation"] == {"depth": 2, "path": ["gw"]}
    assert second["federation"] == {"depth": 1, "path": ["outer", "gw"]}
    assert second["traceId"] == "t1"


@pytest.mark.parametrize(
    "federation", [{"depth": 0, "path": []}, {"depth": 1, "path": ["a"]}, {"depth": 3, "path": ["x", "gw"]}]
)
async def test_depth_and_cycles_end_in_an_empty_success(engines: Any, federation: Any) -> None:
    """With no depth to pass on, or with ourselves in the path, nobody is asked; the empty answer says why."""
    well = await engines()
    async with running([entry("well", well)], {"server": {"id": "gw"}}) as gateway:
        result = await gateway.retrieve(_meta={"federation": federation})
    assert result["hits"] == []
    assert not well.requests()
    assert statuses(result) == {"well": "skipped"}
    assert len(result["usage"]["notes"]) == 1
    assert result["usage"]["notes"][0].startswith("no engine was asked: ")


async def test_stacked_gateways_answer_and_a_ring_ends(engines: Any) -> None:
    """A gateway over a gateway fuses its answer as one list; one that is already in the path is skipped with a note."""
    well = await engines()
    inner_entries = [entry("well", well)]
    async with running(inner_entries, {"server": {"id": "inner"}}) as inner:
        bridge = await engines()
        for method in ("initialize", "info", "retrieve"):
            bridge.answers[method] = _through(inner)
        async with running([entry("child", bridge)], {"server": {"id": "outer"}}) as outer:
            result = await outer.retrieve()
            ring = await outer.retrieve(_meta={"federation": {"depth": 3, "path": ["inner"]}})
    assert [hit["id"] for hit in result["hits"]] == ["a", "b", "c"]
    assert result["hits"][0]["meta"]["engine"] == "child"
    assert ring["hits"] == []
    assert "inner" in ring["usage"]["notes"][0]


async def test_engines_missing_behind_another_gateway_are_reported(engines: Any) -> None:
    """The notes of a gateway that counts as one engine are passed on, whatever was asked for."""
    well, broken = await engines(capabilities=GRAPHING), await engines(capabilities=GRAPHING)
    well.answers["graph"] = {"communities": []}
    broken.answers |= {"retrieve": RpcFault(-32010, "index gone"), "graph": RpcFault(-32010, "index gone")}
    entries = [entry("well", well), entry("broken", broken, retries=0)]
    async with running(entries, {"server": {"id": "inner"}}) as inner:
        bridge = await engines()
        for method in ("initialize", "info", "retrieve", "graph"):
            bridge.answers[method] = _through(inner)
        async with running([entry("child", bridge)]) as outer:
            found = [await outer.retrieve(), await outer.result("graph", {"op": "communities"})]
    for result in found:
        (note,) = result["usage"]["notes"]
        assert note.startswith("child: broken: refused after ")
        assert note.endswith("-32010 index gone")


def _through(inner: RunningGateway) -> Any:
    async def forward(asked: Asked) -> Any:
        return await inner.result(asked.method, asked.params)

    return forward


async def test_headers_of_the_caller_never_reach_an_engine(engines: Any) -> None:
    """Authorization, cookies, keys and forwarding headers stay here; an engine gets its own entry's headers (B92)."""
    well = await engines()
    async with running([entry("well", well, headers={"Authorization": "Bearer engine"})]) as gateway:
        sent = {"Authorization": "Bearer caller", "Cookie": "c=1", "X-API-Key": "k", "X-Forwarded-For": "1.2.3.4"}
        await gateway.post({"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": {"query": "q"}}, headers=sent)
    headers = well.requests()[0].headers
    assert headers["authorization"] == "Bearer engine"
    assert not {"cookie", "x-api-key", "x-forwarded-for"} & headers.keys()


async def test_a_restarted_engine_is_shaken_hands_with_again(engines: Any) -> None:
    """-32001 after a restart: one handshake, the question once more, and the answer is an ordinary one."""
    engine = await engines()
    async with running([entry("e", engine)]) as gateway:
        forgot = True

        async def once_uninitialized(asked: Asked) -> Any:
            nonlocal forgot
            if forgot:
                forgot = False
                return RpcFault(-32001)
            return {"hits": hits("a")}

        engine.answers["retrieve"] = once_uninitialized
        result = await gateway.retrieve()
    assert statuses(result) == {"e": "ok"}
    assert len(engine.requests("initialize")) == 2
    assert len(engine.requests()) == 2


async def test_an_engine_that_says_it_is_initialized_is_asked_for_info(engines: Any) -> None:
    """-32600 to `initialize`, as after a restart of the gateway, means: already initialized, ask `info`."""
    engine = await engines()
    engine.answers["initialize"] = RpcFault(-32600, "already initialized")
    async with running([entry("e", engine)]) as gateway:
        assert statuses(await gateway.retrieve()) == {"e": "ok"}


async def test_engines_join_when_they_come_up() -> None:
    """The gateway answers from whoever is there; an engine that comes up later joins by itself (B48)."""
    early, late = await ScriptedEngine(results=hits("early")).start(), ScriptedEngine(results=hits("late"))
    port = free_port()
    entries = [entry("early", early), entry("late", f"http://127.0.0.1:{port}/rcp")]
    quick = {"engines": {"reconnect_max_seconds": 0.1}}
    async with running(entries, quick, reach=False) as gateway:
        await until(lambda: gateway.state.engines.engines[0].up)
        before = await gateway.retrieve()
        await late.start(port)
        await until(lambda: gateway.state.engines.engines[1].up)
        after = await gateway.retrieve()
    await early.stop()
    await late.stop()
    assert statuses(before) == {"early": "ok", "late": "skipped"}
    assert before["_meta"]["x-gateway"]["engines"][1]["reason"] == "unreached"
    assert statuses(after) == {"early": "ok", "late": "ok"}


async def test_an_engine_that_went_away_keeps_its_advertisement(engines: Any) -> None:
    """The advertisement is the last known one: an engine that died stays advertised and fails as a leg (decision 2)."""
    engine, well = await engines(free_port(), capabilities={"retrieve": {"maxK": 77}}), await engines()
    async with running([entry("e", engine), entry("well", well)]) as gateway:
        before = (await gateway.result("info"))["capabilities"]
        await engine.stop()
        result = await gateway.retrieve()
        after = (await gateway.result("info"))["capabilities"]
    assert result["_meta"]["degraded"] == ["e"]
    assert before == after


async def test_a_saturated_engine_fails_fast_and_delays_nobody(engines: Any) -> None:
    """Calls beyond an engine's gate and its queue fail at once as overloaded; the other engine answers (B53)."""
    slow, well = await engines(), await engines()
    slow.answers["retrieve"] = hang
    async with running([entry("slow", slow, maxConcurrency=1, timeoutMs=60_000), entry("well", well)]) as gateway:
        gate = gateway.state.engines.engines[0].semaphore
        waiting = [asyncio.create_task(gateway.retrieve()) for _ in range(1 + gate.queue)]
        await until(lambda: gate.in_flight == 1 and gate.waiting == gate.queue)
        result = await gateway.retrieve()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    report = {engine["id"]: engine for engine in result["_meta"]["x-gateway"]["engines"]}
    assert report["slow"]["reason"] == "overloaded"
    assert report["well"]["status"] == "ok"


async def test_a_required_and_healthy_federation_is_not_degraded(engines: Any) -> None:
    """Nothing is noted when nothing went wrong; usage counts candidates and time."""
    one, two = await engines(), await engines(results=hits("c", "d"))
    async with running([entry("one", one, required=True), entry("two", two)]) as gateway:
        result = await gateway.retrieve()
    assert "degraded" not in result["_meta"]
    assert "notes" not in result["usage"]
    assert result["usage"]["candidates"] == 5
    assert result["usage"]["reranked"] == 0
    assert result["usage"]["latencyMs"] > 0


async def test_a_burst_against_a_quick_engine_is_served(engines: Any) -> None:
    """Two hundred callers at once are more than the gate lets in at a time, and all of them are answered."""
    engine = await engines()
    async with running([entry("e", engine, timeoutMs=60_000)], {"retrieve": {"deadline_ms": 60_000}}) as gateway:
        results = await asyncio.gather(*(gateway.retrieve() for _ in range(200)))
    assert all(statuses(result) == {"e": "ok"} for result in results)
