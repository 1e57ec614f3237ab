"""Learned calibration: what feedback teaches, whom it concerns, and that it can be switched off, frozen and reset."""

import asyncio
from typing import Any

import pytest

from tests.gateway.test_explain import LOOPBACK
from tests.support.corpora import ids
from tests.support.graphs import listening_to_feedback
from tests.support.redis_server import Relay
from tests.support.running_gateway import Json, RunningGateway, entry, running, until
from tests.support.scripted_engine import hit
from tests.support.shared_state import unique
from tests.support.tenancy import result, tenant

ON = {"fusion": {"learning": "on"}}
GOOD = [hit(f"good{place}", confidence=0.3 - 0.02 * place) for place in range(8)]
BAD = [hit(f"bad{place}", confidence=0.9 - 0.02 * place) for place in range(8)]


async def two(engines: Any) -> list[Json]:
    """A modest engine and a boasting one, neither of which takes feedback."""
    return [entry("bad", await engines(results=BAD)), entry("good", await engines(results=GOOD))]


async def teach(gateway: RunningGateway, times: int = 12, first: int = 0, praised: str = "good") -> None:
    """So many sessions, each of which uses the hits of one engine, and one in three also a hit of the other."""
    for turn in range(first, first + times):
        answer = await gateway.retrieve(query=f"q{turn}", sessionId=f"s{turn}")
        shown = ids(answer)
        wanted = [hit_id for hit_id in shown if hit_id.startswith(praised)]
        wanted += [hit_id for hit_id in shown if hit_id not in wanted][: turn % 3 == 0]
        used = [{"hitId": hit_id, "used": True} for hit_id in wanted]
        await gateway.result("feedback", {"sessionId": f"s{turn}", "signals": used})


def evidence(gateway: RunningGateway, engine: str, kind: str = "confident", scope: str = "") -> float:
    """n of one map."""
    maps = gateway.state.pages.learning.maps(scope).get(engine)
    learned = None if maps is None else getattr(maps, kind)
    return 0.0 if learned is None else learned.n


async def act(gateway: RunningGateway, engine: str, action: str, **more: Any) -> tuple[int, Json]:
    """The status and the body that an action is answered with."""
    response = await gateway.post({"engine": engine, "action": action, **more}, "/admin/actions", LOOPBACK)
    return response.status_code, response.json()


async def test_feedback_teaches_which_claims_to_believe(engines: Any) -> None:
    """Hits of a modest engine that are used come first in the end."""
    async with running(await two(engines), ON) as gateway:
        before = ids(await gateway.retrieve())
        await teach(gateway)
        after = ids(await gateway.retrieve())
        assert evidence(gateway, "good") > 5
        assert await gateway.metric("rcp_gateway_calibration_evidence", engine="good") > 5
        claimed = await gateway.metric("rcp_gateway_calibration_claimed", engine="good")
        assert await gateway.metric("rcp_gateway_calibration_worth", engine="good") > claimed > 0
    assert before[0] == "bad0"
    assert after[0] == "good0"


@pytest.mark.parametrize("learning", ["off", "frozen"])
async def test_without_learning_nothing_is_learned(engines: Any, learning: str) -> None:
    """`off` and `frozen` take no feedback for themselves, and answers stay as they are."""
    taking = await listening_to_feedback(engines, results=GOOD)
    entries = [entry("bad", await engines(results=BAD)), entry("good", taking)]
    async with running(entries, {"fusion": {"learning": learning}}) as gateway:
        before = ids(await gateway.retrieve())
        await teach(gateway, 3)
        assert ids(await gateway.retrieve()) == before
        assert evidence(gateway, "good") == 0
        assert await gateway.metric("rcp_gateway_calibration_events_total", outcome="learned") == 0


async def test_frozen_applies_what_was_learned(engines: Any) -> None:
    """The same order as before it was frozen, and no more evidence."""
    taking = await listening_to_feedback(engines, results=GOOD)
    async with running([entry("bad", await engines(results=BAD)), entry("good", taking)], ON) as gateway:
        await teach(gateway)
        learned, n = ids(await gateway.retrieve()), evidence(gateway, "good")
        fusion = gateway.state.settings.fusion.model_copy(update={"learning": "frozen"})
        gateway.state.settings = gateway.state.settings.model_copy(update={"fusion": fusion})
        await teach(gateway, 3, first=50)
        assert ids(await gateway.retrieve()) == learned
        assert evidence(gateway, "good") == n


async def test_feedback_is_offered_by_the_gateway_itself(engines: Any) -> None:
    """No engine takes feedback: with learning on the gateway does, and counts what it learned from."""
    async with running(await two(engines), ON) as gateway:
        assert (await gateway.result("info"))["capabilities"]["feedback"] == {}
        shown = ids(await gateway.retrieve(sessionId="s"))
        signals = [{"hitId": shown[0], "used": True}, {"hitId": "never shown", "used": True}]
        assert (await gateway.result("feedback", {"sessionId": "s", "signals": signals}))["accepted"] == 1
        assert await gateway.metric("rcp_gateway_calibration_events_total", outcome="unknown") == 1
    async with running(await two(engines)) as gateway:
        assert "feedback" not in (await gateway.result("info"))["capabilities"]


async def test_praise_of_one_engine_is_no_evidence_about_another(engines: Any) -> None:
    """Engines whose hits were never praised are not judged."""
    async with running(await two(engines), ON) as gateway:
        await gateway.retrieve(sessionId="s")
        await gateway.result("feedback", {"sessionId": "s", "signals": [{"hitId": "good0", "used": True}]})
        assert (evidence(gateway, "good"), evidence(gateway, "bad")) == (1, 0)


async def test_unknown_hits_are_passed_on_and_not_learned_from(engines: Any) -> None:
    """Without a session, in another one, or never shown: engines hear of it, the calibration does not."""
    engine = await listening_to_feedback(engines, results=GOOD)
    async with running([entry("good", engine)], ON) as gateway:
        await gateway.retrieve(sessionId="s")
        for params in ({}, {"sessionId": "other"}):
            told = await gateway.result("feedback", {**params, "signals": [{"hitId": "good0", "used": True}]})
            assert told["accepted"] == 1
        assert evidence(gateway, "good") == 0
    assert len(engine.requests("feedback")) == 2


async def test_a_hit_is_learned_once_per_answer(engines: Any) -> None:
    """The same signal again teaches nothing; another hit of the same answer does."""
    async with running(await two(engines), ON) as gateway:
        await gateway.retrieve(sessionId="s")
        for hit_id, n in (("good0", 1), ("good0", 1), ("good1", 2)):
            await gateway.result("feedback", {"sessionId": "s", "signals": [{"hitId": hit_id, "used": True}]})
            assert evidence(gateway, "good") == pytest.approx(n)


@pytest.mark.parametrize(
    ("signal", "n"),
    [
        ({"used": True}, 1),
        ({"cited": True}, 1),
        ({"helpful": True}, 1),
        ({"reward": 0.25}, 0.25),
        ({"reward": -1}, 0),
        ({"used": False}, 0),
        ({"used": True, "poisonSuspected": True}, 0),
        ({"used": True, "reward": -1}, 1),
    ],
)
async def test_what_counts_as_reward(engines: Any, signal: Json, n: float) -> None:
    """Praise is 1, a reward what it says, blame nothing."""
    async with running(await two(engines), ON) as gateway:
        await gateway.retrieve(sessionId="s")
        await gateway.result("feedback", {"sessionId": "s", "signals": [{"hitId": "good0", **signal}]})
        assert evidence(gateway, "good") == pytest.approx(n)


async def test_one_caller_cannot_talk_an_engine_up(engines: Any) -> None:
    """Beyond ten events in a day the events of one credential count less and less."""
    tenants = {"red": tenant("*", keys=("red-key-0123456789", "other-key-0123456789"), roles=["read", "feedback"])}
    async with running(await two(engines), ON, tenants=tenants) as gateway:

        async def praise(key: str, turn: int) -> None:
            await result(gateway, key, "retrieve", {"query": "q", "sessionId": f"{key}{turn}"})
            signals = [{"hitId": "good0", "used": True}]
            await result(gateway, key, "feedback", {"sessionId": f"{key}{turn}", "signals": signals})

        for turn in range(30):
            await praise("red-key-0123456789", turn)
        loud = evidence(gateway, "good", scope="red")
        assert loud == pytest.approx(10 + sum(10 / count for count in range(11, 31)))
        await praise("other-key-0123456789", 0)
        assert evidence(gateway, "good", scope="red") == pytest.approx(loud + 1)


@pytest.mark.parametrize(("scope", "shared"), [("tenant", False), ("gateway", True)])
async def test_tenants_teach_themselves_or_everybody(engines: Any, scope: str, shared: bool) -> None:
    """Scope `tenant`: what one tenant's callers say changes nothing for another."""
    roles = ["read", "feedback"]
    tenants = {
        "red": tenant("*", keys=("red-key-0123456789",), roles=roles),
        "blue": tenant("*", keys=("blue-key-0123456789",), roles=roles),
    }
    settings = {"fusion": {"learning": "on", "learning_scope": scope}}
    async with running(await two(engines), settings, tenants=tenants) as gateway:
        for turn in range(12):
            used = [*(f"good{place}" for place in range(6)), *["bad0"][: turn % 3 == 0]]
            params = {"sessionId": f"s{turn}", "signals": [{"hitId": hit_id, "used": True} for hit_id in used]}
            await result(gateway, "red-key-0123456789", "retrieve", {"query": "q", "sessionId": f"s{turn}", "k": 16})
            await result(gateway, "red-key-0123456789", "feedback", params)
        red = ids(await result(gateway, "red-key-0123456789", "retrieve", {"query": "q"}))
        blue = ids(await result(gateway, "blue-key-0123456789", "retrieve", {"query": "q"}))
    assert red[0] == "good0"
    assert (blue[0] == "good0") is shared


async def test_silent_engines_are_judged_by_their_scores(engines: Any) -> None:
    """Without confidences the map of scores learns; the mean and deviation of scores need no feedback."""
    good = [hit(f"good{place}", score=9.0 - place) for place in range(8)]
    bad = [hit(f"bad{place}", score=0.9 - place / 100) for place in range(8)]
    entries = [entry("bad", await engines(results=bad)), entry("good", await engines(results=good))]
    async with running(entries, ON) as gateway:
        before = ids(await gateway.retrieve(k=16))
        learned = gateway.state.pages.learning.maps("")["good"].silent
        assert learned is not None
        assert (learned.mean, learned.n) == (pytest.approx(5.5), 0)
        await teach(gateway)
        answer = await gateway.retrieve(k=16)
        assert evidence(gateway, "good", "silent") > 5
    places = [sum(order.index(f"good{place}") for place in range(8)) for order in (ids(answer), before)]
    assert places[0] < places[1]
    assert all("confidence" not in one for one in answer["hits"])


async def test_explain_shows_claim_worth_and_evidence(engines: Any) -> None:
    """Of each list: what was claimed, what it is worth after what was learned, and on how much evidence."""
    silent = [hit(f"s{place}", score=9.0 - place) for place in range(8)]
    async with running(await two(engines), ON) as gateway:
        await teach(gateway)
        explained = (await gateway.retrieve(**{"x-gateway": {"explain": True}}))["_meta"]["x-gateway"]["explain"]
    async with running([entry("e", await engines(results=silent))]) as gateway:
        estimated = (await gateway.retrieve(**{"x-gateway": {"explain": True}}))["_meta"]["x-gateway"]["explain"]
    lists = {told["engine"]: told for told in explained["lists"]}
    claim = lists["good"]["claim"]
    assert claim["from"] == "confidences"
    assert claim["n"] > 5
    assert 0 < claim["trust"] < 1
    assert claim["claimed"][0] == pytest.approx(0.3)
    assert claim["believed"][0] > 0.3
    assert lists["bad"]["claim"]["n"] > 0
    told = estimated["lists"][0]["claim"]
    assert told["from"] == "estimated from scores"
    assert len(told["claimed"]) == 8


async def test_an_operator_resets_an_engine(engines: Any) -> None:
    """Today's order is back, and the list of what was learned says so."""
    async with running(await two(engines), ON) as gateway:
        before = ids(await gateway.retrieve())
        await teach(gateway)
        assert ids(await gateway.retrieve()) != before
        told = (await gateway.client.get("/admin/calibration", headers=LOOPBACK)).json()
        learned = {one["id"]: one for one in told["scopes"][0]["engines"]}
        assert learned["good"]["confident"]["n"] > 5
        assert (told["learning"], told["learningScope"]) == ("on", "tenant")
        for engine in ("good", "bad"):
            assert (await act(gateway, engine, "reset_calibration"))[0] == 200
        assert ids(await gateway.retrieve()) == before


async def test_what_was_learned_outlives_a_restart(engines: Any, tmp_path: Any) -> None:
    """With `state.path` a new process goes on where the one before ended."""
    settings = {**ON, "state": {"path": str(tmp_path / "calibration.json")}}
    async with running(await two(engines), settings) as gateway:
        await teach(gateway)
        learned, n = ids(await gateway.retrieve()), evidence(gateway, "good")
    async with running(await two(engines), settings) as gateway:
        await gateway.retrieve()
        await until(lambda: evidence(gateway, "good") > 0)
        assert ids(await gateway.retrieve()) == learned
        assert evidence(gateway, "good") == pytest.approx(n, rel=1e-3)


async def test_a_new_version_is_noticed_after_a_restart(engines: Any, tmp_path: Any) -> None:
    """The engine was replaced while the gateway was not running: its scores are learned anew."""
    settings = {**ON, "state": {"path": str(tmp_path / "calibration.json")}}
    engine = await engines(results=[hit(f"good{place}", score=9.0 - place) for place in range(8)])
    async with running([entry("good", engine)], settings) as gateway:
        await teach(gateway, 3)
        assert evidence(gateway, "good", "silent") > 1
    engine.version = "2.0"
    for _ in range(2):
        async with running([entry("good", engine)], settings) as gateway:
            await gateway.retrieve()
            await gateway.state.pages.learning.exchange()
            await gateway.retrieve()
            await gateway.state.pages.learning.exchange()
            assert evidence(gateway, "good", "silent") == 0


async def test_gateways_learn_from_each_other(engines: Any, redis_url: str) -> None:
    """What one learned the other applies after an exchange; an answer of one may be judged at the other."""
    settings = {**ON, "state": {"url": redis_url, "prefix": unique(), "timeout_ms": 10_000}}
    entries = await two(engines)
    async with running(entries, settings) as one, running(entries, settings) as other:
        for turn in range(12):
            await one.retrieve(sessionId=f"s{turn}", k=16)
            used = [{"hitId": f"good{place}", "used": True} for place in range(8)]
            await (one, other)[turn % 2].result("feedback", {"sessionId": f"s{turn}", "signals": used})
        both = [gateway.state.pages.learning for gateway in (one, other)]
        await asyncio.gather(*(learning.exchange() for learning in both))
        await one.retrieve()
        await both[0].exchange()
        await other.retrieve()
        await both[1].exchange()
        assert evidence(one, "good") == pytest.approx(evidence(other, "good"))
        assert evidence(one, "good") == pytest.approx(12 * 8, rel=0.02)
        await act(one, "good", "reset_calibration")
        await both[0].exchange()
        await other.retrieve()
        await both[1].exchange()
        assert evidence(one, "good") == evidence(other, "good") == 0


async def test_without_redis_a_gateway_learns_on_alone(engines: Any, relay: Relay) -> None:
    """Nothing learned during an outage is lost: it is exchanged afterwards."""
    settings = {**ON, "state": {"url": relay.url, "prefix": unique(), "timeout_ms": 10_000}}
    async with running(await two(engines), settings) as gateway:
        learning = gateway.state.pages.learning
        await gateway.retrieve()
        await learning.exchange()
        await relay.cut()
        await gateway.retrieve(sessionId="notice")
        await teach(gateway, 4)
        await learning.exchange()
        n = evidence(gateway, "good")
        assert n > 1
        await relay.start()
        await until(lambda: not gateway.state.backend.degraded)
        await gateway.retrieve()
        await learning.exchange()
        assert evidence(gateway, "good") == pytest.approx(n, rel=1e-3)
    async with running(await two(engines), settings) as gateway:
        await gateway.retrieve()
        await gateway.state.pages.learning.exchange()
        assert evidence(gateway, "good") == pytest.approx(n, rel=1e-3)


async def test_a_new_version_of_an_engine_starts_its_scores_anew(engines: Any) -> None:
    """Scores of another version may mean something else; what its confidences are worth stays."""
    good = [hit(f"good{place}", score=9.0 - place) for place in range(8)]
    engine = await engines(results=good)
    async with running([entry("good", engine)], ON) as gateway:
        await teach(gateway, 3)
        assert evidence(gateway, "good", "silent") > 1
        engine.version = "2.0"
        assert (await act(gateway, "good", "handshake"))[0] == 200
        await gateway.retrieve()
        assert evidence(gateway, "good", "silent") == 0
