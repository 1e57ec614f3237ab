"""Metrics in plain numbers: buckets, snapshots of several workers, and what prometheus_client makes of them."""

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from app.telemetry.series import CHUNK_SAMPLES, Buckets, MetricRegistry

BOUNDS = (0.001, 0.5, 1.0, 2.5)
LABELS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 1000), max_size=6)


@given(st.lists(st.sampled_from([0.0, 0.001, 0.0011, 0.5, 0.7, 1.0, 2.5, 2.6, 900.0, float("inf"), -1.0])))
def test_a_bucket_is_found_as_by_a_search(values: list[float]) -> None:
    """At the bounds, between and beyond them, after any other value."""
    buckets = Buckets(BOUNDS)
    assert [buckets.place(value) for value in values] == [bisect_left(BOUNDS, value) for value in values]


@given(st.lists(LABELS, min_size=2, max_size=4))
def test_counts_of_workers_add_up(workers: list[dict[str, int]]) -> None:
    """Whatever series each worker has, the sum is that of all."""
    registries = []
    for counts in workers:
        registry = MetricRegistry()
        family = registry.counter("c", "help", ["name"])
        for name, count in counts.items():
            family.labels(name).inc(count)
        registries.append((registry, family))
    _, ours = registries[0]
    values = ours.values()
    for registry, _ in registries[1:]:
        ours.add_worker(values, registry.snapshot(["counter"])["c"])
    assert {labels: numbers[0] for labels, numbers in values.items()} == {
        (name,): sum(counts.get(name, 0) for counts in workers) for counts in workers for name in counts
    }


def test_gauges_of_workers_are_combined_as_declared() -> None:
    """The sum, the smallest or the largest."""
    combined = {}
    for mode in ("sum", "min", "max"):
        one, two = MetricRegistry(), MetricRegistry()
        family = one.gauge("g", "help", workers=mode)  # type: ignore[arg-type]
        family.labels().set(3)
        two.gauge("g", "help").labels().set(2)
        values = family.values()
        family.add_worker(values, two.snapshot(["gauge"])["g"])
        combined[mode] = values[()][0]
    assert combined == {"sum": 5, "min": 2, "max": 3}


def test_a_large_family_is_cut_into_chunks() -> None:
    """Each chunk is small, and together they are the whole."""
    family = MetricRegistry().histogram("h", "help", BOUNDS, ["name"])
    for number in range(100):
        family.labels(str(number)).observe(0.7)
    chunks = list(family.chunks(family.values(), {}))
    assert max(len(chunk.samples) for chunk in chunks) < CHUNK_SAMPLES + len(BOUNDS) + 3
    assert [sample for chunk in chunks for sample in chunk.samples] == family.metric().samples


def test_an_empty_family_is_one_chunk() -> None:
    """Its help and type are shown."""
    assert [chunk.samples for chunk in MetricRegistry().counter("c", "help", ["name"]).chunks({}, {})] == [[]]


def test_removed_series_are_not_found() -> None:
    """What is left is unchanged, and a series that comes back starts with 0."""
    family = MetricRegistry().counter("c", "help", ["engine", "kind"])
    family.labels("a", "x").inc()
    family.labels("b", "x").inc()
    family.remove("engine", {"a"})
    assert family.find("a", "x") is None
    assert family.values() == {("b", "x"): [1.0]}
    assert family.labels("a", "x").value == 0
