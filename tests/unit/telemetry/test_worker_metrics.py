"""Several workers' metrics read as one: sums, who is gone, who came after, and engines that left."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import values

from app.protocol.errors import CALL_KINDS
from app.telemetry import worker_metrics
from app.telemetry.metrics import EngineState, Metrics


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The common folder; afterwards this process counts for itself again."""
    before = values.ValueClass
    monkeypatch.setenv(worker_metrics.FOLDER, str(tmp_path))
    yield tmp_path
    values.ValueClass = before


def worker(place: int, calls: int = 0, up: bool = True, engines: tuple[str, ...] = ("docs",)) -> Metrics:
    """What the worker in `place` counts, whose engines are `up` and have so many `calls` under way."""
    worker_metrics.share(place)
    made = Metrics("1.2.3")
    made.declare_methods(["retrieve"])
    made.declare_engines(engines, CALL_KINDS)
    made.watch_engines(lambda: [EngineState(engine, up, calls) for engine in engines])
    made.note_engines()
    return made


def scraped(metrics: Metrics, name: str, **labels: str) -> float | None:
    """The value of a series in a scrape of one of the workers."""
    return metrics.scraped().get_sample_value(name, labels)


def test_workers_are_one_whole(folder: Path) -> None:
    """Counts and what is under way add up; an engine is up if it is for every worker."""
    one, two = worker(0, calls=3), worker(1, calls=4, up=False)
    one.engine_call("docs", "ok", 0.1)
    two.engine_call("docs", "ok", 0.1)
    one.requests_in_flight.inc()
    two.requests_in_flight.inc(2)
    assert scraped(one, "rcp_gateway_legs_total", engine="docs", outcome="ok") == 2
    assert scraped(two, "rcp_gateway_requests_in_flight") == 3
    assert scraped(one, "rcp_gateway_engine_in_flight", engine="docs") == 7
    assert scraped(one, "rcp_gateway_engine_up", engine="docs") == 0
    assert scraped(one, "rcp_gateway_build_info", version="1.2.3", compiled="false") == 1


def test_what_a_dead_worker_had_under_way_vanishes(folder: Path) -> None:
    """Its gauges are gone at the next scrape, its counts stay (B108)."""
    one, two = worker(0), worker(1, calls=4, up=False)
    two.requests_in_flight.inc(2)
    two.request("retrieve", "ok", 0.1)
    worker_metrics.forget_worker(1)
    assert scraped(one, "rcp_gateway_requests_in_flight") == 0
    assert scraped(one, "rcp_gateway_engine_in_flight", engine="docs") == 0
    assert scraped(one, "rcp_gateway_engine_up", engine="docs") == 1
    assert scraped(one, "rcp_gateway_requests_total", method="retrieve", outcome="ok") == 1


def test_fifty_workers_in_one_place(folder: Path) -> None:
    """Whoever takes over a place goes on counting: counts never go down, and the files do not grow in number (B106)."""
    one = worker(0)
    files = None
    for turn in range(1, 51):
        successor = worker(1)
        successor.requests_in_flight.inc()
        successor.request("retrieve", "ok", 0.1)
        worker_metrics.forget_worker(1)
        assert scraped(one, "rcp_gateway_requests_total", method="retrieve", outcome="ok") == turn
        assert scraped(one, "rcp_gateway_requests_in_flight") == 0
        now = len(list(folder.iterdir()))
        assert files in (None, now)
        files = now


def test_engines_that_left_are_left_out(folder: Path) -> None:
    """The series of an engine that is no more vanish from the scrape, those of a new one begin with 0 (B111)."""
    one = worker(0, engines=("docs", "code"))
    one.engine_call("docs", "ok", 0.1)
    one.forget_engines(["docs"])
    one.engine_call("docs", "ok", 0.1)
    one.dropped("docs", "excess", 1)
    one.declare_engines(["notes"], CALL_KINDS)
    assert scraped(one, "rcp_gateway_legs_total", engine="docs", outcome="ok") is None
    assert scraped(one, "rcp_gateway_legs_total", engine="code", outcome="ok") == 0
    assert scraped(one, "rcp_gateway_legs_total", engine="notes", outcome="timeout") == 0


def test_traces_are_those_of_the_worker_that_is_scraped(folder: Path) -> None:
    """Of a request that belongs to a trace its worker leaves the id at the bucket, the latest of each."""
    one, two = worker(0), worker(1)
    for trace in ("aa" * 16, "bb" * 16):
        one.request("retrieve", "ok", 0.3, trace)
    one.request("retrieve", "ok", 0.3)
    one.engine_call("docs", "ok", 0.3)
    found = [
        (sample.labels["le"], sample.exemplar.labels, sample.value)
        for metric in one.scraped().collect()
        for sample in metric.samples
        if sample.exemplar is not None
    ]
    assert found == [("0.5", {"trace_id": "bb" * 16}, 3.0)]
    assert not [sample for metric in two.scraped().collect() for sample in metric.samples if sample.exemplar]
