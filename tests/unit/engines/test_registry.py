"""The living set: which transport an entry asks for, in which order engines stand, and how they are closed."""

import asyncio
import sys
from typing import Any

import pytest

from app.engines import registry
from app.engines.engine import RemoteEngine
from app.engines.http import HttpTransport
from app.engines.http2 import Http2Transport
from app.engines.registry import EngineSet, open_transport, probe
from app.engines.stdio import StdioTransport
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

    monkeypatch.setattr(registry, "open_transport", open_fake)
    return wires


def engine_set(*entries: EngineEntry, reports: list[str] | None = None) -> EngineSet:
    """A set of these entries that writes its reports down."""

    def report(engine: RemoteEngine, fault: LegError | None) -> None:
        if reports is not None:
            reports.append(f"{engine.id} {'up' if fault is None else fault.kind}")

    return EngineSet(entries, SETTINGS, report, lambda engine_id, line: None)


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
        gone, wires["b"] = wires["b"], FakeTransport()
        changed = [entry_of("d"), entry_of("b", weight=2.0), entry_of("a"), entry_of("off", enabled=False)]
        assert engines.apply(changed, SETTINGS, 5.0) == (["b", "d"], ["b", "c"])
        assert [engine.id for engine in engines.engines] == ["a", "b", "d"]
        assert engines.engines[0] is a
        assert engines.engines[1].entry.weight == 2.0
        assert engines.engines[1].advertisement is b.advertisement
        assert engines.disabled == ("off",)
        assert repr(engines).endswith(", 2 lingering>")
        await asyncio.sleep(4.9)
        assert (gone.closed, wires["c"].closed, engines.engines[2].up) == (False, False, True)
        await asyncio.sleep(0.2)
        assert (gone.closed, wires["c"].closed, wires["a"].closed) == (True, True, False)
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


def test_other_settings_are_other_engines(wires: dict[str, FakeTransport]) -> None:
    """What is decided for all engines together holds for all of them at once."""

    async def story() -> None:
        engines = engine_set(entry_of("a"))
        other = EnginesSettings(idle_seconds=1.0)
        assert engines.apply([entry_of("a")], other, 0.0) == (["a"], ["a"])
        assert engines.apply([entry_of("a")], other, 0.0) == ([], [])
        await engines.close()

    virtually(story())


def test_who_joined_through_a_gateway_is_left_alone(
    wires: dict[str, FakeTransport], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A diff of the registry touches no engine that never stood in it."""
    monkeypatch.setattr(registry, "open_wary_transport", lambda entry, settings: FakeTransport())

    async def story() -> None:
        engines = engine_set(entry_of("a"))
        engines.join(entry_of("guest", priority=1))
        joined = engines.engines[0]
        assert engines.apply([entry_of("b")], SETTINGS, 0.0) == (["b"], ["a"])
        assert engines.engines[0] is joined
        engines.leave("guest")
        assert [engine.id for engine in engines.engines] == ["b"]
        await engines.close()

    virtually(story())
