"""Plain tallies show to a scrape exactly what a counter and a histogram of prometheus_client show."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics

from app.telemetry.labelled_metrics import LabelledMetrics, LabelledSeries
from app.telemetry.plain_metrics import Exposed

BOUNDS = (0.001, 0.5, 1.0, 2.5)
LABELS = [("docs", "ok"), ("docs", "timeout"), ("code", "ok")]
COUNTED, TIMED = ("x_legs", "Calls."), ("x_leg_seconds", "Time.")


def tallied(seen: list[tuple[int, float]]) -> bytes:
    """The exposition of tallies after these observations."""
    registry = CollectorRegistry()
    tallies = LabelledMetrics(COUNTED, TIMED, ("engine", "outcome"), BOUNDS)
    registry.register(Exposed(tallies.families))
    for labels in LABELS:
        tallies.declare(*labels)
    for index, seconds in seen:
        tallies.observe(*LABELS[index], seconds)
    return generate_latest(registry)


def counted(seen: list[tuple[int, float]]) -> bytes:
    """The same by prometheus_client's own metrics."""
    registry = CollectorRegistry()
    disable_created_metrics()
    counter = Counter(*COUNTED, ["engine", "outcome"], registry=registry)
    histogram = Histogram(*TIMED, ["engine", "outcome"], buckets=BOUNDS, registry=registry)
    for labels in LABELS:
        counter.labels(*labels)
        histogram.labels(*labels)
    for index, seconds in seen:
        counter.labels(*LABELS[index]).inc()
        histogram.labels(*LABELS[index]).observe(seconds)
    return generate_latest(registry)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0.0, 0.001, 0.0011, 0.5, 0.7, 1.0, 2.5, 2.6, 900.0]))))
def test_a_scrape_sees_no_difference(seen: list[tuple[int, float]]) -> None:
    """Byte for byte, at the bounds of buckets and beyond the last one too, and where nothing was observed."""
    assert tallied(seen) == counted(seen)


def series(tallies: LabelledMetrics) -> dict[str, float]:
    """The counts by engine."""
    counts = next(tallies.families())
    return {sample.labels["engine"]: sample.value for sample in counts.samples}


def test_declaring_again_keeps_what_was_counted() -> None:
    """A series that is there is not begun anew."""
    tallies = LabelledMetrics(COUNTED, TIMED, ("engine", "outcome"), BOUNDS)
    tallies.declare("docs", "ok")
    tallies.observe("docs", "ok", 0.7)
    tallies.declare("docs", "ok")
    assert series(tallies) == {"docs": 1}


def test_what_is_forgotten_is_gone() -> None:
    """A forgotten label has no series, and what comes too late for it, or was never declared, adds none."""
    tallies = LabelledMetrics(COUNTED, TIMED, ("engine", "outcome"), BOUNDS)
    for labels in LABELS:
        tallies.declare(*labels)
    tallies.forget("docs")
    tallies.observe("docs", "ok", 0.1)
    tallies.observe("stranger", "ok", 0.1)
    assert series(tallies) == {"code": 0}


def test_the_latest_trace_of_each_bucket_is_shown() -> None:
    """OpenMetrics shows id, seconds and time of the latest that had a trace; the older format none of it."""
    now = [1000.5]
    registry = CollectorRegistry()
    tallies = LabelledMetrics(COUNTED, TIMED, ("engine", "outcome"), BOUNDS, lambda: now[0])
    registry.register(Exposed(tallies.families))
    tallies.declare("docs", "ok")
    for trace, seconds in (("a" * 32, 0.7), ("b" * 32, 0.6), (None, 0.8), ("c" * 32, 99.0)):
        tallies.observe("docs", "ok", seconds, trace)
        now[0] += 1
    shown = [line.partition(" # ")[2] for line in openmetrics(registry).decode().splitlines() if "_bucket" in line]
    assert shown == ["", "", f'{{trace_id="{"b" * 32}"}} 0.6 1001.5', "", f'{{trace_id="{"c" * 32}"}} 99.0 1003.5']
    assert b"trace_id" not in generate_latest(registry)


def test_without_traces_nothing_is_kept() -> None:
    """Who sends no trace costs no memory."""
    tallies = LabelledMetrics(COUNTED, TIMED, ("engine", "outcome"), BOUNDS)
    tallies.declare("docs", "ok")
    tallies.observe("docs", "ok", 0.7)
    assert tallies._tallies["docs", "ok"].examples is None


def test_what_is_counted_can_be_looked_at() -> None:
    """In an incident: how often and how long."""
    tally = LabelledSeries(3)
    tally.counts[1] += 2
    tally.seconds = 0.25
    assert repr(tally) == "<Tally of 2 in 0.25 s>"
    assert repr(LabelledMetrics(COUNTED, TIMED, ("a", "b"), BOUNDS)) == "<Tallies of 0 pairs of labels>"
