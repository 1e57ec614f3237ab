"""What counts as down: which faults are held against an engine, how it is checked, and what brings it back."""

import asyncio

import pytest

from app.protocol.errors import (
    BadStatus,
    ConnectFailed,
    LegError,
    LegRateLimited,
    LegTimeout,
    ProtocolViolation,
    Refused,
    ResponseTooLarge,
    TlsFailed,
)
from tests.support.fake_engine import FakeTransport, never
from tests.support.lone_engine import LoneEngine
from tests.support.virtual_time import turns, virtually


@pytest.mark.parametrize(
    "fault",
    [
        ConnectFailed("refused"),
        TlsFailed("expired"),
        BadStatus("503"),
        ProtocolViolation("no JSON"),
        LegTimeout("slow"),
    ],
    ids=lambda fault: fault.kind,
)
async def test_faults_of_the_engine_are_noted_and_cleared(fault: LegError) -> None:
    """What says something about the engine makes it count as down, until it answers again."""
    subject = LoneEngine(FakeTransport(retrieve=[fault, {"hits": []}]), retries=0)
    await subject.shake()
    with pytest.raises(type(fault)):
        await subject.ask()
    assert not subject.engine.up
    assert subject.engine.down_reason == f"{fault.kind}: {fault.message}"
    assert subject.engine.advertisement is not None
    await subject.ask()
    assert subject.engine.up
    assert len(subject.changes) == 1


@pytest.mark.parametrize(
    "fault",
    [LegRateLimited("429", retry_after_ms=5), ResponseTooLarge("17 MiB"), Refused("-32602 no", code=-32602)],
    ids=lambda fault: fault.kind,
)
async def test_faults_of_a_request_are_not_noted(fault: LegError) -> None:
    """What says something about one request leaves the engine up."""
    subject = LoneEngine(FakeTransport(retrieve=fault))
    await subject.shake()
    with pytest.raises(type(fault)) as raised:
        await subject.ask()
    assert raised.value.message == fault.message
    assert subject.engine.up


def test_impatient_caller_does_not_make_an_engine_count_as_down() -> None:
    """A timeout short of the engine's own is the caller's doing and says nothing about the engine."""

    async def story() -> None:
        subject = LoneEngine(FakeTransport(retrieve=never), timeoutMs=2000)
        await subject.shake()
        with pytest.raises(LegTimeout):
            await subject.ask(0.05)
        assert subject.engine.up

    virtually(story())


async def test_check_greets_what_is_down_and_pings_what_is_up() -> None:
    """A check is a handshake while the engine counts as down, else a ping; either measures its latency."""
    subject = LoneEngine(FakeTransport())
    await subject.check()
    await subject.check()
    assert [method for method, _ in subject.transport.calls] == ["initialize", "ping"]
    assert subject.engine.last_latency_ms is not None
    assert subject.engine.last_latency_ms >= 0


@pytest.mark.parametrize(
    "answer",
    [Refused("-32601 no such method", code=-32601), LegRateLimited("429"), BadStatus("405")],
    ids=lambda fault: fault.kind,
)
async def test_engine_that_does_not_know_ping_is_up(answer: LegError) -> None:
    """Whatever an engine answers to `ping`, it is there (B51)."""
    subject = LoneEngine(FakeTransport(ping=answer))
    await subject.check()
    await subject.check()
    assert subject.engine.up


async def test_busy_engine_is_up() -> None:
    """A check that finds the gate full says nothing against the engine."""
    subject = LoneEngine(FakeTransport(retrieve=never), maxConcurrency=1)
    await subject.shake()
    calls = [asyncio.create_task(subject.ask(60.0)) for _ in range(2)]
    await turns()
    await subject.check()
    assert subject.engine.up
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_dead_engine_is_noticed_by_its_check() -> None:
    """A ping that cannot be delivered brings the engine down; the next check is a handshake that brings it back."""
    subject = LoneEngine(FakeTransport(ping=ConnectFailed("refused")))
    await subject.check()
    with pytest.raises(ConnectFailed):
        await subject.check()
    assert subject.engine.down_reason == "connect: refused"
    await subject.check()
    assert subject.engine.up
    assert [method for method, _ in subject.transport.calls] == ["initialize", "ping", "initialize"]
