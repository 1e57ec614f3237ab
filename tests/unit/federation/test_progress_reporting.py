"""What a listener hears while legs end."""

import asyncio
from collections.abc import Mapping
from typing import Any

from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.outcome import answered, cancelled, failed, told
from app.federation.progress import ProgressReporter
from app.protocol.errors import CALL_KINDS, BadStatus
from app.protocol.retrieve_params import CallMeta
from app.telemetry.metrics import Metrics
from tests.support.fake_engine import hits
from tests.support.virtual_time import virtually


class Ear:
    """Remembers what it hears."""

    def __init__(self) -> None:
        self.ready = True
        self.opened = 0
        self.told: list[Mapping[str, Any]] = []
        self.logged: list[Mapping[str, Any]] = []

    def open(self) -> None:
        self.opened += 1

    def tell(self, progress: Mapping[str, Any]) -> None:
        self.told.append(progress)

    def log(self, line: Mapping[str, Any]) -> None:
        self.logged.append(line)


def reporter(
    ear: Ear, meta: CallMeta, so_far: Any = lambda ended: None, engine_calls: int = 2
) -> tuple[ProgressReporter, Metrics]:
    metrics = Metrics("test")
    metrics.declare_engines(["a", "b"], CALL_KINDS)
    return ProgressReporter(ear, RetrieveInstrumentation(metrics), meta, engine_calls, so_far), metrics


async def test_each_engine_call_is_told() -> None:
    """The stream opens first; the list holds what has come by then, and does not come with the last leg."""
    ear = Ear()
    engine_calls, metrics = reporter(ear, CallMeta(progress_token=7), lambda ended: [{"id": len(ended)}])
    assert ear.opened == 1
    engine_calls.heard(answered("a", {"hits": hits("x")}, 0.1, 1))
    engine_calls.heard(failed("b", BadStatus("503"), 0.1))
    assert [(one["progressToken"], one["progress"]) for one in ear.told] == [(7, 0.5), (7, 1.0)]
    assert [one.get("partial") for one in ear.told] == [{"hits": [{"id": 1}]}, None]
    assert ear.logged == []
    assert metrics.registry.get_sample_value("rcp_gateway_legs_total", {"engine": "a", "outcome": "ok"}) == 1
    assert repr(engine_calls) == "<Telling of 2 of 2 legs>"


def lists_of(ear: Ear) -> list[int]:
    """How many legs had ended, by list that was told."""
    return [one["partial"]["hits"][0]["id"] for one in ear.told if "partial" in one]


def test_lists_come_at_most_every_50_ms_and_the_newest_is_never_lost() -> None:
    """Legs that end together make one list; what came after it is told 50 ms later, once."""

    async def story() -> None:
        ear = Ear()
        engine_calls, _ = reporter(
            ear, CallMeta(progress_token=7), lambda ended: [{"id": len(ended)}], engine_calls=100
        )
        for _ in range(40):
            engine_calls.heard(answered("a", {"hits": hits("x")}, 0.1, 1))
        assert lists_of(ear) == [1]
        await asyncio.sleep(0.049)
        assert lists_of(ear) == [1]
        await asyncio.sleep(0.002)
        assert lists_of(ear) == [1, 40]
        assert ear.told[-1]["progress"] == 0.4
        await asyncio.sleep(1)
        assert lists_of(ear) == [1, 40]  # nothing new
        engine_calls.heard(failed("b", BadStatus("503"), 0.1))
        assert lists_of(ear) == [1, 40]  # still nothing new
        engine_calls.heard(answered("a", {"hits": hits("x")}, 0.1, 1))
        assert lists_of(ear) == [1, 40, 42]
        engine_calls.heard(answered("a", {"hits": hits("x")}, 0.1, 1))
        engine_calls.close()
        await asyncio.sleep(1)
        assert lists_of(ear) == [1, 40, 42]

    virtually(story())


def test_no_list_is_made_for_a_caller_that_is_not_ready() -> None:
    """It gets one as soon as it has taken what waits, with all that has come by then."""

    async def story() -> None:
        ear = Ear()
        engine_calls, _ = reporter(ear, CallMeta(progress_token=7), lambda ended: [{"id": len(ended)}], engine_calls=5)
        ear.ready = False
        engine_calls.heard(answered("a", {"hits": hits("x")}, 0.1, 1))
        engine_calls.heard(answered("b", {"hits": hits("x")}, 0.1, 1))
        await asyncio.sleep(1)
        assert lists_of(ear) == []
        ear.ready = True
        await asyncio.sleep(0.06)
        assert lists_of(ear) == [2]

    virtually(story())


async def test_no_list_is_made_without_a_token() -> None:
    """A caller of a pipe may want lines for its log alone."""
    ear = Ear()
    engine_calls, _ = reporter(ear, CallMeta(log_level="debug"), lambda ended: [{"id": len(ended)}], engine_calls=5)
    engine_calls.heard(answered("a", {"hits": hits("x")}, 0.1, 1))
    assert lists_of(ear) == []
    assert len(ear.logged) == 1


async def test_lines_for_the_callers_log() -> None:
    """Those of the level that it wants; an answer that is no list of hits just came."""
    ear = Ear()
    engine_calls, _ = reporter(ear, CallMeta(progress_token=7, log_level="warning"))
    engine_calls.heard(told("a", {}, 0.012, 1))
    engine_calls.heard(failed("b", BadStatus("503"), 0.1))
    assert [line["level"] for line in ear.logged] == ["warning"]
    assert ear.told[0]["message"] == "a: answered after 12 ms"
    assert "partial" not in ear.told[0]


async def test_a_cancelled_engine_call_is_only_counted() -> None:
    """Nobody listens any more."""
    ear = Ear()
    engine_calls, metrics = reporter(ear, CallMeta(progress_token=7))
    engine_calls.heard(cancelled("a", 0.1))
    assert ear.told == []
    assert metrics.registry.get_sample_value("rcp_gateway_legs_total", {"engine": "a", "outcome": "cancelled"}) == 1
