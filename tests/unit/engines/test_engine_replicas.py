"""One engine at several addresses: calls are spread, a sick one is left out, a slow one is outrun."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from app.protocol.errors import BadStatus, ConnectFailed, LegRateLimited, ProtocolViolation, Refused
from tests.support.fake_engine import FakeTransport, QuickTransport, described, never
from tests.support.lone_engine import LoneEngine
from tests.support.virtual_time import jumping_loop, turns, virtually

SICK = BadStatus("HTTP 503", status=503)
GOOD = {"hits": []}


def after(seconds: float) -> Any:
    """A script that answers after so long."""

    async def play(params: Mapping[str, Any]) -> Any:
        await asyncio.sleep(seconds)
        return GOOD

    return play


def wires(*scripts: Any, kind: type[FakeTransport] = FakeTransport) -> list[FakeTransport]:
    """A wire for each script of `retrieve`."""
    return [kind(retrieve=script) for script in scripts]


async def shaken(*transports: FakeTransport, **wishes: Any) -> LoneEngine:
    """An engine over these wires whose hands are shaken."""
    subject = LoneEngine(*transports, **wishes)
    await subject.shake()
    return subject


@pytest.mark.parametrize("kind", [FakeTransport, QuickTransport])
def test_calls_are_spread_over_replicas(kind: type[FakeTransport]) -> None:
    """Both addresses answer, over both ways a call can take, and the reply names who did."""

    async def story() -> None:
        transports = wires(GOOD, GOOD, kind=kind)
        subject = await shaken(*transports)
        named = set()
        for _ in range(60):
            reply = await subject.start()
            named.add(reply.replica)
        assert named == {"0", "1"}
        assert all(transport.asked("retrieve") > 10 for transport in transports)
        assert [replica.in_flight for replica in subject.engine.state().replicas] == [0, 0]

    virtually(story())


def test_a_retry_goes_to_another_replica() -> None:
    """What one replica fails the other is asked, so that a sick one costs a caller nothing."""

    async def story() -> None:
        subject = await shaken(*wires(SICK, GOOD))
        for _ in range(50):
            assert (await subject.ask()).replica == "1"

    virtually(story())


def test_what_was_begun_at_a_sick_replica_is_asked_elsewhere() -> None:
    """A question that was begun without a task goes on at the other replica, not at the one that failed it."""

    async def story() -> None:
        for _ in range(30):
            subject = await shaken(*wires(SICK, GOOD, kind=QuickTransport))
            reply = await subject.start(1)
            assert reply.replica == "1"

    virtually(story())


def test_a_sick_replica_is_left_out() -> None:
    """After three failures in a row it is asked no more for a while, and the engine's breaker stays closed."""

    async def story() -> None:
        sick, well = wires(ConnectFailed("refused"), GOOD)
        subject = await shaken(sick, well)
        for _ in range(100):
            await subject.ask()
        assert sick.asked("retrieve") == 3
        assert subject.instrumentation.count("replica 0 connect") == 1
        assert [replica.up for replica in subject.engine.state().replicas] == [False, True]
        assert subject.engine.state().breaker == "closed"
        assert subject.engine.up
        sick.script("retrieve", GOOD)
        await asyncio.sleep(5.0)
        for _ in range(20):
            await subject.ask()
            await asyncio.sleep(1.0)
        assert subject.instrumentation.count("replica 0 back") == 1
        assert sick.asked("retrieve") > 3

    virtually(story())


@pytest.mark.parametrize(
    "fault",
    [
        Refused("-32003 what is retrieve?", code=-32003),
        Refused("-32001 shake hands first", code=-32001),
        BadStatus("HTTP 302", status=302),
        BadStatus("HTTP 404", status=404),
        BadStatus("HTTP 503", status=503),
        ProtocolViolation("the body is not JSON"),
        {"hits": None},
        {},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [FakeTransport, QuickTransport])
def test_a_replica_that_is_not_what_it_should_be_costs_nobody_an_answer(fault: Any, kind: type[FakeTransport]) -> None:
    """Of two addresses one leads to something else: the other one answers every call, and soon it alone is asked."""

    async def story() -> None:
        stray, well = wires(fault, GOOD, kind=kind)
        subject = await shaken(stray, well)
        for _ in range(60):
            reply = await subject.start(1)
            assert reply.replica == "1"
        assert [replica.up for replica in subject.engine.state().replicas] == [False, True]
        assert subject.engine.state().breaker == "closed"
        assert stray.asked("retrieve") <= 9, "three calls, each once more after the handshake that it asks for"

    virtually(story())


def test_what_all_refuse_ejects_nobody() -> None:
    """A question that is bad is refused once, and no replica is left out for it (B41)."""

    async def story() -> None:
        transports = wires(*[Refused("-32602 k", code=-32602)] * 2)
        subject = await shaken(*transports)
        for _ in range(20):
            with pytest.raises(Refused, match="-32602"):
                await subject.ask()
        assert sum(transport.asked("retrieve") for transport in transports) == 20
        assert all(replica.up for replica in subject.engine.state().replicas)

    virtually(story())


def test_if_all_are_sick_the_breaker_opens() -> None:
    """The last replica stays in use until the engine as a whole is left alone."""

    async def story() -> None:
        subject = await shaken(*wires(SICK, SICK), retries=0)
        kinds = [(await subject.fault()).kind for _ in range(6)]
        assert kinds == ["http_status"] * 5 + ["breaker_open"]
        assert any(replica.up for replica in subject.engine.state().replicas)

    virtually(story())


def test_a_rate_limited_replica_is_passed_over() -> None:
    """One that wants to be left alone is; the engine as a whole answers at once."""

    async def story() -> None:
        limited, well = wires(LegRateLimited("429", retry_after_ms=5000), GOOD)
        subject = await shaken(limited, well)
        began = jumping_loop().time()
        for _ in range(50):
            assert (await subject.ask()).replica == "1"
        assert limited.asked("retrieve") == 1
        assert jumping_loop().time() - began < 0.1
        well.script("retrieve", LegRateLimited("429", retry_after_ms=9000))
        await subject.fault()
        fault = await subject.fault()
        assert (fault.kind, fault.attempts) == ("rate_limited", 0)
        assert 4000 < (fault.retry_after_ms or 0) <= 5000

    virtually(story())


def test_each_replica_is_shaken_hands_with() -> None:
    """All are greeted at once; a replica that forgot its handshake is greeted again, without the others."""

    async def story() -> None:
        first, second = wires(GOOD, [Refused("-32001", code=-32001), GOOD])
        subject = await shaken(first, second)
        for _ in range(30):
            await subject.ask()
        assert (first.asked("initialize"), second.asked("initialize")) == (1, 2)

    virtually(story())


def test_a_check_is_content_with_one_that_is_well() -> None:
    """A dead replica brings no engine down while another answers; with none it is down."""

    async def story() -> None:
        dead, well = FakeTransport(initialize=ConnectFailed("refused"), ping=ConnectFailed("refused")), FakeTransport()
        subject = LoneEngine(dead, well)
        well.script("info", described())
        for _ in range(8):
            await subject.check()
            await turns()
            assert subject.engine.up
        assert subject.instrumentation.count("replica 0 connect") == 1
        well.script("ping", ConnectFailed("refused"))
        with pytest.raises(ConnectFailed):
            await subject.check()
        assert not subject.engine.up

    virtually(story())


def test_replicas_are_greeted_at_once_and_the_first_that_answers_will_do() -> None:
    """Each takes longer than its share of the time would be, and one hangs: the engine is up after the quickest."""

    async def story() -> None:
        slow = wires(GOOD, GOOD)
        for transport, seconds in zip(slow, (1.2, 1.5), strict=True):
            transport.script("initialize", slowly(seconds))
        subject = LoneEngine(FakeTransport(initialize=never), *slow)
        began = jumping_loop().time()
        await subject.check(2.0)
        assert subject.engine.up
        assert jumping_loop().time() - began == pytest.approx(1.2)
        assert (await subject.ask()).replica == "1", "the others have not shaken hands yet"
        await asyncio.sleep(0.4)
        assert [replica.handshake_done for replica in subject.engine.replicas] == [False, True, True]
        await subject.engine.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    virtually(story())


def slowly(seconds: float) -> Any:
    """A script that shakes hands after so long."""

    async def play(params: Mapping[str, Any]) -> Any:
        await asyncio.sleep(seconds)
        return described()

    return play


def test_a_replica_that_has_not_shaken_hands_is_asked_only_if_there_is_no_other() -> None:
    """One that joins may not be there yet; once it has been greeted it gets its share of the calls."""

    async def story() -> None:
        transports = wires(GOOD, GOOD)
        transports[1].script("initialize", slowly(1.0))
        subject = LoneEngine(*transports)
        await subject.check()
        for _ in range(20):
            assert (await subject.ask()).replica == "0"
        await asyncio.sleep(1.0)
        assert {(await subject.ask()).replica for _ in range(40)} == {"0", "1"}
        await subject.engine.close()

    virtually(story())


def test_slow_calls_are_hedged() -> None:
    """Once it is known how long calls take, a slow one is asked of a second replica, whose answer wins."""

    async def story() -> None:
        first, second = wires(after(0.01), after(0.01))
        subject = await shaken(first, second, hedge=True, settings={"hedge_budget": 1.0})
        for _ in range(20):
            await subject.ask()
        first.script("retrieve", never)
        replies = [await subject.ask() for _ in range(20)]
        hedged = [reply for reply in replies if reply.hedged]
        assert hedged
        assert all((reply.replica, reply.attempts) == ("1", 2) for reply in hedged)
        assert subject.instrumentation.count("hedge") == len(hedged)
        assert (first.under_way, second.under_way, subject.engine.semaphore.in_flight) == (0, 0, 0)
        assert [replica.in_flight for replica in subject.engine.state().replicas] == [0, 0]

    virtually(story())


def test_hedges_are_few() -> None:
    """Though every call is slow, no more than the budget's share of them is hedged."""

    async def story() -> None:
        first, second = wires(after(0.01), after(0.01))
        subject = await shaken(first, second, hedge=True, settings={"hedge_budget": 0.05})
        for _ in range(20):
            await subject.ask()
        for transport in (first, second):
            transport.script("retrieve", after(0.5))
        for _ in range(8):
            await asyncio.gather(*(subject.ask() for _ in range(10)))
        assert 0 < subject.instrumentation.count("hedge") <= 1 + 100 * 0.05

    virtually(story())


def test_what_changes_something_is_not_hedged() -> None:
    """A call that is not idempotent goes to one replica."""

    async def story() -> None:
        subject = await shaken(*wires(after(0.01), after(0.01)), hedge=True, settings={"hedge_budget": 1.0})
        for _ in range(20):
            await subject.ask()
        for replica in subject.engine.policies.tracker.replicas.all:
            replica.transport.script("retrieve", after(1.0))  # type: ignore[attr-defined]
        assert not (await subject.ask(idempotent=False)).hedged
        assert subject.instrumentation.count("hedge") == 0

    virtually(story())


def test_hedged_call_that_is_late_leaves_nothing() -> None:
    """At the deadline both attempts are ended and their places are free."""

    async def story() -> None:
        first, second = wires(after(0.01), after(0.01))
        subject = await shaken(first, second, hedge=True, settings={"hedge_budget": 1.0})
        for _ in range(20):
            await subject.ask()
        for transport in (first, second):
            transport.script("retrieve", never)
        fault = await subject.fault(2.0)
        assert (fault.kind, fault.attempts, fault.hedged) == ("timeout", 2, True)
        assert (first.under_way, second.under_way, subject.engine.semaphore.in_flight) == (0, 0, 0)

    virtually(story())


async def test_close_closes_every_wire() -> None:
    """Closing an engine releases each replica's transport."""
    first, second = FakeTransport(initialize=described()), FakeTransport()
    await LoneEngine(first, second).engine.close()
    assert first.closed
    assert second.closed
