"""The background loop: who is looked at when, told by a clock that jumps, so that every pause is exact."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from app.engines.engine import RemoteEngine
from app.engines.health import HealthLoop
from app.protocol.errors import ConnectFailed, LegError
from app.settings.schema import EnginesSettings
from tests.support.fake_engine import FakeTransport, described, entry_of, never
from tests.support.virtual_time import JumpingLoop, jumping_loop, turns, virtually

DEAD = ConnectFailed("refused")


class Watched:
    """A health loop over engines on fake wires: what it reported, and when each engine was looked at."""

    def __init__(self, jitter: Callable[[], float] = lambda: 1.0, **settings: float) -> None:
        self.reports: list[tuple[float, str, str | None]] = []
        self.looks: dict[str, list[float]] = {}
        self.health = HealthLoop(EnginesSettings.model_validate(settings), jitter)
        self._loop = jumping_loop()
        self._started = self._loop.time()

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return round(self._loop.time() - self._started, 6)

    def add(self, engine_id: str, **scripts: Any) -> FakeTransport:
        looks = self.looks[engine_id] = []
        scripts.setdefault("initialize", described())

        class Noting(FakeTransport):
            async def call(inner, method: str, params: Mapping[str, Any], *, idempotent: bool = True) -> Any:
                looks.append(self.now)
                return await FakeTransport.call(inner, method, params, idempotent=idempotent)

        transport = Noting(**scripts)

        def told(fault: LegError | None) -> None:
            self.reports.append((self.now, engine_id, None if fault is None else fault.kind))

        self.health.watch(RemoteEngine(entry_of(engine_id), transport, lambda engine: None, on_availability=told))
        return transport

    async def until(self, seconds: float) -> None:
        """Let time pass up to so many seconds after the start."""
        await asyncio.sleep(self._started + seconds - self._loop.time())
        await turns()


def test_engine_is_looked_at_at_once_then_on_schedule() -> None:
    """An engine that is up is greeted at once and pinged once per interval; it is reported up once."""

    async def story() -> None:
        watched = Watched(health_interval_seconds=15.0)
        transport = watched.add("docs")
        await watched.until(50)
        await watched.health.stop()
        assert watched.looks["docs"] == [0, 15, 30, 45]
        assert [method for method, _ in transport.calls] == ["initialize", "ping", "ping", "ping"]
        assert watched.reports == [(0, "docs", None)]

    virtually(story())


def test_engine_joins_by_itself() -> None:
    """An engine that comes up later is greeted and reported without anybody's help (B48)."""

    async def story() -> None:
        watched = Watched()
        transport = watched.add("docs", initialize=DEAD)
        await watched.until(3)
        assert watched.reports == [(0, "docs", "connect")]
        transport.script("initialize", described())
        await watched.until(10)
        await watched.health.stop()
        assert watched.reports[1:] == [(3.1, "docs", None)]

    virtually(story())


def test_pauses_double_up_to_the_bound() -> None:
    """Pauses between attempts double from 0.1 s and never exceed `reconnect_max_seconds`."""

    async def story() -> None:
        watched = Watched(reconnect_max_seconds=1.0)
        watched.add("docs", initialize=DEAD)
        await watched.until(5)
        await watched.health.stop()
        assert watched.looks["docs"] == [0, 0.1, 0.3, 0.7, 1.5, 2.5, 3.5, 4.5]
        assert watched.reports == [(0, "docs", "connect")]

    virtually(story())


def test_small_bound_holds_for_the_first_pause_too() -> None:
    """A bound below the first pause shortens that as well."""

    async def story() -> None:
        watched = Watched(reconnect_max_seconds=0.02)
        watched.add("docs", initialize=DEAD)
        await watched.until(0.05)
        await watched.health.stop()
        assert watched.looks["docs"] == [0, 0.02, 0.04]

    virtually(story())


def test_pauses_begin_anew_after_an_engine_was_up() -> None:
    """An engine that was up and is lost again is tried again soon, not after the pause it had got to."""

    async def story() -> None:
        watched = Watched(reconnect_max_seconds=60.0, health_interval_seconds=10.0)
        watched.add("docs", initialize=[DEAD, DEAD, DEAD, described(), DEAD, DEAD, described()], ping=DEAD)
        await watched.until(12)
        await watched.health.stop()
        assert watched.looks["docs"] == [0, 0.1, 0.3, 0.7, 10.7, 10.8, 11.0, 11.4]
        assert [report[2] for report in watched.reports] == ["connect", None, "connect", None]

    virtually(story())


def test_jitter_stretches_every_pause() -> None:
    """Each pause is multiplied by what the jitter says, so that many gateways do not ask in step."""

    async def story() -> None:
        shares = iter([0.5, 1.5, 1.2, 0.8, 1.0])
        watched = Watched(lambda: next(shares), health_interval_seconds=10.0)
        watched.add("docs", initialize=[DEAD, DEAD, described()])
        await watched.until(20.35)
        await watched.health.stop()
        assert watched.looks["docs"] == [0, 0.05, 0.35, 12.35, 20.35]

    virtually(story())


def test_hanging_engine_delays_no_other() -> None:
    """Fifty engines, one of which hangs: the others are looked at on schedule, the one once per timeout (B50)."""

    async def story() -> None:
        watched = Watched(health_interval_seconds=5.0, reconnect_max_seconds=1.0)
        watched.add("stuck", initialize=never)
        for number in range(49):
            watched.add(f"engine-{number}")
        await watched.until(11)
        await watched.health.stop()
        assert all(watched.looks[f"engine-{number}"] == [0, 5, 10] for number in range(49))
        assert watched.looks["stuck"] == [0, 2.1, 4.3, 6.7, 9.5]
        assert (2.0, "stuck", "timeout") in watched.reports

    virtually(story())


def test_stop_leaves_no_task() -> None:
    """Stopping ends every watch, also in the middle of a check, and nothing is looked at afterwards."""

    async def story() -> None:
        watched = Watched()
        transports = [
            watched.add("asleep"),
            watched.add("busy", initialize=never),
            watched.add("down", initialize=DEAD),
        ]
        await turns()
        assert repr(watched.health) == "<HealthLoop watching ['asleep', 'busy', 'down']>"
        await watched.health.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert [transport.under_way for transport in transports] == [0, 0, 0]
        before = {engine: list(looks) for engine, looks in watched.looks.items()}
        await watched.until(100)
        assert watched.looks == before
        assert repr(watched.health) == "<HealthLoop watching []>"
        await watched.health.stop()

    virtually(story())


def test_fault_of_our_own_is_heard_of() -> None:
    """A watch that ends through a fault of ours is told to the loop's exception handler at once, not lost."""

    async def story() -> JumpingLoop:
        watched = Watched()
        watched.add("docs", initialize=ZeroDivisionError("ours"))
        await turns()
        await watched.health.stop()
        return jumping_loop()

    loop = virtually(story(), faults=True)
    assert [type(fault["exception"]) for fault in loop.faults] == [ZeroDivisionError]
    assert "docs" in loop.faults[0]["message"]


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_stop_right_after_start(seconds: float) -> None:
    """Stopping is fine at any moment, even before the first look."""

    async def story() -> None:
        watched = Watched()
        watched.add("docs", initialize=never)
        if seconds:
            await watched.until(seconds)
        await watched.health.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    virtually(story())
