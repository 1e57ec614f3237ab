"""Who joins the living set through a gateway, who is asked meanwhile, and who leaves."""

import asyncio
from typing import Any

import pytest

from app.engines import registry
from app.engines.discovery import Discovery, Move
from app.engines.registry import EngineSet
from app.settings.schema import EngineEntry, EnginesSettings
from tests.support.fake_engine import FakeTransport, described, entry_of
from tests.support.virtual_time import turns, virtually


class Wires:
    """Engine id -> its fake wire; a plain one where the test put none."""

    def __init__(self) -> None:
        self.wires: dict[str, FakeTransport] = {}
        self.moves: list[Move] = []

    def open(self, entry: EngineEntry, *_: Any) -> FakeTransport:
        return self.wires.setdefault(entry.id, FakeTransport())

    def engines(self, *entries: EngineEntry) -> EngineSet:
        return EngineSet(entries, EnginesSettings(), lambda *_: None, lambda *_: None, self.moves.append)


@pytest.fixture
def wires(monkeypatch: pytest.MonkeyPatch) -> Wires:
    made = Wires()
    monkeypatch.setattr(registry, "open_transport", made.open)
    monkeypatch.setattr(registry, "open_guarded_transport", made.open)
    return made


def listing(*names: str) -> dict[str, Any]:
    return {"engines": [{"id": name, "endpoint": {"url": f"http://in.invalid/{name}"}} for name in names]}


def test_a_child_is_asked_directly_once_it_was_reached(wires: Wires) -> None:
    """Until its handshake succeeded the gateway is asked for it; then the gateway is asked for the others, if any."""

    async def story() -> None:
        wires.wires["in"] = FakeTransport(
            **{"initialize": described(gateway_id="them"), "info": described(gateway_id="them")},
            **{"catalog/list": listing("x", "y")},
        )
        release = asyncio.Event()

        async def later(params: Any) -> Any:
            await release.wait()
            return described()

        wires.wires["in/y"] = FakeTransport(initialize=later)
        engines = wires.engines(entry_of("in", discover=True, timeoutMs=600_000))
        assert [engine.id for engine in engines.asked] == ["in"]
        engines.start()
        settling = asyncio.create_task(engines.first_checks(1000))
        await asyncio.sleep(1)
        assert [engine.id for engine in engines.asked] == ["in", "in/x"]
        assert repr(engines.asked[0]).startswith("<ResidualEngine y of <RemoteEngine in")
        assert dict(engines.groups) == {"in": ("in/x",)}
        assert not settling.done()
        release.set()
        await settling
        assert [engine.id for engine in engines.asked] == ["in/x", "in/y"]
        assert [engine.id for engine in engines.engines] == ["in", "in/x", "in/y"]
        assert wires.moves == [Move("joined", "in", "in/x"), Move("joined", "in", "in/y")]
        await engines.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    virtually(story())


def test_who_leaves_is_closed_when_no_request_can_know_it(wires: Wires) -> None:
    """An engine that left keeps its wire for as long as a request that began before may still ask it."""

    async def story() -> None:
        engines = wires.engines(entry_of("in"))
        engines.start()
        engines.join(entry_of("in/x"))
        await turns()
        version = engines.version
        engines.leave("in/x")
        assert [engine.id for engine in engines.engines] == ["in"]
        assert engines.version == version + 1
        await asyncio.sleep(9.9)
        assert not wires.wires["in/x"].closed
        await asyncio.sleep(0.2)
        assert wires.wires["in/x"].closed
        await engines.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    virtually(story())


def test_gateways_make_room_for_the_registry(wires: Wires) -> None:
    """An engine that joined through a gateway goes when that gateway leaves, or an entry takes its id."""

    async def story() -> None:
        for change in ([entry_of("in", discover=True), entry_of("in/x")], [entry_of("other")]):
            wires.wires.clear()
            wires.moves.clear()
            wires.wires["in"] = FakeTransport(
                **{"initialize": described(gateway_id="them"), "info": described(gateway_id="them")},
                **{"catalog/list": listing("x", "y")},
            )
            engines = wires.engines(entry_of("in", discover=True))
            engines.start()
            await asyncio.sleep(1)
            assert [engine.id for engine in engines.engines] == ["in", "in/x", "in/y"]
            engines.apply(change, EnginesSettings(), 0.0)
            assert [engine.id for engine in engines.engines] == [entry.id for entry in change]
            assert Move("left", "in", "in/x") in wires.moves
            assert engines.asked
            await engines.close()

    virtually(story())


def test_closing_does_not_wait_for_who_is_leaving(wires: Wires) -> None:
    """When the set is closed, engines that are leaving are closed at once too."""

    async def story() -> None:
        engines = wires.engines()
        engines.join(entry_of("x", timeoutMs=600_000))
        await turns()
        assert engines.engines[0].semaphore.try_enter()
        engines.leave("x")
        await turns()
        started = asyncio.get_running_loop().time()
        await engines.close()
        assert asyncio.get_running_loop().time() - started < 1
        assert wires.wires["x"].closed

    virtually(story())


def test_a_gateway_that_leaves_takes_its_engines_along(wires: Wires) -> None:
    """What joined through it leaves with it."""

    async def story() -> None:
        wires.wires["in"] = FakeTransport(**{"catalog/list": listing("x")})
        engines = wires.engines(entry_of("in", discover=True))
        found = Discovery(engines, wires.moves.append)
        assert repr(found) == "<Discovery of nobody>"
        await engines.engines[0].handshake(asyncio.get_running_loop().time() + 1)
        assert await found.follow(engines.engines[0])
        assert not await found.follow(engines.engines[0])
        assert repr(found) == "<Discovery in: 1/1>"
        await turns()
        found.forget("in")
        found.forget("in")
        assert [engine.id for engine in engines.engines] == ["in"]
        assert wires.moves[-1] == Move("left", "in", "in/x")
        await engines.close()

    virtually(story())


def test_settling_has_an_end(wires: Wires) -> None:
    """Whoever waits for the engines waits no longer than it wants to."""

    async def story() -> None:
        async def never(params: Any) -> Any:
            await asyncio.Event().wait()

        wires.wires["a"] = FakeTransport(initialize=never)
        engines = wires.engines(entry_of("a", timeoutMs=600_000))
        engines.start()
        started = asyncio.get_running_loop().time()
        await engines.first_checks(3)
        assert asyncio.get_running_loop().time() - started == pytest.approx(3)
        await engines.close()
        await wires.engines().first_checks(3)

    virtually(story())
