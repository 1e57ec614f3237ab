"""What a listener hears while legs end."""

from collections.abc import Mapping
from typing import Any

from app.federation.outcome import answered, cancelled, failed, told
from app.federation.telling import Telling
from app.federation.witness import Witness
from app.protocol.errors import LEG_KINDS, BadStatus
from app.protocol.params import CallMeta
from app.telemetry.metrics import Metrics
from tests.support.fake_engine import hits


class Ear:
    """Remembers what it hears."""

    def __init__(self) -> None:
        self.opened = 0
        self.told: list[Mapping[str, Any]] = []
        self.logged: list[Mapping[str, Any]] = []

    def open(self) -> None:
        self.opened += 1

    def tell(self, progress: Mapping[str, Any]) -> None:
        self.told.append(progress)

    def log(self, line: Mapping[str, Any]) -> None:
        self.logged.append(line)


def telling(ear: Ear, meta: CallMeta, so_far: Any = lambda ended: None) -> tuple[Telling, Metrics]:
    metrics = Metrics("test")
    metrics.declare_engines(["a", "b"], LEG_KINDS)
    return Telling(ear, Witness(metrics), meta, 2, so_far), metrics


def test_each_leg_is_told_with_the_list_so_far() -> None:
    """The stream opens first; the list holds what has come by then."""
    ear = Ear()
    legs, metrics = telling(ear, CallMeta(progress_token=7), lambda ended: [{"id": len(ended)}])
    assert ear.opened == 1
    legs.heard(answered("a", {"hits": hits("x")}, 0.1, 1))
    legs.heard(failed("b", BadStatus("503"), 0.1))
    assert [(one["progressToken"], one["progress"]) for one in ear.told] == [(7, 0.5), (7, 1.0)]
    assert [one["partial"]["hits"] for one in ear.told] == [[{"id": 1}], [{"id": 2}]]
    assert ear.logged == []
    assert metrics.registry.get_sample_value("rcp_gateway_legs_total", {"engine": "a", "outcome": "ok"}) == 1
    assert repr(legs) == "<Telling of 2 of 2 legs>"


def test_lines_for_the_callers_log() -> None:
    """Those of the level that it wants; an answer that is no list of hits just came."""
    ear = Ear()
    legs, _ = telling(ear, CallMeta(progress_token=7, log_level="warning"))
    legs.heard(told("a", {}, 0.012, 1))
    legs.heard(failed("b", BadStatus("503"), 0.1))
    assert [line["level"] for line in ear.logged] == ["warning"]
    assert ear.told[0]["message"] == "a: answered after 12 ms"
    assert "partial" not in ear.told[0]


def test_a_cancelled_leg_is_only_counted() -> None:
    """Nobody listens any more."""
    ear = Ear()
    legs, metrics = telling(ear, CallMeta(progress_token=7))
    legs.heard(cancelled("a", 0.1))
    assert ear.told == []
    assert metrics.registry.get_sample_value("rcp_gateway_legs_total", {"engine": "a", "outcome": "cancelled"}) == 1
