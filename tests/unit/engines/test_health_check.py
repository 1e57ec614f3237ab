"""Looking whether an engine is there: what it is asked, what counts as well, and that traffic outranks it."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from app.engines.health import REFRESH
from app.protocol.errors import LegTimeout, Refused
from tests.support.fake_engine import FakeTransport, described, never
from tests.support.lone_engine import LoneEngine
from tests.support.virtual_time import virtually


def test_what_it_can_do_is_asked_now_and_then() -> None:
    """Every so many checks of an engine that is up it is asked for `info`; a gateway each time."""

    async def story() -> None:
        for gateway_id, expected in ((None, 2), ("other", 2 * REFRESH)):
            said = described(gateway_id=gateway_id)
            subject = LoneEngine(FakeTransport(initialize=said, info=said))
            for _ in range(1 + 2 * REFRESH):
                await subject.check()
            assert subject.transport.asked("info") == expected
            assert subject.transport.asked("initialize") == 1

    virtually(story())


def test_a_changed_advertisement_is_told_once_with_what_it_was() -> None:
    """Another advertisement after a reconnect is told to the set and to the witness; the first one only to the set."""

    async def story() -> None:
        subject = LoneEngine(FakeTransport(initialize=[described(), described({"graph": {}})]))
        await subject.shake()
        assert (len(subject.changes), subject.instrumentation.lines) == (1, [])
        await subject.shake()
        await subject.shake()
        assert len(subject.changes) == 2
        assert subject.instrumentation.lines == ["advertises ['graph'] instead of ['retrieve']"]

    virtually(story())


def test_traffic_outranks_a_ping_that_hangs() -> None:
    """An engine that answers calls while its ping is never answered is up (B51)."""

    async def story() -> None:
        subject = LoneEngine(FakeTransport(ping=never, retrieve={"hits": []}))
        await subject.check()
        checking = asyncio.create_task(subject.check(1.0))
        await asyncio.sleep(0.5)
        await subject.ask()
        await checking
        assert subject.engine.up
        with pytest.raises(LegTimeout):
            await subject.check(1.0)
        assert not subject.engine.up

    virtually(story())


def test_a_refused_handshake_is_the_reason_it_is_down() -> None:
    """What keeps an engine from ever coming up is said, not that nobody has tried."""

    async def story() -> None:
        subject = LoneEngine(FakeTransport(initialize=Refused("-32002 too old", code=-32002)))
        with pytest.raises(Refused):
            await subject.check()
        assert subject.engine.down_reason == "refused: -32002 too old"
        assert repr(subject.engine._health_check) == "<HealthCheck 1 checks>"

    virtually(story())


def test_going_down_and_coming_up_in_traffic_is_told() -> None:
    """Nobody has to wait for the next check to hear of it."""

    async def story() -> None:
        failing = True

        async def retrieve(params: Mapping[str, Any]) -> Any:
            return Refused("-32010", code=-32010) if failing else {"hits": []}

        subject = LoneEngine(FakeTransport(retrieve=retrieve), retries=0)
        await subject.check()
        subject.engine.report()
        await asyncio.sleep(10.0)
        for _ in range(5):
            await subject.fault()
        assert subject.told == ["up", "refused"]
        failing = False
        await asyncio.sleep(10.0)
        await subject.ask()
        assert subject.told == ["up", "refused", "up"]

    virtually(story())
