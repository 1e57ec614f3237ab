"""Plain counts show to a scrape exactly what prometheus_client's own metrics show."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    values,
)
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.values import MutexValue

from app.telemetry.plain_metrics import Counts, Durations, counter, lone_counter, lone_gauge, lone_histogram
from app.telemetry.worker_metrics import FOLDER, AllWorkers, share

BOUNDS = (0.001, 0.5, 1.0)
LABELS = [("docs", "first"), ("docs", "retry"), ("code", "first")]
Made = tuple[Any, Any, Any, Any]


def plain(registry: CollectorRegistry) -> Made:
    """One of each kind, as the gateway makes them."""
    return (
        counter("x_attempts", "Requests.", ["engine", "kind"], registry),
        lone_counter("x_copies", "Copies.", registry),
        lone_gauge("x_in_flight", "Under way.", registry),
        lone_histogram("x_seconds", "Time.", BOUNDS, registry),
    )


def theirs(registry: CollectorRegistry) -> Made:
    """The same of prometheus_client's own."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    return (
        Counter("x_attempts", "Requests.", ["engine", "kind"], registry=registry),
        Counter("x_copies", "Copies.", registry=registry),
        Gauge("x_in_flight", "Under way.", registry=registry),
        Histogram("x_seconds", "Time.", buckets=BOUNDS, registry=registry),
    )


def count(made: Made, seen: list[tuple[int, float]]) -> None:
    """Let everything happen to all four of them."""
    attempts, copies, in_flight, seconds = made
    for labels in LABELS:
        attempts.labels(*labels)
    for index, amount in seen:
        attempts.labels(*LABELS[index]).inc()
        copies.inc(amount)
        in_flight.inc()
        seconds.observe(amount)
        if index:
            in_flight.dec()


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0.0, 0.001, 0.5, 0.7, 1.0, 3.0]))))
def test_a_scrape_sees_no_difference(seen: list[tuple[int, float]]) -> None:
    """Byte for byte, in both formats."""
    ours, other = CollectorRegistry(), CollectorRegistry()
    count(plain(ours), seen)
    count(theirs(other), seen)
    assert generate_latest(ours) == generate_latest(other)
    assert openmetrics(ours) == openmetrics(other)


def test_what_is_removed_is_gone() -> None:
    """Every series with the label ends; who still holds one counts for nobody, and asked for again it begins with 0."""
    counts = Counts("x_attempts", "Requests.", ("engine", "kind"))
    held = counts.labels("docs", "first")
    counts.labels("code", "first").inc(2)
    counts.remove_by_labels({"engine": "docs"})
    held.inc()
    (family,) = counts.families()
    assert [(sample.labels["engine"], sample.value) for sample in family.samples] == [("code", 2)]
    assert counts.labels("docs", "first").value == 0


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Where several workers write what they count."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    yield tmp_path
    values.ValueClass = MutexValue


def test_workers_add_up(folder: Path) -> None:
    """Of several workers the counts are one whole, as they were before."""
    for place in range(2):
        share(place)
        count(plain(CollectorRegistry()), [(0, 0.7)])
    whole = CollectorRegistry()
    whole.register(AllWorkers(lambda: {"docs", "code"}))
    assert whole.get_sample_value("x_attempts_total", {"engine": "docs", "kind": "first"}) == 2
    assert whole.get_sample_value("x_copies_total") == 1.4
    assert whole.get_sample_value("x_in_flight") == 2
    assert whole.get_sample_value("x_seconds_count") == 2


def test_what_is_counted_can_be_looked_at() -> None:
    """In an incident: how much, of what."""
    counts = Counts("x_copies", "Copies.")
    series = counts.labels()
    series.inc(3)
    series.dec()
    durations = Durations("x_seconds", "Time.", BOUNDS)
    durations.observe(0.7)
    assert repr(series) == "<Series 2>"
    assert repr(counts) == "<Counts x_copies of 1 series>"
    assert repr(durations) == "<Durations x_seconds of 1>"
