"""A fault on purpose: it is met by calls alone, ends by itself, and leaves nothing behind."""

import asyncio
from typing import Any

import pytest

from app.engines.fault_injection import FaultInjection
from app.protocol.errors import ConnectFailed, LegTimeout
from tests.support.fake_engine import QuickTransport
from tests.support.lone_engine import LoneEngine
from tests.support.virtual_time import virtually

GOOD = {"hits": []}


async def drilled(kind: str, delay: float = 0.0, seconds: float = 30.0) -> tuple[LoneEngine, FaultInjection]:
    """An engine that would answer at once, under this drill."""
    subject = LoneEngine(QuickTransport(retrieve=GOOD), retries=0)
    await subject.shake()
    return subject, FaultInjection(subject.engine, kind, delay, seconds)


async def asked(subject: LoneEngine) -> Any:
    """One retrieve, and after how many seconds it was answered."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    reply = await subject.engine.call("retrieve", {}, began + 2)
    return reply.result, round(loop.time() - began, 3)


def test_a_delayed_engine_answers_later() -> None:
    """Its answers are the same, so much later; nothing is begun at once meanwhile."""

    async def story() -> None:
        subject, fault_injection = await drilled("delay", 0.5)
        assert await subject.needs_task()
        assert await asked(subject) == (GOOD, 0.5)
        fault_injection.end()
        assert await asked(subject) == (GOOD, 0.0)
        assert not await subject.needs_task()

    virtually(story())


def test_a_broken_engine_opens_its_breaker() -> None:
    """Failures on purpose count like any other, and say what they are."""

    async def story() -> None:
        subject, _ = await drilled("error")
        for _ in range(5):
            with pytest.raises(ConnectFailed, match="on purpose"):
                await asked(subject)
        assert subject.engine.state().breaker == "open"

    virtually(story())


def test_a_mute_engine_runs_into_its_deadline() -> None:
    """Nothing comes, and the call ends in time."""

    async def story() -> None:
        subject, _ = await drilled("hang")
        with pytest.raises(LegTimeout):
            await asked(subject)

    virtually(story())


def test_it_ends_by_itself() -> None:
    """After its time the engine is as it was before, without anybody's doing."""

    async def story() -> None:
        subject, fault_injection = await drilled("error", seconds=5)
        assert fault_injection.on
        await asyncio.sleep(5.01)
        assert not fault_injection.on
        assert await asked(subject) == (GOOD, 0.0)

    virtually(story())


def test_checks_are_not_touched() -> None:
    """Pings and handshakes go through: a drill is about answers."""

    async def story() -> None:
        subject, _ = await drilled("hang")
        now = asyncio.get_running_loop().time()
        await subject.engine.check(now + 1)
        await subject.engine.handshake(now + 1)
        assert subject.engine.up

    virtually(story())


def test_an_incident_can_be_read() -> None:
    """What a person sees of a drill: which, of whom, and whether it is on."""

    async def story() -> None:
        subject, fault_injection = await drilled("hang")
        assert repr(fault_injection) == f"<FaultInjection hang of {subject.engine.id}, on>"
        (replica,) = subject.engine.policies.tracker.replicas.all
        assert repr(replica.transport).startswith("<FaultInjectingTransport hang ")
        fault_injection.end()
        assert repr(fault_injection) == f"<FaultInjection hang of {subject.engine.id}, over>"

    virtually(story())
