"""One engine as this process knows it: its gate, its handshake, what it remembers, and what counts as down."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from app.engines.transport import Reply
from app.protocol.errors import (
    LegTimeout,
    Overloaded,
    ProtocolViolation,
    Refused,
)
from tests.support.fake_engine import FakeTransport, described, never
from tests.support.lone_engine import LoneEngine
from tests.support.virtual_time import turns, virtually

NOT_INITIALIZED = Refused("-32001 not initialized", code=-32001)
ALREADY = Refused("-32600 already initialized", code=-32600)


def restarted(transport: FakeTransport, until_handshakes: int = 1) -> Any:
    """A `retrieve` that answers -32001 until that many handshakes have begun."""

    async def retrieve(params: Mapping[str, Any]) -> Any:
        if transport.asked("initialize") < until_handshakes:
            return NOT_INITIALIZED
        return {"hits": []}

    return retrieve


async def test_new_engine_counts_as_down() -> None:
    """Before the first handshake an engine is down and says why."""
    subject = LoneEngine(FakeTransport())
    assert not subject.engine.up
    assert subject.engine.down_reason == "connect: no handshake yet"
    assert subject.engine.advertisement is None
    assert repr(subject.engine) == (
        "<RemoteEngine docs http down (connect: no handshake yet), <Breaker closed, 0 failures in the last 20, 0 in a "
        "row, cool-down 1 s>, <BoundedSemaphore 0/32 in flight, 0/256 waiting>>"
    )


async def test_handshake_is_remembered() -> None:
    """A handshake brings the engine up and keeps its advertisement."""
    subject = LoneEngine(FakeTransport())
    await subject.shake()
    assert subject.engine.up
    assert subject.engine.down_reason is None
    advertisement = subject.engine.advertisement
    assert advertisement is not None
    assert advertisement.retrieve is not None
    assert advertisement.retrieve.max_k == 100
    assert subject.changes == [subject.engine]
    method, params = subject.transport.calls[0]
    assert method == "initialize"
    assert params["protocolVersion"] == 1
    assert params["client"]["name"] == "rcp-gateway"


async def test_only_a_changed_advertisement_is_told() -> None:
    """A handshake that brings the same advertisement again changes nothing; another one does."""
    subject = LoneEngine(FakeTransport(initialize=[described(), described(), described({"retrieve": {"maxK": 7}})]))
    for _ in range(3):
        await subject.shake()
    assert len(subject.changes) == 2
    assert subject.engine.advertisement is not None
    assert subject.engine.advertisement.retrieve is not None
    assert subject.engine.advertisement.retrieve.max_k == 7


async def test_initialized_already_is_asked_for_info() -> None:
    """-32600 on `initialize` means initialized already, so `info` tells the rest (RCP §7.1)."""
    subject = LoneEngine(FakeTransport(initialize=ALREADY, info=described()))
    await subject.shake()
    assert subject.engine.up
    assert [method for method, _ in subject.transport.calls] == ["initialize", "info"]


@pytest.mark.parametrize("code", [-32002, -32603, -32010])
async def test_other_refusal_of_a_handshake_fails(code: int) -> None:
    """Any other refusal of `initialize` is a failed handshake and no reason to ask for `info`."""
    subject = LoneEngine(FakeTransport(initialize=Refused(f"{code} no", code=code)))
    with pytest.raises(Refused):
        await subject.shake()
    assert not subject.engine.up
    assert subject.transport.asked("info") == 0


async def test_malformed_handshake_fails() -> None:
    """A handshake whose result is none leaves the engine down, with a protocol fault."""
    subject = LoneEngine(FakeTransport(initialize={"capabilities": []}))
    with pytest.raises(ProtocolViolation):
        await subject.shake()
    assert (subject.engine.down_reason or "").startswith("protocol: ")


def test_handshake_ends_with_its_deadline() -> None:
    """A handshake that is never answered ends as a timeout, and the next one is not held up by it."""

    async def story() -> None:
        subject = LoneEngine(FakeTransport(initialize=[never, described()]))
        with pytest.raises(LegTimeout):
            await subject.shake(0.5)
        assert (subject.engine.down_reason or "").startswith("timeout: ")
        await subject.shake(0.5)
        assert subject.engine.up

    virtually(story())


async def test_answer_is_handed_on() -> None:
    """What the wire answers is the answer; whether to try again is the caller's word."""
    subject = LoneEngine(FakeTransport(retrieve=Reply({"hits": []}, attempts=2)))
    assert await subject.ask(idempotent=False) == Reply({"hits": []}, attempts=2)
    assert subject.transport.idempotent == [False]
    assert subject.engine.semaphore.in_flight == 0


async def test_restarted_engine_is_greeted_and_asked_again() -> None:
    """-32001 in traffic leads to one handshake and the same question once more; all requests count as attempts."""
    transport = FakeTransport(retrieve=[NOT_INITIALIZED, {"hits": []}])
    subject = LoneEngine(transport)
    reply = await subject.ask()
    assert [method for method, _ in transport.calls] == ["retrieve", "initialize", "retrieve"]
    assert reply.result == {"hits": []}
    assert reply.attempts == 2
    assert subject.engine.up


async def test_engine_that_stays_uninitialized_is_asked_only_twice() -> None:
    """An engine that answers -32001 even after a handshake has refused; nothing goes round in circles."""
    transport = FakeTransport(retrieve=NOT_INITIALIZED)
    subject = LoneEngine(transport)
    with pytest.raises(Refused) as refusal:
        await subject.ask()
    assert refusal.value.code == -32001
    assert refusal.value.attempts == 2
    assert transport.asked("retrieve") == 2
    assert transport.asked("initialize") == 1


@pytest.mark.parametrize("code", [-32600, -32602, -32005, -32016])
async def test_other_refusals_are_final(code: int) -> None:
    """Any other refusal is the engine's answer: no handshake, no second question, and it still counts as up."""
    transport = FakeTransport(retrieve=Refused(f"{code} no", code=code))
    subject = LoneEngine(transport)
    await subject.shake()
    with pytest.raises(Refused):
        await subject.ask()
    assert transport.asked("retrieve") == 1
    assert subject.engine.up


async def test_twenty_calls_share_one_handshake() -> None:
    """However many calls notice a restart at once, the engine is greeted exactly once for it."""
    transport = FakeTransport()
    subject = LoneEngine(transport)
    await subject.shake()
    initialized = asyncio.Event()

    async def retrieve(params: Mapping[str, Any]) -> Any:
        await turns(1)
        return {"hits": []} if initialized.is_set() else NOT_INITIALIZED

    async def slowly(params: Mapping[str, Any]) -> Any:
        await turns(3)
        initialized.set()
        return described()

    transport.script("retrieve", retrieve)
    transport.script("initialize", slowly)
    replies = await asyncio.gather(*(subject.ask() for _ in range(20)))
    assert [reply.result for reply in replies] == [{"hits": []}] * 20
    assert transport.asked("initialize") == 2
    assert transport.asked("retrieve") == 40


async def test_second_restart_is_noticed() -> None:
    """Each restart gets a handshake of its own."""
    transport = FakeTransport()
    subject = LoneEngine(transport)
    for handshakes in (1, 2, 3):
        transport.script("retrieve", restarted(transport, until_handshakes=handshakes))
        await subject.ask()
        assert transport.asked("initialize") == handshakes


async def test_cancelled_greeter_holds_up_nobody() -> None:
    """When the call that shakes hands is cancelled, the next that waits for it shakes hands itself."""
    greeted = asyncio.Event()

    async def stuck(params: Mapping[str, Any]) -> Any:
        greeted.set()
        await asyncio.Event().wait()

    transport = FakeTransport(initialize=[stuck, described()])
    transport.script("retrieve", restarted(transport, until_handshakes=2))
    subject = LoneEngine(transport)
    first = asyncio.create_task(subject.ask())
    await greeted.wait()
    second = asyncio.create_task(subject.ask())
    await turns()
    first.cancel()
    assert (await second).result == {"hits": []}
    assert transport.asked("initialize") == 2
    assert subject.engine.semaphore.in_flight == 0


def test_deadline_covers_the_call() -> None:
    """A call that is not answered ends as a timeout at its deadline and gives its place back."""

    async def story() -> None:
        loop = asyncio.get_running_loop()
        subject = LoneEngine(FakeTransport(retrieve=never))
        await subject.shake()
        started = loop.time()
        with pytest.raises(LegTimeout):
            await subject.ask(1.5)
        assert loop.time() - started == pytest.approx(1.5)
        assert subject.engine.semaphore.in_flight == 0
        assert subject.transport.under_way == 0
        assert not subject.engine.up

    virtually(story())


def test_deadline_covers_the_wait_at_the_gate() -> None:
    """Who waits at the gate until the deadline never reaches the engine, and gives up its room in the queue."""

    async def story() -> None:
        subject = LoneEngine(FakeTransport(retrieve=never), maxConcurrency=1)
        first = asyncio.create_task(subject.ask(9.0))
        await turns()
        with pytest.raises(LegTimeout) as fault:
            await subject.ask(0.5)
        assert fault.value.attempts == 0
        assert subject.transport.asked("retrieve") == 1
        assert (subject.engine.semaphore.in_flight, subject.engine.semaphore.waiting) == (1, 0)
        first.cancel()
        await turns()
        assert subject.engine.semaphore.in_flight == 0

    virtually(story())


def test_deadline_covers_the_handshake_in_between() -> None:
    """A restarted engine that does not finish its handshake costs no more than the deadline."""

    async def story() -> None:
        loop = asyncio.get_running_loop()
        subject = LoneEngine(FakeTransport(retrieve=NOT_INITIALIZED, initialize=never))
        started = loop.time()
        with pytest.raises(LegTimeout):
            await subject.ask(2.0)
        assert loop.time() - started == pytest.approx(2.0)
        subject.transport.script("initialize", described())
        await subject.shake()
        assert subject.engine.up

    virtually(story())


async def test_excess_calls_are_refused_at_once() -> None:
    """Beyond the gate and its queue a call fails as overloaded, unsent, and the engine is not blamed for it."""
    transport = FakeTransport(retrieve=never)
    subject = LoneEngine(transport, maxConcurrency=2)
    await subject.shake()
    calls = [asyncio.create_task(subject.ask(60.0)) for _ in range(18)]
    await turns()
    with pytest.raises(Overloaded) as fault:
        await subject.ask(60.0)
    assert fault.value.message == "2 calls under way, 16 waiting"
    assert fault.value.attempts == 0
    assert transport.most_under_way == 2
    assert subject.engine.up
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert (subject.engine.semaphore.in_flight, subject.engine.semaphore.waiting) == (0, 0)


async def test_cancelled_calls_leave_nothing() -> None:
    """A thousand cancelled calls leave every place free."""
    subject = LoneEngine(FakeTransport(retrieve=never), maxConcurrency=4)
    for _ in range(250):
        calls = [asyncio.create_task(subject.ask(60.0)) for _ in range(8)]
        await turns(2)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    assert (subject.engine.semaphore.in_flight, subject.engine.semaphore.waiting) == (0, 0)
    assert subject.transport.under_way == 0


async def test_close_closes_the_wire() -> None:
    """Closing an engine releases its transport."""
    subject = LoneEngine(FakeTransport())
    await subject.engine.close()
    assert subject.transport.closed
