"""No engine can hurt the answer: breakers, retries, replicas, hedges, rate limits and the tail cut, seen by callers."""

import asyncio
from typing import Any

import pytest

from tests.support.log_lines import own_log
from tests.support.ports import free_port
from tests.support.running_gateway import PATIENCE, RunningGateway, entry, running, until
from tests.support.scripted_engine import Asked, Bytes, Http, RpcFault, hang, hits

Json = dict[str, Any]
QUICK_BREAKER = {"openMs": 50, "longestOpenMs": 200}


def told(result: Json) -> dict[str, Json]:
    """Engine id -> its entry in the report."""
    return {engine["id"]: engine for engine in result["_meta"]["x-gateway"]["engines"]}


def notes(result: Json) -> list[str]:
    lines: list[str] = result["usage"].get("notes", [])
    return lines


def flaky(*answers: Any) -> Any:
    """An answer that is another one each time; the last for ever."""
    left = list(answers)

    async def answer(asked: Asked) -> Any:
        return left.pop(0) if len(left) > 1 else left[0]

    return answer


async def open_breaker(gateway: RunningGateway, engine: str) -> Json:
    """Ask until the engine's breaker is open; the answer that first says so."""
    for _ in range(20):
        result = await gateway.retrieve()
        if told(result)[engine].get("reason") == "breaker_open":
            return result
    raise AssertionError("the breaker never opened")


@pytest.mark.parametrize("answer", [Http(503), RpcFault(-32603), RpcFault(-32010), Http(200, b"<html>"), Bytes(b"x")])
async def test_a_sick_engine_is_left_alone_and_said_so(engines: Any, answer: Any) -> None:
    """While its breaker is open an engine is not asked; the answer is partial, and says when it is asked again."""
    sick, well = await engines(), await engines()
    sick.answers["retrieve"] = answer
    entries = [entry("sick", sick, breaker={"openMs": 60_000}), entry("well", well)]
    async with running(entries) as gateway:
        result = await open_breaker(gateway, "sick")
        seen = len(sick.requests())
        again = await gateway.retrieve()
        assert len(sick.requests()) == seen <= 6
        assert await gateway.metric("rcp_gateway_breaker_state", engine="sick", state="open") == 1
        assert await gateway.metric("rcp_gateway_legs_total", engine="sick", outcome="breaker_open") == 0
        assert await gateway.metric("rcp_gateway_engine_calls_skipped_total", engine="sick", reason="breaker_open") == 2
        assert await gateway.metric("rcp_gateway_engine_up", engine="sick") == 0
        (listed, _) = (await gateway.client.get("/engines")).json()["engines"]
    for each in (result, again):
        report = told(each)["sick"]
        assert (report["status"], report["reason"], report["attempts"]) == ("skipped", "breaker_open", 0)
        assert 0 < report["retryInMs"] <= 60_000
        assert each["_meta"]["degraded"] == ["sick"]
        assert notes(each)[0].startswith("sick: breaker_open, asked again in ")
        assert [hit["id"] for hit in each["hits"]] == ["a", "b", "c"]
    assert (listed["breaker"], listed["up"]) == ("open", False)
    assert 0 < listed["retryInMs"] <= 60_000


async def test_a_recovered_engine_is_used_again(engines: Any) -> None:
    """Within its cool-down an engine that is well again is part of the answer, and the log tells the story."""
    sick = await engines()
    sick.answers["retrieve"] = Http(503)
    with own_log() as log:
        async with running([entry("sick", sick, breaker=QUICK_BREAKER), entry("well", await engines())]) as gateway:
            await open_breaker(gateway, "sick")
            sick.answers["retrieve"] = {"hits": hits("back")}
            async with asyncio.timeout(PATIENCE):
                while told(await gateway.retrieve())["sick"]["status"] != "ok":
                    await asyncio.sleep(0.01)
            assert await gateway.metric("rcp_gateway_breaker_state", engine="sick", state="closed") == 1
            assert await gateway.metric("rcp_gateway_breaker_transitions_total", engine="sick", state="closed") == 1
        events = [line["event"] for line in log.lines if line.get("engine") == "sick"]
    story = [event for event in events if event.startswith("breaker")]
    assert (story[0], story[-2:]) == ("breaker_opened", ["breaker_half_open", "breaker_closed"])
    assert events[:3] == ["engine_up", "engine_down", "breaker_opened"]  # told by traffic: the next check is far away


async def test_half_open_lets_one_request_through(engines: Any) -> None:
    """Fifty callers after the cool-down: the engine sees one question, and the others are answered at once (B45)."""
    sick = await engines()
    sick.answers["retrieve"] = Http(503)
    async with running([entry("sick", sick, breaker=QUICK_BREAKER), entry("well", await engines())]) as gateway:
        await open_breaker(gateway, "sick")
        probed, release = asyncio.Event(), asyncio.Event()

        async def probe(asked: Asked) -> Any:
            probed.set()
            await release.wait()
            return {"hits": []}

        sick.answers["retrieve"] = probe
        seen = len(sick.requests())
        await asyncio.sleep(0.25)
        first = asyncio.create_task(gateway.retrieve())
        await probed.wait()
        others = await asyncio.gather(*(gateway.retrieve() for _ in range(49)))
        assert len(sick.requests()) == seen + 1
        release.set()
        assert told(await first)["sick"]["status"] == "ok"
    assert {told(other)["sick"]["reason"] for other in others} == {"breaker_open"}
    assert all(told(other)["sick"]["retryInMs"] > 0 for other in others)


async def test_a_required_engine_left_alone_fails_the_whole(engines: Any) -> None:
    """If it must answer and is not asked, the request fails at once, and says when to come again."""
    sick = await engines()
    sick.answers["retrieve"] = Http(503)
    async with running(
        [entry("sick", sick, required=True, retries=0, breaker={"openMs": 60_000}), entry("well", await engines())]
    ) as gateway:
        errors = [await gateway.error("retrieve", {"query": "q"}) for _ in range(6)]
    assert {error["code"] for error in errors} == {-32010}
    assert "sick" in errors[5]["message"]
    assert "breaker_open" in errors[5]["message"]
    assert 0 < errors[5]["data"]["retryAfterMs"] <= 60_000


@pytest.mark.parametrize("retries", [0, 1, 2])
async def test_retries_are_bounded_for_the_whole_call(engines: Any, retries: int) -> None:
    """An engine that always answers 503 sees one request and its retries, also over a begun leg (B39)."""
    sick = await engines()
    sick.answers["retrieve"] = Http(503)
    unguarded = {"failures": 0}
    async with running(
        [entry("sick", sick, retries=retries, breaker=unguarded), entry("well", await engines())]
    ) as gateway:
        for number in range(1, 4):
            result = await gateway.retrieve()
            assert told(result)["sick"]["attempts"] == retries + 1
            assert len(sick.requests()) == number * (retries + 1)
        assert await gateway.metric("rcp_gateway_attempts_total", engine="sick", kind="first") == 3
        assert await gateway.metric("rcp_gateway_attempts_total", engine="sick", kind="retry") == 3 * retries


async def test_a_passing_failure_is_not_seen(engines: Any) -> None:
    """One 503 is retried: the caller sees an ordinary answer that took two attempts, and nothing is degraded."""
    engine = await engines()
    async with running([entry("e", engine)]) as gateway:
        await gateway.retrieve()
        for answer in (Http(503), RpcFault(-32603), RpcFault(-32010), RpcFault(-32014)):
            engine.answers["retrieve"] = flaky(answer, {"hits": hits("a")})
            result = await gateway.retrieve()
            assert (told(result)["e"]["status"], told(result)["e"]["attempts"]) == ("ok", 2)
            assert "degraded" not in result["_meta"]
        assert await gateway.metric("rcp_gateway_legs_total", engine="e", outcome="ok") == 5


@pytest.mark.parametrize("answer", [RpcFault(-32602), RpcFault(-32005), Http(400), Http(404)])
async def test_refusals_are_final_and_open_nothing(engines: Any, answer: Any) -> None:
    """What is refused for its own sake is asked once each time, and never opens the breaker (B41)."""
    engine = await engines()
    engine.answers["retrieve"] = answer
    async with running([entry("e", engine), entry("well", await engines())]) as gateway:
        for _ in range(20):
            assert told(await gateway.retrieve())["e"]["attempts"] == 1
        assert await gateway.metric("rcp_gateway_breaker_state", engine="e", state="closed") == 1
    assert len(engine.requests()) == 20


@pytest.mark.parametrize(
    "answer", [Http(429, headers={"Retry-After": "30"}), RpcFault(-32011, "slow", {"retryAfterMs": 30_000})]
)
async def test_an_engine_that_limits_our_rate_is_left_alone(engines: Any, answer: Any) -> None:
    """Until its time it is skipped as rate_limited, with the time; the breaker stays closed (B41)."""
    engine = await engines()
    engine.answers["retrieve"] = answer
    async with running([entry("e", engine), entry("well", await engines())]) as gateway:
        first, second = await gateway.retrieve(), await gateway.retrieve()
        assert await gateway.metric("rcp_gateway_breaker_state", engine="e", state="closed") == 1
        (listed, _) = (await gateway.client.get("/engines")).json()["engines"]
    assert (told(first)["e"]["status"], told(first)["e"]["retryAfterMs"]) == ("failed", 30_000)
    report = told(second)["e"]
    assert (report["status"], report["reason"], report["attempts"]) == ("skipped", "rate_limited", 0)
    assert 25_000 < report["retryInMs"] <= 30_000
    assert second["_meta"]["degraded"] == ["e"]
    assert len(engine.requests()) == 1
    assert (listed["up"], listed["breaker"]) == (True, "closed")


async def test_a_dead_replica_costs_nobody_anything(engines: Any) -> None:
    """With one of two addresses dead every answer is whole; the dead one is left out; the report says who answered."""
    dead, well = await engines(free_port()), await engines()
    async with running([entry("e", dead, replicas=[well.url])]) as gateway:
        await gateway.retrieve()
        await dead.stop()
        results = [await gateway.retrieve() for _ in range(60)]  # half of them begin at the dead one
        assert await gateway.metric("rcp_gateway_replica_up", engine="e", replica="0") == 0
        assert await gateway.metric("rcp_gateway_replica_up", engine="e", replica="1") == 1
        assert await gateway.metric("rcp_gateway_replica_ejections_total", engine="e", replica="0") == 1
        (listed,) = (await gateway.client.get("/engines")).json()["engines"]
    assert all(told(result)["e"]["status"] == "ok" for result in results)
    assert {told(result)["e"]["replica"] for result in results} == {"1"}
    assert [replica["up"] for replica in listed["replicas"]] == [False, True]
    assert listed["up"]


async def test_a_slow_replica_is_outrun(engines: Any) -> None:
    """With `hedge` a call that hangs on one replica is answered by another, long before its deadline."""
    one, two = await engines(), await engines()
    entries = [entry("e", one, replicas=[two.url], hedge=True, timeoutMs=10_000)]
    async with running(entries, {"engines": {"hedge_budget": 1.0}}) as gateway:
        for _ in range(25):
            await gateway.retrieve()
        one.answers["retrieve"] = hang
        results = [await gateway.retrieve() for _ in range(40)]  # half of them begin at the one that hangs
        hedges = await gateway.metric("rcp_gateway_attempts_total", engine="e", kind="hedge")
    reports = [told(result)["e"] for result in results]
    assert {report["status"] for report in reports} == {"ok"}
    hedged = [report for report in reports if report.get("hedged")]
    assert 0 < len(hedged) <= hedges
    assert {report["replica"] for report in hedged} == {"1"}


async def test_the_tail_is_cut(engines: Any) -> None:
    """Once the quorum has answered, who needs longer than the grace is noted as late; nothing is held against it."""
    quick, other, slow = await engines(results=hits("q")), await engines(results=hits("o")), await engines()
    slow.answers["retrieve"] = hang
    entries = [entry("quick", quick), entry("other", other), entry("slow", slow, timeoutMs=60_000)]
    async with running(entries, {"retrieve": {"quorum": 0.6, "grace_ms": 20}}) as gateway:
        results = [await gateway.retrieve() for _ in range(8)]
        assert await gateway.metric("rcp_gateway_legs_total", engine="slow", outcome="late") == 8
        assert await gateway.metric("rcp_gateway_breaker_state", engine="slow", state="closed") == 1
        assert await gateway.metric("rcp_gateway_engine_in_flight", engine="slow") == 0
    for result in results:
        assert (told(result)["slow"]["status"], told(result)["slow"]["reason"]) == ("failed", "late")
        assert result["_meta"]["degraded"] == ["slow"]
        assert {hit["id"] for hit in result["hits"]} == {"q", "o"}
        assert notes(result)[0].startswith("slow: late after ")


async def test_waiting_calls_are_bounded_and_counted(engines: Any) -> None:
    """`maxWaiting` bounds who waits for a place; more fail at once as overloaded, and waits are measured (B53)."""
    slow = await engines()
    release = asyncio.Event()

    async def slowly(asked: Asked) -> Any:
        await release.wait()
        return {"hits": []}

    slow.answers["retrieve"] = slowly
    entries = [entry("slow", slow, maxConcurrency=1, maxWaiting=1, timeoutMs=60_000), entry("well", await engines())]
    async with running(entries, {"retrieve": {"deadline_ms": 60_000}}) as gateway:
        under_way = [asyncio.create_task(gateway.retrieve()) for _ in range(2)]
        gate = gateway.state.engines.engines[0].semaphore
        await until(lambda: gate.in_flight == 1 and gate.waiting == 1)
        assert await gateway.metric("rcp_gateway_engine_waiting", engine="slow") == 1
        assert await gateway.metric("rcp_gateway_engine_limit", engine="slow") == 1
        refused = await gateway.retrieve()
        release.set()
        served = await asyncio.gather(*under_way)
        assert await gateway.metric("rcp_gateway_gate_wait_seconds_count", engine="slow") == 1
        assert await gateway.metric("rcp_gateway_engine_calls_skipped_total", engine="slow", reason="overloaded") == 1
        assert await gateway.metric("rcp_gateway_leg_duration_seconds_count", engine="slow", outcome="failed") == 0
    assert (told(refused)["slow"]["status"], told(refused)["slow"]["reason"]) == ("skipped", "overloaded")
    assert {told(result)["slow"]["status"] for result in served} == {"ok"}


async def test_a_call_that_runs_out_of_time_in_the_queue_is_no_call(engines: Any) -> None:
    """A deadline that comes before a place is free: counted as a skip, in no duration, and the last fault stays."""
    slow = await engines()
    release = asyncio.Event()

    async def slowly(asked: Asked) -> Any:
        await release.wait()
        return {"hits": []}

    slow.answers["retrieve"] = slowly
    entries = [entry("slow", slow, maxConcurrency=1, timeoutMs=60_000), entry("well", await engines())]
    async with running(entries, {"retrieve": {"deadline_ms": 60_000}}) as gateway:
        under_way = asyncio.create_task(gateway.retrieve())
        await until(lambda: gateway.state.engines.engines[0].semaphore.in_flight == 1)
        hurried = await gateway.retrieve(_meta={"deadlineMs": 50})
        release.set()
        await under_way
        skipped = {reason: await skips(gateway, "slow", reason) for reason in ("timeout", "breaker_open")}
        assert skipped == {"timeout": 1, "breaker_open": 0}
        assert await gateway.metric("rcp_gateway_legs_total", engine="slow", outcome="timeout") == 0
        (shown, _) = (await gateway.client.get("/admin/engines", headers={"host": "localhost"})).json()["engines"]
    report = told(hurried)["slow"]
    assert (report["status"], report["reason"], report["attempts"]) == ("skipped", "timeout", 0)
    assert (shown["window"]["calls"], shown["window"]["failed"], shown["window"]["skipped"]) == (1, 0, {"timeout": 1})
    assert shown["lastFault"] is None


@pytest.mark.parametrize(
    ("answer", "reason", "kind"),
    [
        (RpcFault(-32010), "breaker_open", "refused"),
        (RpcFault(-32011, "slow down", {"retryAfterMs": 60_000}), "rate_limited", "rate_limited"),
    ],
)
async def test_calls_that_are_not_sent_are_no_fast_calls(engines: Any, answer: Any, reason: str, kind: str) -> None:
    """Skips are counted by reason: they leave durations, percentiles and the last fault alone (metrics, console)."""
    sick = await engines()
    sick.answers["retrieve"] = answer
    entries = [
        entry("sick", sick, retries=0, breaker={"failures": 2, "openMs": 60_000}),
        entry("well", await engines()),
    ]
    async with running(entries) as gateway:
        for _ in range(20):
            await gateway.retrieve()
        sent = len(sick.requests("retrieve"))
        assert 1 <= sent <= 2
        assert await skips(gateway, "sick", reason) == 20 - sent
        assert await gateway.metric("rcp_gateway_legs_total", engine="sick", outcome=kind) == sent
        assert await gateway.metric("rcp_gateway_leg_duration_seconds_count", engine="sick", outcome="failed") == sent
        (shown, _) = (await gateway.client.get("/admin/engines", headers={"host": "localhost"})).json()["engines"]
    assert (shown["window"]["calls"], shown["window"]["failed"]) == (sent, sent)
    assert shown["window"]["skipped"] == {reason: 20 - sent}
    assert sum(slot["calls"] for slot in shown["window"]["slots"]) == sent
    assert shown["lastFault"]["kind"] == kind
    assert "circuit breaker" not in shown["lastFault"]["detail"]


async def test_a_breaker_that_opens_during_a_pause_hides_no_fault(engines: Any) -> None:
    """A call that waits to be retried and finds the breaker open failed for what it was answered, after one attempt."""
    sick = await engines()
    sick.answers["retrieve"] = Http(503)
    entries = [entry("sick", sick, breaker={"failures": 2, "openMs": 60_000}), entry("well", await engines())]
    async with running(entries, {"engines": {"retry_backoff_ms": 1000}}) as gateway:
        first = asyncio.create_task(gateway.retrieve())
        await until(lambda: len(sick.requests("retrieve")) == 1)
        second = await gateway.retrieve()
        report = told(await first)["sick"]
        (shown, _) = (await gateway.client.get("/admin/engines", headers={"host": "localhost"})).json()["engines"]
        assert await skips(gateway, "sick", "breaker_open") == 0
    assert told(second)["sick"]["reason"] == "http_status"
    assert (report["status"], report["reason"], report["attempts"]) == ("failed", "http_status", 1)
    assert (shown["window"]["calls"], shown["lastFault"]["kind"]) == (2, "http_status")


async def skips(gateway: RunningGateway, engine: str, reason: str) -> float | None:
    """How many calls to the engine were not sent for this reason."""
    return await gateway.metric("rcp_gateway_engine_calls_skipped_total", engine=engine, reason=reason)


async def test_an_engine_without_health_checks_is_not_pinged(engines: Any) -> None:
    """With `healthCheck` off an engine is greeted once and then left to its calls (B51)."""
    watched, left = await engines(), await engines()
    entries = [entry("watched", watched), entry("left", left, healthCheck=False)]
    async with running(entries, {"engines": {"health_interval_seconds": 0.02}}) as gateway:
        await until(lambda: len(watched.requests("ping")) >= 5)
        assert told(await gateway.retrieve())["left"]["status"] == "ok"
    assert [asked.method for asked in left.asked] == ["initialize", "retrieve"]


async def test_a_changed_engine_changes_the_advertisement_once(engines: Any) -> None:
    """An engine that comes back with other capabilities is logged with the difference, and the epoch grows by one."""
    engine = await engines(capabilities={"retrieve": {"maxK": 50}})
    with own_log() as log:
        async with running([entry("e", engine), entry("well", await engines())]) as gateway:
            before = await gateway.result("info")
            engine.capabilities = {"retrieve": {"maxK": 70, "mmr": True}}
            engine.answers["retrieve"] = flaky(RpcFault(-32001), {"hits": []})
            await gateway.retrieve()
            after, again = await gateway.result("info"), await gateway.result("info")
        (changed,) = [line for line in log.lines if line["event"] == "advertisement_changed"]
    epochs = [result["_meta"]["x-gateway"]["epoch"] for result in (before, after, again)]
    assert epochs == [epochs[0], epochs[0] + 1, epochs[0] + 1]
    assert changed["engine"] == "e"
    assert changed["added"] == ["retrieve.mmr"]
    assert changed["changed"] == ["retrieve.maxK: 50 -> 70"]


async def test_everybody_failing_asks_nobody_in_vain(engines: Any) -> None:
    """With every breaker open the error is -32010 at once, and says when to come again."""
    made = [await engines() for _ in range(2)]
    for engine in made:
        engine.answers["retrieve"] = Http(503)
    entries = [entry(f"e{number}", engine, breaker={"openMs": 60_000}) for number, engine in enumerate(made)]
    async with running(entries) as gateway:
        errors = [await gateway.error("retrieve", {"query": "q"}) for _ in range(8)]
    assert {error["code"] for error in errors} == {-32010}
    assert all("breaker_open" in note for note in errors[-1]["data"]["notes"])
    assert 0 < errors[-1]["data"]["retryAfterMs"] <= 60_000
    assert all(len(engine.requests()) <= 6 for engine in made)
