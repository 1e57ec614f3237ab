"""What the journey tells its watchers: numbers for every leg, one log line per pair that collides, never a text."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from app.federation import instrumentation as module
from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.outcome import Outcome, answered, cancelled, failed
from app.federation.planner import Plan
from app.fusion.merge import FusedList
from app.fusion.ranked_lists import FusionConfig, RankedList
from app.fusion.rrf import fuse
from app.protocol.errors import CALL_KINDS, LegTimeout
from app.telemetry.metrics import Metrics
from app.telemetry.overlap import LOOK_SECONDS
from tests.support.fake_engine import Json, hit, hits
from tests.support.log_lines import LogLines, own_log

PLAN = Plan((), (), 10, FusionConfig())
LONG = "a text that is long enough to be compared with another and found to be clearly different from it "


@pytest.fixture
def log() -> Iterator[LogLines]:
    """What is logged meanwhile."""
    with own_log() as lines:
        yield lines


@pytest.fixture
def metrics() -> Metrics:
    """Metrics that know the engines of these tests."""
    made = Metrics("test")
    made.declare_engines(["a", "b", "c"], CALL_KINDS)
    return made


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """One series now."""
    return metrics.registry.get_sample_value(f"rcp_gateway_{name}", labels)


def fused(**lists: list[Json]) -> FusedList:
    """The fusion of these lists."""
    ranked = [RankedList(engine=engine, hits=sent, fetch_k=20) for engine, sent in lists.items()]
    return fuse(ranked, FusionConfig())


def test_engine_calls_are_counted_by_what_became_of_them(metrics: Metrics) -> None:
    """Each leg is counted once, as ok, as cancelled or by the class of its failure, with its time."""
    instrumentation = RetrieveInstrumentation(metrics)
    instrumentation.engine_call(answered("a", {"hits": []}, 0.25, 1))
    instrumentation.engine_call(failed("a", LegTimeout("slow"), 2.0))
    instrumentation.engine_call(cancelled("b", 0.5))
    assert value(metrics, "legs_total", engine="a", outcome="ok") == 1
    assert value(metrics, "leg_duration_seconds_sum", engine="a", outcome="failed") == 2.0
    assert value(metrics, "legs_total", engine="b", outcome="cancelled") == 1


@pytest.mark.parametrize("kind", CALL_KINDS)
def test_every_class_of_failure_can_be_counted(metrics: Metrics, kind: str) -> None:
    """No class of failure is unknown to the metrics."""
    RetrieveInstrumentation(metrics).engine_call(Outcome("a", "failed", attempts=1, kind=kind))
    assert value(metrics, "legs_total", engine="a", outcome=kind) == 1


def test_dropped_hits_are_counted(metrics: Metrics) -> None:
    """Malformed and excess hits are counted for their engine (B116)."""
    instrumentation = RetrieveInstrumentation(metrics)
    instrumentation.engine_call(
        answered("a", {"hits": [None, hit("x")] + [hit(number) for number in range(1003)]}, 0.1, 1)
    )
    assert value(metrics, "hits_dropped_total", engine="a", reason="malformed") == 1
    assert value(metrics, "hits_dropped_total", engine="a", reason="excess") == 5


def test_overhead_is_what_the_longest_engine_call_does_not_explain(metrics: Metrics) -> None:
    """The overhead of a retrieve is its time less its longest leg, and never negative."""
    instrumentation = RetrieveInstrumentation(metrics)
    outcomes = [answered("a", {"hits": []}, 0.25, 1), failed("b", LegTimeout("slow"), 0.5)]
    instrumentation.retrieved(outcomes, 0.75)
    assert value(metrics, "overhead_seconds_sum") == 0.25
    instrumentation.retrieved(outcomes, 0.4)
    assert value(metrics, "overhead_seconds_sum") == 0.25
    assert value(metrics, "overhead_seconds_count") == 2
    instrumentation.retrieved([], 0.1)
    assert value(metrics, "overhead_seconds_count") == 2


def test_merged_copies_are_counted(metrics: Metrics) -> None:
    """Copies merged into one hit are counted, within a list and across lists."""
    RetrieveInstrumentation(metrics).served(PLAN, [], fused(a=hits("x", "x", "y"), b=hits("y")), [])
    assert value(metrics, "duplicates_merged_total") == 2


def test_collisions_are_counted_in_sampled_answers_and_logged_once_per_pair(metrics: Metrics, log: LogLines) -> None:
    """Two engines that give one id to clearly different texts are counted, logged once, and looked for now and then."""
    now = 0.0
    instrumentation = RetrieveInstrumentation(metrics, lambda: now)
    clash = fused(
        a=[hit("1", text=LONG + "apples and pears " * 9)],
        b=[hit("1", text="Entirely unlike: " + "zinc, tin, iron " * 9)],
    )
    for _ in range(3):
        instrumentation.served(PLAN, [], clash, [])
        instrumentation.served(PLAN, [], clash, [])  # too soon after the one before
        now += LOOK_SECONDS
    assert value(metrics, "id_collisions_total") == 3
    assert value(metrics, "duplicates_merged_total") == 6
    (line,) = log.lines
    assert (line["event"], line["level"], line["engines"]) == ("id_collision", "warning", ["a", "b"])
    assert "idNamespace" in line["remedy"]
    assert repr(instrumentation) == "<RetrieveInstrumentation with 1 pairs of colliding engines>"
    assert "apples" not in log.text


def test_only_what_is_answered_is_looked_at(metrics: Metrics) -> None:
    """Collisions below the k that is answered are nobody's concern."""
    clash = [hit("x", text=LONG), hit("1", text=LONG + "apples and pears " * 9)]
    other = [hit("x", text=LONG), hit("1", text="Entirely unlike: " + "zinc, tin, iron " * 9)]
    RetrieveInstrumentation(metrics).served(Plan((), (), 1, FusionConfig()), [], fused(a=clash, b=other), [])
    assert value(metrics, "id_collisions_total") == 0


def test_memory_of_pairs_is_bounded(metrics: Metrics, log: LogLines, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many pairs are remembered as logged and no more; what is beyond is only counted."""
    monkeypatch.setattr(module, "MAX_PAIRS", 1)
    instrumentation = RetrieveInstrumentation(metrics, itertools.count().__next__)

    def clash(*engines: str) -> Any:
        texts = (LONG + "apples and pears " * 9, "Entirely unlike: " + "zinc, tin, iron " * 9)
        return fused(**{engine: [hit("1", text=text)] for engine, text in zip(engines, texts, strict=True)})

    instrumentation.served(PLAN, [], clash("a", "b"), [])
    instrumentation.served(PLAN, [], clash("b", "c"), [])
    assert len(log.lines) == 1
    assert value(metrics, "id_collisions_total") == 2
