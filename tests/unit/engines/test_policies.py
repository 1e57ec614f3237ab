"""Which setting feeds which guard, and that no mixture of faults, hedges and cancellations leaves a place taken."""

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest

from app.engines.call_instrumentation import NoInstrumentation
from app.engines.policies import CallPolicies, policies_of
from app.engines.transport import ConnectionLost, Reply
from app.protocol.errors import BadStatus, ConnectFailed, LegError, LegRateLimited, ProtocolViolation, Refused
from app.settings.schema import EnginesSettings
from tests.support.fake_engine import QuickTransport, entry_of, never
from tests.support.lone_engine import LoneEngine
from tests.support.virtual_time import turns, virtually

SICK = BadStatus("HTTP 503", status=503)


def policies(settings: dict[str, Any], **wishes: Any) -> CallPolicies:
    """Guards of an engine with two replicas."""
    entry = entry_of("docs", replicas=["http://other.invalid/rcp"], **wishes)
    made = EnginesSettings.model_validate(settings)
    transports = [QuickTransport(), QuickTransport()]
    return policies_of(entry, made, transports, NoInstrumentation(), lambda fault: None, lambda said: None, lambda: 0.5)


def test_settings_of_the_breaker() -> None:
    """Each of its five settings is a rule; what an entry says stands before them."""
    settings = {
        "breaker_failures": 2,
        "breaker_window": 4,
        "breaker_share": 0.75,
        "breaker_open_ms": 300,
        "breaker_longest_open_ms": 400,
    }
    breaker = policies(settings).tracker.breaker
    for _ in range(2):
        breaker.failed(breaker.generation, 1.0)
    assert breaker.retry_in(1.0) == pytest.approx(0.3)
    probe = breaker.admit(2.0)
    assert probe is not None
    breaker.failed(probe, 2.0)
    assert breaker.retry_in(2.0) == pytest.approx(0.4)
    assert repr(breaker).endswith("2 failures in the last 4, 2 in a row, cool-down 0.4 s>")
    by_share = policies({**settings, "breaker_failures": 9}).tracker.breaker
    opened = [by_share.succeeded(0), *(by_share.failed(0, 1.0) for _ in range(3))]
    assert opened == [False, False, False, True]
    own = policies(settings, breaker={"failures": 1, "window": 7, "openMs": 70, "longestOpenMs": 80, "share": 1.0})
    assert own.tracker.breaker.failed(0, 1.0)
    assert own.tracker.breaker.retry_in(1.0) == pytest.approx(0.07)


def test_settings_of_attempts() -> None:
    """The first pause, the budget, and the budget of hedges."""
    made = policies({"retry_backoff_ms": 400, "retry_budget": 0.5, "hedge_budget": 0.25}, hedge=True)
    assert made.pace.pause(0) == pytest.approx(0.3)
    assert (made.budget.share, made.hedge and made.hedge.budget.share) == (0.5, 0.25)
    assert policies({}).hedge is None


def test_settings_of_replicas() -> None:
    """When one is left out, for how long, and how long it takes to be all there again."""
    replicas = policies({"eject_failures": 2, "eject_ms": 700, "slow_start_seconds": 3.0}).tracker.replicas
    first = replicas.all[0]
    replicas.failed(first, SICK, 100.0)
    assert first.ejected_until is None
    replicas.failed(first, SICK, 100.0)
    assert first.ejected_until == 100.7
    replicas.choose(100.7)
    assert first.back_since == 100.7
    replicas.choose(103.69)
    assert first.back_since == 100.7
    replicas.choose(103.7)
    assert first.back_since is None


@pytest.mark.parametrize(("wishes", "queue"), [({}, 24), ({"maxWaiting": 0}, 0), ({"maxWaiting": 5}, 5)])
def test_settings_of_the_gate(wishes: dict[str, Any], queue: int) -> None:
    """Eight wait for each place, unless the entry says otherwise."""
    made = policies({}, maxConcurrency=3, **wishes)
    assert (made.semaphore.limit, made.semaphore.queue) == (3, queue)


def surprise(chance: random.Random) -> Any:
    """A script in which anything may happen, at once or after a while."""
    faults: list[LegError] = [
        SICK,
        ConnectFailed("refused"),
        ConnectionLost("closed"),
        ProtocolViolation("-32603", code=-32603),
        Refused("-32602", code=-32602),
        Refused("-32001", code=-32001),
        LegRateLimited("429", retry_after_ms=50),
    ]

    async def play(params: Mapping[str, Any]) -> Any:
        await asyncio.sleep(chance.choice([0.0, 0.0, 0.01, 0.1, 1.0]))
        if chance.random() < 0.1:
            await never(params)
        return chance.choice(faults) if chance.random() < 0.5 else {"hits": []}

    return play


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_no_place_is_lost(seed: int) -> None:
    """Hundreds of calls, begun or not, some cancelled, over replicas that do anything: all is free at the end."""

    async def story() -> None:
        chance = random.Random(seed)
        transports = [QuickTransport(retrieve=surprise(chance)) for _ in range(1 + seed % 3)]
        wishes: dict[str, Any] = {"maxConcurrency": 4, "maxWaiting": 4, "retries": seed % 4, "timeoutMs": 2000}
        if seed % 2:
            wishes["attemptTimeoutMs"] = 300
        if seed % 3:
            wishes["hedge"] = True
        subject = LoneEngine(*transports, settings={"hedge_budget": 1.0, "retry_budget": 1.0}, **wishes)
        await subject.shake()

        async def one() -> None:
            call = subject.start(chance.choice([0.05, 2.0]))
            reply = await call
            assert isinstance(reply, Reply)

        for _ in range(40):
            calls = [asyncio.create_task(one()) for _ in range(chance.randrange(1, 12))]
            await asyncio.sleep(chance.choice([0.0, 0.02, 0.2]))
            for call in calls:
                if chance.random() < 0.2:
                    call.cancel()
            for end in await asyncio.gather(*calls, return_exceptions=True):
                assert end is None or isinstance(end, LegError | asyncio.CancelledError), end
        await turns()
        state = subject.engine.state()
        assert (state.in_flight, state.waiting) == (0, 0)
        assert [replica.in_flight for replica in subject.engine.policies.tracker.replicas.all] == [0] * len(transports)
        assert [transport.under_way for transport in transports] == [0] * len(transports)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        for transport in transports:
            transport.script("retrieve", {"hits": []})
        await asyncio.sleep(120.0)
        await subject.ask()
        assert subject.engine.state().breaker == "closed"
        assert subject.engine.up

    virtually(story())
