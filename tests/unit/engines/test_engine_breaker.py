"""An engine that fails is left alone, and asked again in time: over both ways a call can take."""

import asyncio
from typing import Any

import pytest

from app.engines.engine import RemoteEngine
from app.engines.transport import ConnectionLost
from app.protocol.errors import (
    BadStatus,
    BreakerOpen,
    ConnectFailed,
    LegError,
    LegRateLimited,
    LegTimeout,
    Overloaded,
    ProtocolViolation,
    Refused,
)
from app.settings.engine_parts import EngineBreaker
from tests.support.fake_engine import FakeTransport, QuickTransport, never
from tests.support.lone_engine import LoneEngine
from tests.support.virtual_time import turns, virtually

SICK = BadStatus("HTTP 503", status=503)
GOOD = {"hits": []}


async def opened(transport: FakeTransport, **wishes: Any) -> LoneEngine:
    """An engine whose breaker has just opened, and which is asked without retries."""
    subject = LoneEngine(transport, **{"retries": 0, **wishes})
    await subject.shake()
    for _ in range(5):
        assert (await subject.fault()).kind == "http_status"
    assert subject.engine.state().breaker == "open"
    return subject


def test_five_failures_in_a_row_open_it() -> None:
    """From the sixth call on nothing is sent; the fault says when to come again (B41, B47)."""

    async def story() -> None:
        transport = FakeTransport(retrieve=SICK)
        subject = await opened(transport)
        fault = await subject.fault()
        assert isinstance(fault, BreakerOpen)
        assert (fault.attempts, fault.retry_after_ms) == (0, 1000)
        assert transport.asked("retrieve") == 5
        assert subject.engine.retry_in() == 1.0
        assert not subject.engine.up
        assert transport.renewed == 1
        assert subject.instrumentation.count("breaker open for 1 s: http_status") == 1

    virtually(story())


@pytest.mark.parametrize(
    "fault",
    [
        Refused("-32602", code=-32602),
        Refused("-32005", code=-32005),
        BadStatus("HTTP 400", status=400),
        LegRateLimited("429"),
    ],
    ids=lambda fault: fault.message,
)
def test_refusals_of_single_requests_do_not(fault: LegError) -> None:
    """Twenty calls refused for what was asked leave it closed (B41)."""

    async def story() -> None:
        subject = LoneEngine(FakeTransport(retrieve=fault))
        await subject.shake()
        for _ in range(20):
            assert type(await subject.fault()) is type(fault)
        assert subject.engine.state().breaker == "closed"

    virtually(story())


@pytest.mark.parametrize(
    "fault",
    [
        ConnectFailed("refused"),
        ProtocolViolation("HTML"),
        Refused("-32010", code=-32010),
        Refused("-32014", code=-32014),
    ],
    ids=lambda fault: fault.message,
)
def test_failures_of_the_engine_do(fault: LegError) -> None:
    """Each class that counts opens it, and the engine then counts as down (B46)."""

    async def story() -> None:
        subject = LoneEngine(FakeTransport(retrieve=fault), retries=0)
        await subject.shake()
        for _ in range(5):
            await subject.fault()
        assert subject.engine.state().breaker == "open"
        assert not subject.engine.up

    virtually(story())


def test_timeouts_do_and_haste_does_not() -> None:
    """Calls that had the engine's whole time count; those of callers in haste do not."""

    async def story() -> None:
        subject = LoneEngine(FakeTransport(retrieve=never), timeoutMs=2000)
        await subject.shake()
        for _ in range(20):
            assert isinstance(await subject.fault(0.1), LegTimeout)
        assert subject.engine.state().breaker == "closed"
        for _ in range(5):
            await subject.fault(2.0)
        assert subject.engine.state().breaker == "open"

    virtually(story())


def test_recovered_engine_is_used_again() -> None:
    """After the cool-down one call is the probe, fifty others are told at once, and its answer closes it (B45)."""

    async def story() -> None:
        async def well(params: Any) -> Any:
            await asyncio.sleep(0.1)
            return GOOD

        transport = FakeTransport(retrieve=[*[SICK] * 5, well])
        subject = await opened(transport)
        await asyncio.sleep(1.0)
        answers = await asyncio.gather(*(subject.ask() for _ in range(50)), return_exceptions=True)
        assert [type(answer) is BreakerOpen for answer in answers] == [False] + [True] * 49
        assert all(answer.retry_after_ms for answer in answers[1:])  # type: ignore[union-attr]
        assert transport.asked("retrieve") == 6
        assert subject.engine.up
        await subject.ask()
        assert subject.instrumentation.lines[-4:] == ["breaker half_open", "first", "breaker closed", "first"]

    virtually(story())


@pytest.mark.parametrize("end", ["cancelled", "hangs", "refused", "overloaded", "impatient", "our own fault"])
def test_probe_never_keeps_its_place(end: str) -> None:
    """However a probe ends that says nothing good, the next call after the cool-down is admitted as one (B43)."""

    async def story() -> None:
        script = {
            "refused": Refused("-32602", code=-32602),
            "overloaded": Overloaded("the child does not read"),
            "our own fault": ZeroDivisionError(),
        }.get(end, never)
        transport = FakeTransport(retrieve=[*[SICK] * 5, script, GOOD])
        subject = await opened(transport)
        await asyncio.sleep(1.0)
        seconds = 0.1 if end == "impatient" else 2.0
        probe = asyncio.create_task(subject.ask(seconds))
        await turns()
        if end == "cancelled":
            assert isinstance(await subject.fault(), BreakerOpen)
            probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)
        if end == "hangs":
            assert (await subject.fault()).retry_after_ms == 2000
            await asyncio.sleep(2.0)
        assert (await subject.ask()).result == GOOD
        assert subject.engine.state().breaker == "closed"

    virtually(story())


def test_calls_that_wait_at_the_gate_are_told_too() -> None:
    """Who waits for a place when the breaker opens is told so at once, and nothing is sent for it."""

    async def story() -> None:
        transport = FakeTransport(retrieve=never)
        subject = LoneEngine(transport, maxConcurrency=5, retries=0, timeoutMs=1000)
        await subject.shake()
        calls = [asyncio.create_task(subject.fault(1.0)) for _ in range(5)]
        await asyncio.sleep(0.5)
        waiting = asyncio.create_task(subject.fault(1.0))
        await asyncio.sleep(0.5)
        assert {fault.kind for fault in await asyncio.gather(*calls)} == {"timeout"}
        fault = await waiting
        assert (fault.kind, fault.attempts) == ("breaker_open", 0)
        assert subject.instrumentation.waits == [pytest.approx(0.5)]
        assert subject.engine.semaphore.in_flight == 0

    virtually(story())


def test_success_from_before_does_not_close_it() -> None:
    """A call that was under way when the breaker opened is answered, and the breaker stays open."""

    async def story() -> None:
        slow = asyncio.Event()

        async def slowly(params: Any) -> Any:
            await slow.wait()
            return GOOD

        subject = LoneEngine(FakeTransport(retrieve=[slowly, *[SICK] * 5]), retries=0)
        await subject.shake()
        early = asyncio.create_task(subject.ask())
        await turns()
        for _ in range(5):
            await subject.fault()
        slow.set()
        assert (await early).result == GOOD
        assert subject.engine.state().breaker == "open"
        assert not subject.engine.up

    virtually(story())


def test_checks_do_not_close_it() -> None:
    """A ping that is answered brings no engine back that traffic found sick, before its cool-down is over."""

    async def story() -> None:
        subject = await opened(FakeTransport(retrieve=SICK))
        await subject.check()
        assert not subject.engine.up
        await asyncio.sleep(1.0)
        await subject.check()
        assert subject.engine.up
        assert subject.engine.state().breaker == "open"

    virtually(story())


def test_an_operator_can_reset_it() -> None:
    """Reset, it is asked at once (B47)."""

    async def story() -> None:
        subject = await opened(FakeTransport(retrieve=[*[SICK] * 5, GOOD]))
        subject.engine.reset()
        assert (await subject.ask()).result == GOOD
        assert subject.instrumentation.count("breaker closed") == 1

    virtually(story())


def test_rules_of_its_own_win() -> None:
    """An entry's own rules stand before those for all engines; what it does not say is as for all."""

    async def story() -> None:
        settings = {"breaker_failures": 2, "breaker_open_ms": 7000}
        subject = LoneEngine(FakeTransport(retrieve=SICK), settings=settings, retries=0, breaker={"openMs": 300})
        await subject.shake()
        for _ in range(2):
            await subject.fault()
        assert (await subject.fault()).retry_after_ms == 300
        off = LoneEngine(FakeTransport(retrieve=SICK), settings=settings, retries=0, breaker={"failures": 0})
        await off.shake()
        for _ in range(50):
            assert (await off.fault()).kind == "http_status"

    virtually(story())


def test_a_share_of_failures_opens_it() -> None:
    """Every other call failing opens it once the window holds the share."""

    async def story() -> None:
        subject = LoneEngine(
            FakeTransport(retrieve=[GOOD, SICK] * 10),
            retries=0,
            breaker={"window": 8, "share": 0.5},
        )
        await subject.shake()
        ends = [await asyncio.gather(subject.ask(), return_exceptions=True) for _ in range(9)]
        assert [type(end) for (end,) in ends[1::2]] == [BadStatus] * 4
        assert isinstance(ends[8][0], BreakerOpen)

    virtually(story())


# ── the way without a task ──────────────────────────────────────────────────────────────────────────────────────────


async def outcome(subject: LoneEngine) -> str:
    """Begin a question, and say what came of it: answered, a kind of fault, or again."""
    asked = subject.begin()
    await turns()
    try:
        if asked.collect() is not None:
            return "answered"
        asked.cancel()
        return "again"
    except LegError as fault:
        return fault.kind


def test_begun_calls_count_as_well() -> None:
    """Failures of begun calls open the breaker; then nothing can be begun, and `call` says why."""

    async def story() -> None:
        subject = LoneEngine(QuickTransport(retrieve=[*[SICK] * 5, GOOD]), retries=0)
        await subject.shake()
        assert [await outcome(subject) for _ in range(5)] == ["http_status"] * 5
        assert await subject.needs_task()
        assert isinstance(await subject.fault(), BreakerOpen)
        await asyncio.sleep(1.0)
        assert await subject.needs_task()
        await subject.ask()
        subject.begin().cancel()

    virtually(story())


def test_begun_calls_that_say_nothing_are_neutral() -> None:
    """Dropped calls, hasty timeouts and connections that had been idle count for nothing; late ones do."""

    async def story() -> None:
        subject = LoneEngine(QuickTransport(retrieve=never), timeoutMs=2000)
        await subject.shake()
        for _ in range(10):
            subject.begin().cancel()
            subject.begin(0.1).expire()
        assert subject.engine.state().breaker == "closed"
        subject.transport.script("retrieve", ConnectionLost("gone"))
        assert [await outcome(subject) for _ in range(10)] == ["again"] * 10
        assert subject.engine.state().breaker == "closed"
        subject.transport.script("retrieve", never)
        for _ in range(5):
            subject.begin().expire()
        assert subject.engine.state().breaker == "open"
        assert subject.engine.semaphore.in_flight == 0

    virtually(story())


def test_begun_success_clears_the_row() -> None:
    """Four failures, a success, four failures: it stays closed."""

    async def story() -> None:
        subject = LoneEngine(QuickTransport(retrieve=[*[SICK] * 4, GOOD, *[SICK] * 4, GOOD]), retries=0)
        await subject.shake()
        ends = [await outcome(subject) for _ in range(10)]
        assert ends == [*["http_status"] * 4, "answered", *["http_status"] * 4, "answered"]
        assert subject.engine.up

    virtually(story())


POISON = ProtocolViolation("-32603", code=-32603)


def test_rules_of_a_reload_say_when_a_control_call_is_due() -> None:
    """With two failures instead of five the control call is made after the first error, and opens the breaker."""

    async def story() -> None:
        transport = FakeTransport(retrieve=POISON)
        before = LoneEngine(transport, retries=0).engine
        await before.handshake(2.0)
        entry = before.entry.model_copy(update={"breaker": EngineBreaker(failures=2)})
        engine = RemoteEngine(entry, before.replicas[0], lambda _: None, before=before)
        with pytest.raises(ProtocolViolation):
            await engine.call("retrieve", {"query": "q"}, 2.0)
        await turns(5)
        assert transport.asked("retrieve") == 2
        assert engine.state().breaker == "open"

    virtually(story())


def test_control_call_that_is_called_off_is_made_anew() -> None:
    """A replica that a reload takes away takes its control call with it, and not those to come."""

    async def story() -> None:
        transport = FakeTransport(retrieve=[*[POISON] * 4, never, POISON])
        subject = LoneEngine(transport, retries=0)
        await subject.shake()
        for _ in range(4):
            await subject.fault()
        assert subject.engine.policies.tracker.suspicion.pending
        await subject.engine.replicas[0].close()
        assert not subject.engine.policies.tracker.suspicion.pending
        assert subject.engine.state().breaker == "closed"
        await subject.fault()
        await turns(5)
        assert subject.engine.state().breaker == "open"

    virtually(story())
