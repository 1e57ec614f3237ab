"""Several workers' metrics in one scrape: sums, a worker that ended, its successor, and engines that were removed."""

from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from app.protocol.errors import CALL_KINDS
from app.telemetry.metrics import EngineState, Metrics
from app.telemetry.worker_snapshots import WorkerSnapshots, forget_gauges
from tests.support.log_lines import own_log

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def worker(folder: Path, place: int, calls: int = 0, up: bool = True, engines: tuple[str, ...] = ("docs",)) -> Metrics:
    """The metrics of the worker in `place`, whose engines are `up` and have so many `calls` in flight."""
    made = Metrics("1.2.3", workers=WorkerSnapshots(folder, place))
    made.declare_methods(["retrieve"])
    made.declare_engines(engines, CALL_KINDS)
    made.watch_engines(lambda: [EngineState(engine, up, calls) for engine in engines])
    made.publish()
    return made


async def samples(metrics: Metrics) -> list[Sample]:
    """Every sample in a scrape of this worker."""
    text, _ = await metrics.exposition.text(OPENMETRICS)
    return [sample for family in text_string_to_metric_families(text.decode()) for sample in family.samples]


async def scraped(metrics: Metrics, name: str, **labels: str) -> float | None:
    """The value of a series in a scrape of this worker, None if it does not exist."""
    found = [one.value for one in await samples(metrics) if (one.name, one.labels) == (f"rcp_gateway_{name}", labels)]
    return found[0] if found else None


async def test_workers_are_one_whole(tmp_path: Path) -> None:
    """Counts and calls in flight add up; an engine is up if it is for every worker."""
    one, two = worker(tmp_path, 0, calls=3), worker(tmp_path, 1, calls=4, up=False)
    one.engine_call("docs", "ok", 0.1)
    two.engine_call("docs", "ok", 0.1)
    two.answers.confidence("docs", 0.5)
    one.requests_in_flight.inc()
    two.requests_in_flight.inc(2)
    two.publish()
    assert await scraped(one, "legs_total", engine="docs", outcome="ok") == 2
    assert await scraped(one, "leg_duration_seconds_bucket", engine="docs", outcome="ok", le="0.1") == 2
    assert await scraped(one, "top_confidence_sum", engine="docs") == 0.5
    assert await scraped(one, "requests_in_flight") == 3
    assert await scraped(one, "engine_in_flight", engine="docs") == 7
    assert await scraped(one, "engine_up", engine="docs") == 0
    assert await scraped(two, "legs_total", engine="docs", outcome="ok") == 2
    assert await scraped(one, "build_info", version="1.2.3", compiled="false") == 1


async def test_gauges_end_with_their_worker(tmp_path: Path) -> None:
    """They are gone at the next scrape, its counts stay (B108)."""
    one, two = worker(tmp_path, 0), worker(tmp_path, 1, calls=4, up=False)
    two.requests_in_flight.inc(2)
    two.request("retrieve", "ok", 0.1)
    two.publish()
    forget_gauges(tmp_path, 1)
    assert await scraped(one, "requests_in_flight") == 0
    assert await scraped(one, "engine_in_flight", engine="docs") == 0
    assert await scraped(one, "engine_up", engine="docs") == 1
    assert await scraped(one, "requests_total", method="retrieve", outcome="ok") == 1


async def test_a_successor_goes_on_counting(tmp_path: Path) -> None:
    """Twenty workers in one place: counts never go down, not even before the successor has counted (B106)."""
    one = worker(tmp_path, 0)
    for turn in range(1, 21):
        successor = worker(tmp_path, 1)
        assert await scraped(one, "requests_total", method="retrieve", outcome="ok") == turn - 1
        successor.requests_in_flight.inc()
        successor.request("retrieve", "ok", 0.1)
        successor.publish()
        forget_gauges(tmp_path, 1)
        assert await scraped(one, "requests_total", method="retrieve", outcome="ok") == turn
        assert await scraped(one, "requests_in_flight") == 0
    assert len(list(tmp_path.iterdir())) == 2


async def test_counts_that_a_successor_has_not_declared_yet_stay(tmp_path: Path) -> None:
    """Engines that another gateway lists are found after the start only."""
    one, two = worker(tmp_path, 0, engines=("docs", "found")), worker(tmp_path, 1, engines=("docs", "found"))
    two.engine_call("found", "ok", 0.1)
    two.publish()
    successor = worker(tmp_path, 1)
    assert await scraped(one, "legs_total", engine="found", outcome="ok") == 1
    successor.declare_engines(["found"], CALL_KINDS)
    successor.engine_call("found", "ok", 0.1)
    assert await scraped(successor, "legs_total", engine="found", outcome="ok") == 2


async def test_a_scrape_is_never_ahead_of_the_file(tmp_path: Path) -> None:
    """A worker that was scraped and then killed has left what it showed: the next scrape does not show less."""
    one, two = worker(tmp_path, 0), worker(tmp_path, 1)
    two.request("retrieve", "ok", 0.1)
    assert await scraped(two, "requests_total", method="retrieve", outcome="ok") == 1
    assert await scraped(one, "requests_total", method="retrieve", outcome="ok") == 1


async def test_engines_that_were_removed_are_left_out(tmp_path: Path) -> None:
    """Also where another worker has not applied the reload yet (B111)."""
    one, _ = worker(tmp_path, 0, engines=("docs", "code")), worker(tmp_path, 1, engines=("docs", "code"))
    one.engine_call("docs", "ok", 0.1)
    one.forget_engines(["docs"])
    one.engine_call("docs", "ok", 0.1)
    one.dropped("docs", "excess", 1)
    one.declare_engines(["notes"], CALL_KINDS)
    assert await scraped(one, "legs_total", engine="docs", outcome="ok") is None
    assert await scraped(one, "legs_total", engine="code", outcome="ok") == 0
    assert await scraped(one, "legs_total", engine="notes", outcome="timeout") == 0


async def test_exemplars_of_all_workers_are_shown(tmp_path: Path) -> None:
    """The latest of each bucket."""
    one, two = worker(tmp_path, 0), worker(tmp_path, 1)
    one.request("retrieve", "ok", 0.3, "aa" * 16)
    two.request("retrieve", "ok", 0.3, "bb" * 16)
    two.request("retrieve", "ok", 0.3)
    two.publish()
    found = [(sample.labels["le"], sample.exemplar.labels) for sample in await samples(one) if sample.exemplar]
    assert found == [("0.5", {"trace_id": "bb" * 16})]


def test_a_disk_that_is_full_is_logged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker goes on, and says so again only after a write that succeeded."""
    made = worker(tmp_path, 0)

    def full(path: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with own_log() as log:
        monkeypatch.setattr(Path, "write_bytes", full)
        made.publish()
        made.publish()
    assert [line["event"] for line in log.lines] == ["metrics_not_shared"]
