"""Counters, gauges and histograms in plain numbers, turned into metrics when somebody scrapes.

For what is counted with every request, for a process that scrapes itself: prometheus_client's own lock each value and
come to a hundred times as much; several workers need those, since theirs add up. It decides which of the two are used,
and that a series whose labels are forgotten is gone. It refuses to know what is counted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from app.telemetry.buckets import Buckets
from app.telemetry.worker_metrics import is_shared


class Series:
    """One number: of a counter it only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """So many more."""
        self.value += amount

    def set(self, value: float) -> None:
        """Let it be `value`."""
        self.value = value

    def dec(self, amount: float = 1.0) -> None:
        """So many less."""
        self.value -= amount

    def __repr__(self) -> str:
        return f"<Series {self.value:g}>"


class Counts:
    """A counter or a gauge: one series for each set of labels that was asked for."""

    __slots__ = ("_help", "_labels", "_name", "_series")

    def __init__(self, name: str, help_: str, labels: Sequence[str] = ()) -> None:
        self._name = name
        self._help = help_
        self._labels = tuple(labels)
        self._series: dict[tuple[str, ...], Series] = {}

    def labels(self, *values: str) -> Series:
        """The series with these labels, which exists from now on."""
        series = self._series.get(values)
        if series is None:
            series = self._series[values] = Series()
        return series

    def remove_by_labels(self, labels: Mapping[str, str]) -> None:
        """Let every series with these labels end."""
        wanted = [(self._labels.index(name), value) for name, value in labels.items()]
        for values in [values for values in self._series if all(values[at] == value for at, value in wanted)]:
            del self._series[values]

    def families(self) -> Iterator[Metric]:
        """The counter as it is now."""
        counter = CounterMetricFamily(self._name, self._help, labels=self._labels)
        for values, series in self._series.items():
            counter.add_metric(values, series.value)
        yield counter

    def levels(self) -> Iterator[Metric]:
        """The gauge as it is now."""
        gauge = GaugeMetricFamily(self._name, self._help, labels=self._labels)
        for values, series in self._series.items():
            gauge.add_metric(values, series.value)
        yield gauge

    def __repr__(self) -> str:
        return f"<Counts {self._name} of {len(self._series)} series>"


class Durations:
    """A histogram without labels."""

    __slots__ = ("_counts", "_help", "_name", "_scale", "_sum")

    def __init__(self, name: str, help_: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._help = help_
        self._scale = Buckets(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """One more, and how long it took."""
        self._counts[self._scale.place(seconds)] += 1
        self._sum += seconds

    def families(self) -> Iterator[Metric]:
        """The histogram as it is now."""
        edges = [*map(floatToGoString, self._scale.bounds), "+Inf"]
        family = HistogramMetricFamily(self._name, self._help, labels=())
        family.add_metric((), list(zip(edges, map(float, accumulate(self._counts)), strict=True)), self._sum)
        yield family

    def __repr__(self) -> str:
        return f"<Durations {self._name} of {sum(self._counts)}>"


class Exposed(Collector):
    """Shows what is kept in plain numbers to whoever scrapes."""

    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        return self._families()


def counter(name: str, help_: str, labels: Sequence[str], registry: CollectorRegistry) -> Counts | Counter:
    """A counter with these labels."""
    if is_shared():
        return Counter(name, help_, labels, registry=registry)
    counts = Counts(name, help_, labels)
    registry.register(Exposed(counts.families))
    return counts


def lone_counter(name: str, help_: str, registry: CollectorRegistry) -> Series | Counter:
    """A counter of one series."""
    if is_shared():
        return Counter(name, help_, registry=registry)
    counts = Counts(name, help_)
    registry.register(Exposed(counts.families))
    return counts.labels()


def lone_gauge(name: str, help_: str, registry: CollectorRegistry) -> Series | Gauge:
    """A gauge of one series; of several workers the sum."""
    if is_shared():
        return Gauge(name, help_, registry=registry, multiprocess_mode="livesum")
    counts = Counts(name, help_)
    registry.register(Exposed(counts.levels))
    return counts.labels()


def lone_histogram(
    name: str, help_: str, bounds: Sequence[float], registry: CollectorRegistry
) -> Durations | Histogram:
    """A histogram of one series; `bounds` of the buckets, rising."""
    if is_shared():
        return Histogram(name, help_, buckets=bounds, registry=registry)
    durations = Durations(name, help_, bounds)
    registry.register(Exposed(durations.families))
    return durations
