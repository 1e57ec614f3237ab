"""Asking again: what is worth it, how often, how soon, within which time and budget, and what is never sent twice."""

import asyncio
from typing import Any

import pytest

from app.engines.transport import ConnectionLost, Reply
from app.protocol.errors import (
    BadStatus,
    ConnectFailed,
    LegError,
    LegRateLimited,
    ProtocolViolation,
    Refused,
    TlsFailed,
)
from tests.support.fake_engine import FakeTransport, QuickTransport, described, never
from tests.support.lone_engine import LoneEngine
from tests.support.virtual_time import jumping_loop, turns, virtually

SICK = BadStatus("HTTP 503", status=503)
GOOD = {"hits": []}
UNGUARDED = {"failures": 0}


async def shaken(*scripts: Any, transport: type[FakeTransport] = FakeTransport, **wishes: Any) -> LoneEngine:
    """An engine that plays these for `retrieve`; hands are shaken, and its breaker stays closed."""
    subject = LoneEngine(transport(retrieve=list(scripts)), **{"breaker": UNGUARDED, **wishes})
    await subject.shake()
    return subject


@pytest.mark.parametrize(
    "fault",
    [
        SICK,
        ConnectFailed("refused"),
        ConnectionLost("closed"),
        Refused("-32010", code=-32010),
        Refused("-32014", code=-32014),
        ProtocolViolation("-32603", code=-32603),
    ],
    ids=lambda fault: fault.message,
)
def test_what_may_pass_is_asked_again(fault: LegError) -> None:
    """One retry after a short pause, and the answer is an ordinary one that took two attempts."""

    async def story() -> None:
        subject = await shaken(fault, GOOD)
        began = jumping_loop().time()
        assert (await subject.ask()).attempts == 2
        assert 0.025 <= jumping_loop().time() - began <= 0.05
        assert subject.instrumentation.lines == ["first", "retry"]
        assert subject.engine.up

    virtually(story())


@pytest.mark.parametrize(
    "fault",
    [
        TlsFailed("expired"),
        ProtocolViolation("broke off"),
        BadStatus("HTTP 404", status=404),
        Refused("-32602", code=-32602),
        LegRateLimited("429"),
    ],
    ids=lambda fault: fault.message,
)
def test_what_will_not_pass_is_not(fault: LegError) -> None:
    """The first answer stands (B56: also a connection that broke off in an answer)."""

    async def story() -> None:
        subject = await shaken(fault, GOOD)
        failed = await subject.fault()
        assert (failed.message, failed.attempts) == (fault.message, 1)

    virtually(story())


@pytest.mark.parametrize("retries", [0, 1, 2, 5])
def test_there_are_never_more_requests_than_allowed(retries: int) -> None:
    """An engine that always fails sees one request and its retries, no more (B39)."""

    async def story() -> None:
        subject = await shaken(SICK, retries=retries, timeoutMs=60_000)
        fault = await subject.fault(60.0)
        assert fault.attempts == retries + 1
        assert subject.transport.asked("retrieve") == retries + 1

    virtually(story())


def test_internal_errors_are_asked_about_once() -> None:
    """-32603 is asked again once, however many retries there are."""

    async def story() -> None:
        subject = await shaken(ProtocolViolation("-32603", code=-32603), retries=5)
        assert (await subject.fault()).attempts == 2

    virtually(story())


def test_reconnects_count_as_attempts() -> None:
    """A wire that replaced a dead connection by itself has used up the retry (B39)."""

    async def story() -> None:
        twice = ConnectionLost("closed")
        twice.attempts = 2
        subject = await shaken(twice)
        assert (await subject.fault()).attempts == 2
        assert subject.instrumentation.lines == ["first", "again"]
        subject.transport.script("retrieve", Reply(GOOD, attempts=2))
        assert (await subject.ask()).attempts == 2

    virtually(story())


def test_handshakes_do_not() -> None:
    """-32001 leads to a handshake and the question again for free; a failure after that may still be retried."""

    async def story() -> None:
        forgot = Refused("-32001", code=-32001)
        subject = await shaken(forgot, SICK, GOOD)
        reply = await subject.ask()
        assert (reply.attempts, reply.result) == (3, GOOD)
        assert subject.transport.asked("initialize") == 2
        assert subject.instrumentation.lines == ["first", "again", "retry"]

    virtually(story())


def test_no_attempt_without_time_for_it() -> None:
    """A retry that could not be answered in time is not made, and the fault says so (B40)."""

    async def story() -> None:
        subject = await shaken(SICK, settings={"retry_backoff_ms": 1000}, retries=3)
        fault = await subject.fault(0.3)
        assert fault.message == "HTTP 503 (attempt 1 of 4: no time is left for another attempt)"
        assert fault.attempts == 1
        assert subject.instrumentation.lines == ["first", "no retry: time"]

    virtually(story())


def test_attempts_have_a_time_of_their_own() -> None:
    """With `attemptTimeoutMs` a hanging attempt is given up for another, never past the deadline (B40)."""

    async def story() -> None:
        subject = await shaken(never, never, GOOD, retries=3, attemptTimeoutMs=1000, timeoutMs=3000)
        reply = await subject.ask(3.0)
        assert reply.attempts == 3
        subject.transport.script("retrieve", never)
        began = jumping_loop().time()
        fault = await subject.fault(2.5)
        assert (fault.kind, fault.attempts) == ("timeout", 3)
        assert jumping_loop().time() - began == pytest.approx(2.5)
        assert subject.engine.semaphore.in_flight == subject.transport.under_way == 0

    virtually(story())


def test_an_outage_does_not_double_the_load() -> None:
    """Of a thousand calls to an engine that only fails, a fifth is retried, and the rest says why not (B39)."""

    async def story() -> None:
        subject = await shaken(SICK)
        faults = [await subject.fault() for _ in range(1000)]
        assert 1200 <= subject.transport.asked("retrieve") <= 1210
        assert faults[-1].message.endswith("(attempt 1 of 2: the retry budget is used up)") or faults[-1].attempts == 2
        assert subject.instrumentation.count("no retry: budget") == 2000 - subject.transport.asked("retrieve")

    virtually(story())


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_budget_is_a_setting(share: float) -> None:
    """0 allows no retry at all, 1 one for each call."""

    async def story() -> None:
        subject = await shaken(SICK, settings={"retry_budget": share})
        for _ in range(50):
            await subject.fault()
        assert subject.instrumentation.count("retry") == 50 * share

    virtually(story())


@pytest.mark.parametrize(
    "fault", [SICK, ConnectionLost("closed"), Refused("-32010", code=-32010)], ids=lambda f: f.message
)
def test_what_changes_something_is_sent_once(fault: LegError) -> None:
    """A call that is not idempotent is never sent twice; unsent, it may be tried again (B56)."""

    async def story() -> None:
        subject = await shaken(fault, GOOD)
        await subject.fault(idempotent=False)
        assert subject.transport.asked("retrieve") == 1
        subject.transport.script("retrieve", [ConnectFailed("refused"), GOOD])
        assert (await subject.ask(idempotent=False)).result == GOOD
        assert set(subject.transport.idempotent[1:]) == {False}

    virtually(story())


def test_a_short_wish_to_wait_is_kept() -> None:
    """Retry-After within a second and the deadline is waited for, whole; then the question is put again."""

    async def story() -> None:
        subject = await shaken(LegRateLimited("429", retry_after_ms=700), GOOD)
        began = jumping_loop().time()
        assert (await subject.ask()).result == GOOD
        assert jumping_loop().time() - began >= 0.7

    virtually(story())


def test_a_long_wish_to_wait_leaves_the_engine_alone() -> None:
    """Until its time nobody asks it, and everybody is told when; the breaker stays closed and the engine up (B41)."""

    async def story() -> None:
        transport = QuickTransport(retrieve=[LegRateLimited("429", retry_after_ms=5000), GOOD])
        subject = LoneEngine(transport)
        await subject.shake()
        first = await subject.fault()
        assert (first.kind, first.attempts) == ("rate_limited", 1)
        await asyncio.sleep(2.0)
        fault = await subject.fault()
        assert (fault.kind, fault.attempts, fault.retry_after_ms) == ("rate_limited", 0, 3000)
        assert await subject.needs_task()
        assert subject.engine.state().breaker == "closed"
        assert subject.engine.up
        assert transport.asked("retrieve") == 1
        await asyncio.sleep(3.0)
        assert (await subject.ask()).result == GOOD
        subject.begin().cancel()
        assert subject.instrumentation.count("held 5 s") == 1

    virtually(story())


def test_a_wish_to_wait_for_years_is_kept_for_a_minute() -> None:
    """However long an engine wants to be left alone, it is asked once a minute; an operator may do it sooner."""

    async def story() -> None:
        subject = await shaken(LegRateLimited("429", retry_after_ms=10**9))
        await subject.fault()
        assert (await subject.fault()).retry_after_ms == 60_000
        subject.engine.reset()
        assert (await subject.fault()).attempts == 1

    virtually(story())


def test_engines_are_told_the_time_that_is_left() -> None:
    """A retry states less in `_meta.deadlineMs` than the first attempt, and what is left at most (RCP §16)."""

    async def story() -> None:
        subject = await shaken(SICK, GOOD, settings={"retry_backoff_ms": 400})
        params = {"query": "q", "_meta": {"deadlineMs": 1990, "traceId": "t"}}
        await subject.engine.call("retrieve", params, jumping_loop().time() + 2.0)
        first, second = (sent["_meta"] for method, sent in subject.transport.calls if method == "retrieve")
        assert first == {"deadlineMs": 1990, "traceId": "t"}
        assert second["traceId"] == "t"
        assert 1590 <= second["deadlineMs"] <= 1800
        assert params["_meta"] == {"deadlineMs": 1990, "traceId": "t"}

    virtually(story())


# ── after a begun attempt ───────────────────────────────────────────────────────────────────────────────────────────


async def resumed(subject: LoneEngine, seconds: float = 2.0) -> Reply:
    """Begin a question; what came of that goes on the long way."""
    asked = subject.begin(seconds)
    await turns()
    assert asked.collect() is None
    return await asked


@pytest.mark.parametrize(
    ("fault", "lines"),
    [
        (SICK, ["first", "retry"]),
        (Refused("-32010", code=-32010), ["first", "retry"]),
        (ConnectionLost("closed"), ["first", "again"]),
        (Refused("-32001", code=-32001), ["first", "again"]),
        (LegRateLimited("429", retry_after_ms=300), ["first", "held 0.3 s", "retry"]),
    ],
    ids=lambda value: getattr(value, "message", ""),
)
def test_a_begun_attempt_is_the_first_of_its_call(fault: LegError, lines: list[str]) -> None:
    """What failed without a task goes on with one, and all its requests are counted."""

    async def story() -> None:
        subject = await shaken(fault, GOOD, transport=QuickTransport)
        assert (await resumed(subject)).attempts == 2
        assert subject.instrumentation.lines == lines
        assert subject.engine.semaphore.in_flight == 0

    virtually(story())


def test_a_begun_attempt_uses_up_its_retries_as_any_other() -> None:
    """With one retry an engine that fails is sent two requests, also if the first was begun; with none, one."""

    async def story() -> None:
        subject = await shaken(SICK, transport=QuickTransport)
        with pytest.raises(BadStatus) as raised:
            await resumed(subject)
        assert raised.value.attempts == subject.transport.asked("retrieve") == 2
        without = await shaken(SICK, transport=QuickTransport, retries=0)
        asked = without.begin()
        await turns()
        with pytest.raises(BadStatus):
            asked.collect()

    virtually(story())


def test_an_idle_connection_that_was_closed_is_replaced_even_without_retries() -> None:
    """A keep-alive connection may be gone when it is used; that is no failure and no retry (B56)."""

    async def story() -> None:
        subject = await shaken(ConnectionLost("closed"), GOOD, transport=QuickTransport, retries=0)
        assert (await resumed(subject)).attempts == 2
        assert subject.engine.up

    virtually(story())


def test_a_begun_attempt_that_opened_the_breaker_is_not_repeated() -> None:
    """The fault that opened it is told, not that it is open."""

    async def story() -> None:
        subject = await shaken(SICK, transport=QuickTransport, breaker={"failures": 1})
        with pytest.raises(BadStatus) as raised:
            await resumed(subject)
        assert raised.value.attempts == subject.transport.asked("retrieve") == 1

    virtually(story())


def test_a_restarted_engine_is_greeted_once_for_all_begun() -> None:
    """Ten begun calls that meet a restarted engine lead to one handshake."""

    async def story() -> None:
        subject = await shaken(*[Refused("-32001", code=-32001)] * 10, GOOD, transport=QuickTransport)
        subject.transport.script("initialize", described())
        asked = [subject.begin() for _ in range(10)]
        await turns()
        assert [each.collect() for each in asked] == [None] * 10
        assert await subject.needs_task()
        await asyncio.gather(*asked)
        assert subject.transport.asked("initialize") == 2
        subject.begin().cancel()

    virtually(story())
