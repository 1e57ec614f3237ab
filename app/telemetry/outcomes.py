"""How often and how long, by two labels: as plain numbers, or where several workers add up their values.

Telemetry room. It decides which of the two is used. It refuses to know what is counted.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import Exemplar
from prometheus_client.utils import floatToGoString

from app.telemetry.labelled_metrics import LabelledMetrics
from app.telemetry.plain_metrics import Exposed
from app.telemetry.worker_metrics import is_shared


class Outcomes:
    """As Tallies, for several worker processes whose values are added up at the scrape. Of requests that belong to a
    trace each worker knows its own alone, the latest of each bucket: files hold none."""

    __slots__ = ("_bounds", "_children", "_clock", "_counter", "_edges", "_examples", "_histogram", "_labels", "_timed")

    def __init__(
        self,
        counter: Counter,
        histogram: Histogram,
        labels: tuple[str, str],
        bounds: Sequence[float],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`labels`: their names. `bounds` of the histogram's buckets in seconds, rising; `clock` gives Unix time."""
        self._counter = counter
        self._histogram = histogram
        self._labels = labels
        self._bounds = list(bounds)
        (self._timed,) = (metric.name for metric in histogram.describe())
        self._edges = [*map(floatToGoString, self._bounds), "+Inf"]
        self._clock = clock
        self._children: dict[tuple[str, str], tuple[Counter, Histogram]] = {}
        self._examples: dict[tuple[str, str, str], Exemplar] = {}

    def declare(self, first: str, second: str) -> None:
        key = (first, second)
        if key not in self._children:
            self._children[key] = (self._counter.labels(first, second), self._histogram.labels(first, second))

    def observe(self, first: str, second: str, seconds: float, trace: str | None = None) -> None:
        """As that of Tallies."""
        children = self._children.get((first, second))
        if children is not None:  # else an engine that has left since
            children[0].inc()
            children[1].observe(seconds)
            if trace is not None:
                edge = self._edges[bisect_left(self._bounds, seconds)]
                self._examples[first, second, edge] = Exemplar({"trace_id": trace}, seconds, self._clock())

    def forget(self, engine: str) -> None:
        for key in [key for key in self._children if key[0] == engine]:
            del self._children[key]
        for example in [example for example in self._examples if example[0] == engine]:
            del self._examples[example]

    def illustrated(self, metric: Metric) -> None:
        """Put what this worker knows of traces to the buckets of `metric`, if that is its histogram."""
        if not self._examples or metric.name != self._timed:
            return
        for at, sample in enumerate(metric.samples):
            if "le" in sample.labels:
                first, second, edge = (sample.labels[name] for name in (*self._labels, "le"))
                metric.samples[at] = sample._replace(exemplar=self._examples.get((first, second, edge)))

    def __repr__(self) -> str:
        return f"<Outcomes {len(self._children)} pairs of labels>"


def outcomes(
    counted: tuple[str, str],
    timed: tuple[str, str],
    labels: tuple[str, str],
    bounds: Sequence[float],
    registry: CollectorRegistry,
) -> LabelledMetrics | Outcomes:
    """How often and how long, by two labels; `counted` and `timed` are name and text of the metrics."""
    if is_shared():
        return Outcomes(
            Counter(*counted, labels, registry=registry),
            Histogram(*timed, labels, buckets=bounds, registry=registry),
            labels,
            bounds,
        )
    tallies = LabelledMetrics(counted, timed, labels, bounds)
    registry.register(Exposed(tallies.families))
    return tallies
