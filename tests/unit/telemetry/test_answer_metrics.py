"""What is counted of answers: bounded, there with 0 from the start, gone with its engine, and the same for workers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, values
from prometheus_client.values import MutexValue

from app.telemetry.answer_metrics import MAX_GIVERS, MAX_PAIRED, AnswerMetrics
from app.telemetry.worker_metrics import FOLDER, AllWorkers, share

Registries = tuple[AnswerMetrics, CollectorRegistry]


@pytest.fixture(params=["alone", "shared"])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Registries]:
    """Metrics of answers, and the registry they are read from: of one process, and of one of several workers."""
    if request.param == "alone":
        registry = CollectorRegistry()
        yield AnswerMetrics(registry), registry
        return
    monkeypatch.setenv(FOLDER, str(tmp_path))
    share(0)
    whole = CollectorRegistry()
    whole.register(AllWorkers(lambda: {"a", "b", "c"}))
    yield AnswerMetrics(CollectorRegistry()), whole
    values.ValueClass = MutexValue


def test_every_series_is_there_with_nothing(made: Registries) -> None:
    """Before any answer each engine, pair and reason has its series."""
    metrics, registry = made
    for engine in ("b", "a", "c"):
        metrics.declare(engine, ["timeout"])
    for one, other in (("a", "b"), ("a", "c"), ("b", "c")):
        assert registry.get_sample_value("rcp_gateway_hits_shared_total", {"engine": one, "other": other}) == 0
    assert registry.get_sample_value("rcp_gateway_top_confidence_count", {"engine": "a"}) == 0
    for reason in ("timeout", "unreached"):
        assert registry.get_sample_value("rcp_gateway_degraded_answers_total", {"reason": reason}) == 0


def test_what_is_observed_adds_up(made: Registries) -> None:
    """A document of three engines is shared by three pairs; a confidence lies in its bucket and all above."""
    metrics, registry = made
    for engine in ("a", "b", "c"):
        metrics.declare(engine, ["timeout"])
    metrics.pairs.count(["a", "b", "c"])
    metrics.pairs.count(["a", "b"])
    metrics.confidences.observe("a", 0.3)
    metrics.confidences.observe("a", 0.95)
    metrics.degraded(["timeout"])
    assert registry.get_sample_value("rcp_gateway_hits_shared_total", {"engine": "a", "other": "b"}) == 2
    assert registry.get_sample_value("rcp_gateway_hits_shared_total", {"engine": "b", "other": "c"}) == 1
    buckets = {le: ("rcp_gateway_top_confidence_bucket", {"engine": "a", "le": le}) for le in ("0.2", "0.3", "+Inf")}
    assert {le: registry.get_sample_value(*series) for le, series in buckets.items()} == {"0.2": 0, "0.3": 1, "+Inf": 2}
    assert registry.get_sample_value("rcp_gateway_top_confidence_sum", {"engine": "a"}) == 1.25
    assert registry.get_sample_value("rcp_gateway_degraded_answers_total", {"reason": "timeout"}) == 1


def test_who_left_or_was_never_there_has_no_series() -> None:
    """An engine that left takes its pairs along, and what is still under way brings none of them back."""
    registry = CollectorRegistry()
    metrics = AnswerMetrics(registry)
    for engine in ("a", "b"):
        metrics.declare(engine, ())
    metrics.forget("b")
    metrics.pairs.count(["a", "b"])
    metrics.confidences.observe("b", 0.5)
    engines = {sample.labels.get("engine") for family in registry.collect() for sample in family.samples}
    assert engines == {None, "a"}
    assert repr(metrics.pairs) == "<Pairs of 1 engines, 0 documents shared>"
    assert repr(metrics) == f"<AnswerMetrics {metrics.pairs!r}, <Confidences of 1 engines, 0 answers>>"


def test_pairs_are_bounded() -> None:
    """Beyond so many engines no further pairs are counted; their other series are there."""
    registry = CollectorRegistry()
    metrics = AnswerMetrics(registry)
    for index in range(MAX_PAIRED + 8):
        metrics.declare(f"e{index:02}", ())
        metrics.declare(f"e{index:02}", ())
    (pairs,) = [family for family in registry.collect() if family.name == "rcp_gateway_hits_shared"]
    assert len(pairs.samples) == MAX_PAIRED * (MAX_PAIRED - 1) // 2
    assert registry.get_sample_value("rcp_gateway_top_confidence_count", {"engine": f"e{MAX_PAIRED + 7}"}) == 0


def test_sets_of_givers_are_bounded() -> None:
    """However many sets of engines there are, only so many wait to be added up, and none is lost."""
    metrics = AnswerMetrics(CollectorRegistry())
    for engine in ("a", "b"):
        metrics.declare(engine, ())
    for index in range(MAX_GIVERS + 8):
        metrics.pairs.count(["a", "b", f"other{index}"])
    assert len(metrics.pairs._givers) < MAX_GIVERS
    assert repr(metrics.pairs) == f"<Pairs of 2 engines, {MAX_GIVERS + 8} documents shared>"


def test_a_pair_counts_from_when_it_is_there() -> None:
    """What two gave together before one of them was declared is none of their series."""
    registry = CollectorRegistry()
    metrics = AnswerMetrics(registry)
    metrics.declare("a", ())
    metrics.pairs.count(["a", "b"])
    metrics.declare("b", ())
    metrics.pairs.count(["a", "b"])
    assert registry.get_sample_value("rcp_gateway_hits_shared_total", {"engine": "a", "other": "b"}) == 1
