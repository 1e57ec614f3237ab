"""What guards do becomes a number and, if it is rare, a line in the log."""

import asyncio
from typing import Any

from app.engines.call_instrumentation import HOLD_QUIET_SECONDS, EngineInstrumentation, NoInstrumentation
from app.protocol.errors import CALL_KINDS, BadStatus
from app.telemetry.metrics import Metrics
from tests.support.fake_engine import advertised
from tests.support.log_lines import own_log
from tests.support.virtual_time import virtually

SICK = BadStatus("HTTP 503", status=503)


class Watched:
    """A witness of `docs`, its metrics, and its lines."""

    def __init__(self) -> None:
        self.metrics = Metrics("1.2.3")
        self.metrics.declare_engines(["docs"], CALL_KINDS)
        self.instrumentation = EngineInstrumentation("docs", self.metrics)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"rcp_gateway_{name}", {"engine": "docs", **labels})


def plain(line: dict[str, Any]) -> dict[str, Any]:
    """A line without what every line has."""
    return {key: value for key, value in line.items() if key not in ("timestamp", "level", "engine")}


def test_attempts_are_counted_by_why() -> None:
    """First ones, repeats of each kind, and retries that were not made."""
    watched = Watched()
    watched.instrumentation.first()
    watched.instrumentation.attempted("again", 2)
    watched.instrumentation.attempted("retry")
    watched.instrumentation.retry_skipped("budget")
    watched.instrumentation.waited(0.5)
    counted = {kind: watched.value("attempts_total", kind=kind) for kind in ("first", "again", "retry", "hedge")}
    assert counted == {"first": 1, "again": 2, "retry": 1, "hedge": 0}
    assert watched.value("retries_forgone_total", reason="budget") == 1
    assert watched.value("gate_wait_seconds_count") == 1
    assert repr(watched.instrumentation) == "<EngineWitness docs>"


def test_rare_events_are_logged_and_counted() -> None:
    """Each change of a breaker or of a replica is a line that says why, and a number."""
    with own_log() as log:
        watched = Watched()
        watched.instrumentation.breaker("open", SICK, 1.0)
        watched.instrumentation.breaker("half_open")
        watched.instrumentation.breaker("closed")
        watched.instrumentation.replica("1", SICK)
        watched.instrumentation.replica("1", None)
        lines = log.lines
    why = {"reason": "http_status", "detail": "HTTP 503"}
    assert [plain(line) for line in lines] == [
        {"event": "breaker_opened", "seconds": 1.0, **why},
        {"event": "breaker_half_open"},
        {"event": "breaker_closed"},
        {"event": "replica_ejected", "replica": "1", **why},
        {"event": "replica_returned", "replica": "1"},
    ]
    assert [line["level"] for line in lines] == ["warning", "info", "info", "warning", "info"]
    assert {line["engine"] for line in lines} == {"docs"}
    assert [watched.value("breaker_transitions_total", state=state) for state in ("open", "half_open", "closed")] == [
        1
    ] * 3
    assert watched.value("replica_ejections_total", replica="1") == 1


def test_rate_limits_are_logged_once_in_a_while() -> None:
    """An engine that limits our rate with every call is a line a minute."""

    async def story() -> list[float]:
        with own_log() as log:
            watched = Watched()
            for _ in range(100):
                watched.instrumentation.held(5.0)
            await asyncio.sleep(HOLD_QUIET_SECONDS)
            watched.instrumentation.held(9.0)
            return [line["seconds"] for line in log.lines if line["event"] == "engine_rate_limited"]

    assert virtually(story()) == [5.0, 9.0]


def test_another_advertisement_is_logged_by_its_difference() -> None:
    """What an engine can do since its last handshake, and what not."""
    with own_log() as log:
        Watched().instrumentation.advertised(
            advertised({"retrieve": {"maxK": 9}}), advertised({"retrieve": {"maxK": 8}})
        )
        (line,) = log.lines
    assert plain(line) == {"event": "advertisement_changed", "changed": ["retrieve.maxK: 9 -> 8"]}


def test_nobody_watches_nothing() -> None:
    """An engine outside a gateway needs no metrics and leaves no line."""
    with own_log() as log:
        nobody = NoInstrumentation()
        nobody.first()
        nobody.attempted("retry")
        nobody.breaker("open", SICK, 1.0)
        nobody.replica("0", SICK)
        nobody.held(1.0)
        assert log.text == ""
