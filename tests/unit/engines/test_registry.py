"""The living set: which transport an entry asks for, in which order engines stand, and how they are closed."""

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from app.engines import registry, transport_factory
from app.engines.engine import RemoteEngine
from app.engines.handshake import Warmed
from app.engines.http.client import HttpTransport
from app.engines.http.http2_client import Http2Transport
from app.engines.registry import EngineSet
from app.engines.stdio import StdioTransport
from app.engines.transport_factory import open_transport, probe
from app.protocol.errors import ConnectFailed, LegError, LegTimeout
from app.settings.schema import EngineEntry, EnginesSettings
from tests.support.fake_engine import FakeTransport, described, entry_of, never
from tests.support.virtual_time import turns, virtually

SETTINGS = EnginesSettings(health_interval_seconds=15.0)


@pytest.fixture
def wires(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeTransport]:
    """Engine id -> the fake wire that the set is to open for it; a plain one where the test put none."""
    wires: dict[str, FakeTransport] = {}

    def open_fake(entry: EngineEntry, *_: Any) -> FakeTransport:
        return wires.setdefault(entry.id, FakeTransport())

    for module in (registry, transport_factory):
        monkeypatch.setattr(module, "open_transport", open_fake)
    return wires


def engine_set(
    *entries: EngineEntry, reports: list[str] | None = None, warmed: list[Warmed] | None = None
) -> EngineSet:
    """A set of these entries that writes its reports down."""

    def report(engine: RemoteEngine, fault: LegError | None) -> None:
        if reports is not None:
            reports.append(f"{engine.id} {'up' if fault is None else fault.kind}")

    told = lambda one: None if warmed is None else warmed.append(one)  # noqa: E731
    return EngineSet(entries, SETTINGS, report, lambda engine_id, line: None, warmed=told)


def test_order_is_priority_then_id(wires: dict[str, FakeTransport]) -> None:
    """Engines stand by priority, highest first, then by id, whatever the order of the file; disabled ones aside."""
    engines = engine_set(
        entry_of("b"), entry_of("off", enabled=False, priority=9), entry_of("c", priority=5), entry_of("a")
    )
    assert [engine.id for engine in engines.engines] == ["c", "a", "b"]
    assert engines.disabled == ("off",)
    assert "off" not in wires
    assert repr(engines) == "<EngineSet 0/3 up, version 0>"


async def test_version_grows_with_each_changed_advertisement(wires: dict[str, FakeTransport]) -> None:
    """`version` grows when an advertisement changes and at no other time."""
    wires["a"] = FakeTransport(initialize=[described(), described(), described({"retrieve": {}})])
    engines = engine_set(entry_of("a"))
    seen = []
    for _ in range(3):
        await engines.engines[0].handshake(asyncio.get_running_loop().time() + 1)
        seen.append(engines.version)
    assert seen == [1, 1, 2]
    assert repr(engines) == "<EngineSet 1/1 up, version 2>"


def test_start_connects_everybody_and_close_lets_go(wires: dict[str, FakeTransport]) -> None:
    """Once started every engine is looked after; once closed no task is left and every wire is closed."""

    async def story() -> None:
        reports: list[str] = []
        wires["b"] = FakeTransport(initialize=ConnectFailed("refused"))
        wires["c"] = FakeTransport(initialize=never)
        engines = engine_set(entry_of("a"), entry_of("b"), entry_of("c"), reports=reports)
        await turns()
        assert reports == []
        engines.start()
        await asyncio.sleep(3.0)
        assert reports == ["a up", "b connect", "c timeout"]
        await engines.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert all(wire.closed for wire in wires.values())

    virtually(story())


async def test_close_without_start(wires: dict[str, FakeTransport]) -> None:
    """A set that never started can be closed."""
    engines = engine_set(entry_of("a"))
    await engines.close()
    assert wires["a"].closed


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        (entry_of("a"), HttpTransport),
        (entry_of("a", client="httpx"), Http2Transport),
        (EngineEntry(id="a", command=[sys.executable, "-c", ""]), StdioTransport),
    ],
    ids=["http", "httpx", "stdio"],
)
async def test_entry_decides_the_transport(entry: EngineEntry, kind: type) -> None:
    """Each kind of entry gets its kind of transport, and nothing is connected or started yet."""
    transport = open_transport(entry, SETTINGS, lambda engine_id, line: None)
    assert type(transport) is kind
    await transport.close()


async def test_probe_shakes_hands_and_lets_go(wires: dict[str, FakeTransport]) -> None:
    """Probing hands back the advertisement and closes the wire."""
    advertisement = await probe(entry_of("a"), SETTINGS)
    assert advertisement.server == {"name": "fake", "version": "1.0"}
    assert wires["a"].closed


def test_probe_that_fails_lets_go_too(wires: dict[str, FakeTransport]) -> None:
    """Probing an engine that does not answer raises within its own timeout, and closes the wire."""

    async def story() -> None:
        wires["a"] = FakeTransport(initialize=never)
        started = asyncio.get_running_loop().time()
        with pytest.raises(LegTimeout):
            await probe(entry_of("a", timeoutMs=300), SETTINGS)
        assert asyncio.get_running_loop().time() - started == pytest.approx(0.3)
        assert wires["a"].closed

    virtually(story())


def test_apply_changes_only_what_is_different(wires: dict[str, FakeTransport]) -> None:
    """What is the same stays the same object; what changed or left is closed later, and what is new is looked after."""

    async def story() -> None:
        engines = engine_set(entry_of("a"), entry_of("b"), entry_of("c"))
        engines.start()
        await asyncio.sleep(1.0)
        a, b, _ = engines.engines
        changed = [entry_of("d"), entry_of("b", weight=2.0), entry_of("a"), entry_of("off", enabled=False)]
        assert engines.apply(changed, SETTINGS, 5.0) == (["d"], ["c"], ["b"])
        assert [engine.id for engine in engines.engines] == ["a", "b", "d"]
        assert engines.engines[0] is a
        assert engines.engines[1].entry.weight == 2.0
        assert engines.engines[1].advertisement is b.advertisement
        assert engines.engines[1].replicas[0] is b.replicas[0]
        assert engines.disabled == ("off",)
        await turns()
        assert repr(engines).endswith(", 1 lingering>")
        await asyncio.sleep(4.9)
        assert (wires["c"].closed, engines.engines[2].up) == (False, True)
        await asyncio.sleep(0.2)
        assert (wires["b"].closed, wires["c"].closed, wires["a"].closed) == (False, True, False)
        assert wires["b"].asked("initialize") == 1
        assert "lingering" not in repr(engines)
        await engines.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    virtually(story())


def test_what_lingers_is_closed_with_the_set(wires: dict[str, FakeTransport]) -> None:
    """The end of the gateway does not wait for what has left."""

    async def story() -> None:
        engines = engine_set(entry_of("a"))
        engines.apply([], SETTINGS, 3600.0)
        began = asyncio.get_running_loop().time()
        await engines.close()
        assert asyncio.get_running_loop().time() - began < 1
        assert wires["a"].closed

    virtually(story())


def test_other_settings_hold_for_all_engines(wires: dict[str, FakeTransport]) -> None:
    """A setting of connections renews them; any other leaves them as they are."""

    async def story() -> None:
        engines = engine_set(entry_of("a"))
        (before,) = engines.engines[0].replicas
        other = EnginesSettings(breaker_failures=1)
        assert engines.apply([entry_of("a")], other, 0.0) == ([], [], ["a"])
        assert engines.engines[0].replicas[0] is before
        other = EnginesSettings(idle_seconds=1.0)
        assert engines.apply([entry_of("a")], other, 0.0) == ([], [], ["a"])
        assert engines.engines[0].replicas[0] is not before
        assert engines.apply([entry_of("a")], other, 0.0) == ([], [], [])
        await engines.close()

    virtually(story())


def test_who_joined_through_a_gateway_is_left_alone(
    wires: dict[str, FakeTransport], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A diff of the registry touches no engine that never stood in it."""
    monkeypatch.setattr(registry, "open_guarded_transport", lambda entry, settings: FakeTransport())

    async def story() -> None:
        engines = engine_set(entry_of("a"))
        engines.join(entry_of("guest", priority=1))
        joined = engines.engines[0]
        assert engines.apply([entry_of("b")], SETTINGS, 0.0) == (["b"], ["a"], [])
        assert engines.engines[0] is joined
        engines.leave("guest")
        assert [engine.id for engine in engines.engines] == ["b"]
        await engines.close()

    virtually(story())


def slowly(seconds: float, name: str = "fake") -> Any:
    """A script that shakes hands after so long."""

    async def play(params: Mapping[str, Any]) -> Any:
        await asyncio.sleep(seconds)
        return described(name=name)

    return play


def servers(engines: EngineSet) -> list[str]:
    """What the engines that are asked called themselves last."""
    return [str(engine.advertisement.server["name"]) for engine in engines.asked if engine.advertisement is not None]


async def swapped(wires: dict[str, FakeTransport], engine_id: str, wire: FakeTransport) -> FakeTransport:
    """The wire that was, after this one is what is opened next."""
    before, wires[engine_id] = wires[engine_id], wire
    return before


@pytest.mark.parametrize(
    "change",
    [
        {"url": "http://elsewhere.invalid/rcp"},
        {"headers": {"Authorization": "Bearer other"}},
        {"replicas": ["http://elsewhere.invalid/rcp"], "url": "http://third.invalid/rcp"},
        {"client": "httpx"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_serves_goes_on_until_its_replacement_is_warm(wires: dict[str, FakeTransport], change: Any) -> None:
    """However it is reached otherwise: the old engine is asked until the new one has shaken hands, and then no more."""

    async def story() -> None:
        warmed: list[Warmed] = []
        wires["a"] = FakeTransport(initialize=described(name="old"))
        engines = engine_set(entry_of("a"), warmed=warmed)
        engines.start()
        await asyncio.sleep(1.0)
        before = await swapped(wires, "a", FakeTransport(initialize=slowly(1.5, "new")))
        assert engines.apply([entry_of("a", **change)], SETTINGS, 5.0) == ([], [], ["a"])
        assert (servers(engines), engines.warming) == (["old"], {"a"})
        assert [state.warming for state in engines.states()] == [True]
        await asyncio.sleep(1.4)
        assert (servers(engines), before.closed) == (["old"], False)
        await asyncio.sleep(0.2)
        assert (servers(engines), engines.warming) == (["new"], frozenset())
        assert [state.warming for state in engines.states()] == [False]
        assert warmed == [Warmed("a", pytest.approx(1.5), None)]
        await asyncio.sleep(5.0)
        assert before.closed
        await engines.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    virtually(story())


def test_a_replacement_that_never_comes_up_takes_over_when_time_is_up(wires: dict[str, FakeTransport]) -> None:
    """Meanwhile nothing says that the engine is down; then it is asked, with what is known of it, and fails."""

    async def story() -> None:
        reports: list[str] = []
        warmed: list[Warmed] = []
        engines = engine_set(entry_of("a"), reports=reports, warmed=warmed)
        engines.start()
        await asyncio.sleep(1.0)
        await swapped(wires, "a", FakeTransport(initialize=ConnectFailed("refused")))
        engines.apply([entry_of("a", url="http://dead.invalid/rcp")], SETTINGS, 5.0)
        await asyncio.sleep(29.0)
        assert (reports, engines.engines[0].up) == (["a up"], True)
        await asyncio.sleep(2.0)
        (engine,) = engines.engines
        assert (engine.entry.url, engine.up) == ("http://dead.invalid/rcp", False)
        assert engine.advertisement is not None
        assert warmed == [Warmed("a", pytest.approx(30.0), "connect: refused")]
        wires["a"].script("initialize", described())
        await asyncio.sleep(10.0)
        assert engine.up
        await engines.close()

    virtually(story())


def test_a_change_that_is_taken_back_costs_nothing(wires: dict[str, FakeTransport]) -> None:
    """To a dead address and back: the first engine never stopped serving and keeps its connections."""

    async def story() -> None:
        wires["a"] = FakeTransport(info=described())
        engines = engine_set(entry_of("a"))
        engines.start()
        await asyncio.sleep(1.0)
        before = await swapped(wires, "a", FakeTransport(initialize=never))
        (replica,) = engines.engines[0].replicas
        engines.apply([entry_of("a", url="http://dead.invalid/rcp")], SETTINGS, 0.0)
        await asyncio.sleep(1.0)
        engines.apply([entry_of("a", weight=3.0)], SETTINGS, 0.0)
        assert engines.engines[0].replicas[0] is replica
        assert engines.engines[0].entry.weight == 3.0
        assert not engines.warming
        await asyncio.sleep(60.0)
        assert (before.asked("initialize"), before.closed, wires["a"].closed) == (1, False, True)
        await engines.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    virtually(story())


def test_changes_while_it_warms_do_not_begin_its_handshake_anew(wires: dict[str, FakeTransport]) -> None:
    """A weight that changes every now and then keeps no engine from coming up."""

    async def story() -> None:
        wires["a"] = FakeTransport(initialize=described(name="old"))
        engines = engine_set(entry_of("a"))
        engines.start()
        await asyncio.sleep(1.0)
        await swapped(wires, "a", FakeTransport(initialize=slowly(1.5, "new")))
        for weight in range(1, 6):
            engines.apply([entry_of("a", url="http://new.invalid/rcp", weight=weight)], SETTINGS, 0.0)
            await asyncio.sleep(0.25)
        assert servers(engines) == ["old"]
        await asyncio.sleep(0.5)
        assert (servers(engines), engines.engines[0].entry.weight) == (["new"], 5.0)
        assert wires["a"].asked("initialize") == 1
        await engines.close()

    virtually(story())


def test_what_is_known_of_an_address_outlives_other_changes(wires: dict[str, FakeTransport]) -> None:
    """Weight, bounds and rules change; the connections, the breaker and the calls under way stay."""

    async def story() -> None:
        wires["a"] = FakeTransport(retrieve=ConnectFailed("refused"))
        engines = engine_set(entry_of("a", retries=0))
        engines.start()
        await asyncio.sleep(1.0)
        for _ in range(5):
            with pytest.raises(LegError):
                await engines.engines[0].call("retrieve", {}, asyncio.get_running_loop().time() + 1)
        assert engines.engines[0].state().breaker == "open"
        engines.apply([entry_of("a", retries=0, weight=2.0, maxConcurrency=3)], SETTINGS, 0.0)
        state = engines.engines[0].state()
        assert (state.breaker, state.limit) == ("open", 3)
        other = EnginesSettings(health_interval_seconds=15.0, breaker_failures=1)
        engines.apply([entry_of("a", retries=0, weight=2.0, maxConcurrency=3)], other, 0.0)
        assert engines.engines[0].state().breaker == "open"
        assert wires["a"].asked("initialize") == 1
        await engines.close()

    virtually(story())


@pytest.mark.parametrize("seconds", [30.0, 0.0])
def test_a_required_engine_fails_no_request_before_it_is_warm(wires: dict[str, FakeTransport], seconds: float) -> None:
    """A new one, or one that is required from now on: the set before serves until it has shaken hands."""

    async def story() -> None:
        settings = EnginesSettings(warm_seconds=seconds)
        engines = engine_set(entry_of("a"))
        engines.apply([entry_of("a")], settings, 0.0)
        engines.start()
        await asyncio.sleep(1.0)
        wires["b"] = FakeTransport(initialize=slowly(1.0))
        assert engines.apply([entry_of("a"), entry_of("b", required=True)], settings, 0.0) == (["b"], [], [])
        assert [engine.id for engine in engines.asked] == (["a"] if seconds else ["a", "b"])
        await asyncio.sleep(1.1)
        assert [engine.id for engine in engines.asked] == ["a", "b"]
        wires["c"] = FakeTransport(initialize=slowly(1.0))
        both = [entry_of("a"), entry_of("b", required=True)]
        engines.apply([*both, entry_of("c")], settings, 0.0)
        engines.apply([*both, entry_of("c", required=True)], settings, 0.0)
        assert engines.engines[2].entry.required is not bool(seconds)
        await asyncio.sleep(1.1)
        assert engines.engines[2].entry.required
        await engines.close()

    virtually(story())


def test_no_more_than_sixteen_handshakes_at_once(wires: dict[str, FakeTransport]) -> None:
    """A hundred engines come up in turns; those that hang give their places to others after a while."""

    async def story() -> None:
        under_way = most = 0

        async def play(params: Mapping[str, Any]) -> Any:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.5)
            under_way -= 1
            return described()

        for number in range(100):
            wires[f"e{number:02}"] = FakeTransport(initialize=play)
        for number in range(20):
            wires[f"hanging{number}"] = FakeTransport(initialize=never)
        hanging = [entry_of(f"hanging{number}", timeoutMs=600_000) for number in range(20)]
        engines = engine_set(*hanging, *(entry_of(f"e{number:02}") for number in range(100)))
        engines.start()
        await asyncio.sleep(20.0)
        assert most <= 16
        assert sum(engine.up for engine in engines.engines) == 100
        await engines.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    virtually(story())
