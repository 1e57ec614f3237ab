"""Counters, gauges, summaries and histograms, kept as plain numbers in this process.

prometheus_client locks every value, which costs a hundred times as much as an addition. Its exposition is used to
write the numbers down, see `exposition.py`; `worker_snapshots.py` shares them between workers.
"""

import marshal
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from math import inf
from typing import Final, Generic, Literal, TypeVar, final

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    Exemplar,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

CHUNK_SAMPLES: Final = 64
"""Samples that are written in one piece, about half a millisecond of work."""

Labels = tuple[str, ...]
Numbers = list[float]
"""The numbers of one series: the value; or count and sum; or the count of each bucket and the sum."""

Kind = Literal["counter", "gauge", "summary", "histogram"]
WorkerMode = Literal["sum", "min", "max"]
"""How the values of several workers become one."""

Examples = dict[tuple[Labels, int], tuple[str, float, float]]
"""(labels, bucket) -> the latest traced observation in it: trace id, value, Unix time."""

Bucket = tuple[str, float] | tuple[str, float, Exemplar]
"""Upper bound, number of values up to it, and perhaps an exemplar."""

FamilySnapshot = tuple[bytes, bytes, Examples]
"""The labels of all series (marshal), their numbers as doubles in the same order, and the exemplars."""

Snapshot = dict[str, FamilySnapshot]
"""By metric name."""


@final
class Buckets:
    """Rising upper bounds of a histogram. A value on a bound belongs below it, as in Prometheus; the last has none."""

    __slots__ = ("_above", "_at", "_up_to", "bounds")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = list(bounds)
        self._at = 0
        self._above = inf  # nothing is above infinity, so the first value is searched for
        self._up_to = inf

    def place(self, value: float) -> int:
        """The index of the bucket of this value."""
        # Most values fall where the last one did, and two comparisons cost less than a search.
        if self._above < value <= self._up_to:
            return self._at
        at = bisect_left(self.bounds, value)
        self._at = at
        self._above = self.bounds[at - 1] if at else -inf
        self._up_to = self.bounds[at] if at < len(self.bounds) else inf
        return at

    def __repr__(self) -> str:
        return f"<Buckets: {len(self.bounds)} bounds, last in {self._at}>"


class Number:
    """One counter or gauge."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers

    @property
    def value(self) -> float:
        """The value now."""
        return self.numbers[0]

    def inc(self, amount: float = 1.0) -> None:
        """Add `amount`."""
        self.numbers[0] += amount

    def dec(self, amount: float = 1.0) -> None:
        """Subtract `amount`; gauges only."""
        self.numbers[0] -= amount

    def set(self, value: float) -> None:
        """Replace the value; gauges only."""
        self.numbers[0] = value

    def __repr__(self) -> str:
        return f"<Number {self.numbers[0]:g}>"


class CountAndSum:
    """One summary: how many values, and their sum."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers

    def observe(self, value: float) -> None:
        """Add one value."""
        self.numbers[0] += 1
        self.numbers[1] += value

    def __repr__(self) -> str:
        return f"<CountAndSum {self.numbers[0]:g} values>"


class Distribution:
    """One histogram: how many values in each bucket, and their sum."""

    __slots__ = ("_buckets", "_clock", "examples", "numbers")

    def __init__(self, numbers: Numbers, buckets: Buckets, clock: Callable[[], float]) -> None:
        """`clock` gives Unix time."""
        self.numbers = numbers
        self.examples: dict[int, tuple[str, float, float]] | None = None
        self._buckets = buckets
        self._clock = clock

    def observe(self, value: float, trace: str | None = None) -> None:
        """Add one value. `trace`: the id of the sampled trace that it belongs to, which becomes an exemplar."""
        bucket = self._buckets.place(value)
        self.numbers[bucket] += 1
        self.numbers[-1] += value
        if trace is not None:
            if self.examples is None:
                self.examples = {}
            self.examples[bucket] = (trace, value, self._clock())

    def __repr__(self) -> str:
        return f"<Distribution of {sum(self.numbers[:-1]):g} values>"


S = TypeVar("S", Number, CountAndSum, Distribution)


class Family(Generic[S]):
    """All series of one metric."""

    __slots__ = ("_encoded_labels", "_inherited", "_make", "_width", "bounds", "help", "kind", "label_names", "name",
                 "series", "unbucketed", "workers")  # fmt: skip

    def __init__(
        self,
        kind: Kind,
        name: str,
        help_: str,
        label_names: Sequence[str],
        make: Callable[[Numbers], S],
        bounds: Sequence[float] = (),
        workers: WorkerMode = "sum",
        inherited: dict[Labels, Numbers] | None = None,
        unbucketed: str = "",
    ) -> None:
        """`name` without `_total`. `inherited`: what the previous worker in our place had counted. `unbucketed`: value
        of the last label whose histograms are exposed without buckets but the one that holds all."""
        self.kind = kind
        self.name = name
        self.help = help_
        self.label_names = tuple(label_names)
        self.bounds = tuple(bounds)
        self.workers = workers
        self.unbucketed = unbucketed
        self.series: dict[Labels, S] = {}
        self._make: Callable[[Numbers], S] = make
        self._width = {"counter": 1, "gauge": 1, "summary": 2, "histogram": len(bounds) + 2}[kind]
        self._inherited = inherited or {}
        self._encoded_labels: bytes | None = None

    def labels(self, *values: str) -> S:
        """The series with these label values, created with 0 if it does not exist."""
        found = self.series.get(values)
        if found is None:
            found = self.series[values] = self._make(self._inherited.pop(values, [0.0] * self._width))
            self._encoded_labels = None
        return found

    def find(self, *values: str) -> S | None:
        """The series with these label values, if it exists: one that was removed must not come back."""
        return self.series.get(values)

    def remove(self, label: str, values: Collection[str]) -> None:
        """Remove every series in which `label` has one of these values."""
        at = self.label_names.index(label)
        self.series = {labels: one for labels, one in self.series.items() if labels[at] not in values}
        self._inherited = {labels: one for labels, one in self._inherited.items() if labels[at] not in values}
        self._encoded_labels = None

    def discard(self, labels: Labels) -> None:
        """Remove one series."""
        del self.series[labels]
        self._encoded_labels = None

    def values(self) -> dict[Labels, Numbers]:
        """A copy of all numbers, including what was inherited and is not declared yet."""
        return {labels: list(one.numbers) for labels, one in self.series.items()} | {
            labels: list(numbers) for labels, numbers in self._inherited.items()
        }

    def examples(self) -> Examples:
        """A copy of all exemplars."""
        found: Examples = {}
        for labels, one in self.series.items():
            if isinstance(one, Distribution) and one.examples:
                for bucket, example in one.examples.items():
                    found[labels, bucket] = example
        return found

    def snapshot(self) -> FamilySnapshot:
        """Everything as bytes that another worker can read, including what was inherited and is not declared yet."""
        if self._encoded_labels is None:  # labels change with the configuration only, and are the costly part
            self._encoded_labels = marshal.dumps((*self.series, *self._inherited))
        numbers = chain((one.numbers for one in self.series.values()), self._inherited.values())
        examples = self.examples() if self.kind == "histogram" else {}
        return self._encoded_labels, array("d", chain.from_iterable(numbers)).tobytes(), examples

    def add_worker(self, values: dict[Labels, Numbers], snapshot: FamilySnapshot) -> None:
        """Combine the numbers of another worker into `values`."""
        for labels, numbers in decoded(snapshot, self._width):
            ours = values.get(labels)
            if ours is None:
                values[labels] = numbers
            elif self.workers == "sum":
                for at, number in enumerate(numbers):
                    ours[at] += number
            else:
                ours[0] = min(ours[0], numbers[0]) if self.workers == "min" else max(ours[0], numbers[0])

    def chunks(self, values: Mapping[Labels, Numbers], examples: Examples) -> Iterator[Metric]:
        """The family with these numbers, in metrics of about CHUNK_SAMPLES samples each; at least one, if empty."""
        metric, some = self._metric(), False
        for labels, numbers in values.items():
            if len(metric.samples) >= CHUNK_SAMPLES:
                yield metric
                metric, some = self._metric(), True
            self._add(metric, labels, numbers, examples)
        if metric.samples or not some:
            yield metric

    def metric(self) -> Metric:
        """The family as it is now, in one piece."""
        metric, examples = self._metric(), self.examples()
        for labels, one in self.series.items():
            self._add(metric, labels, one.numbers, examples)
        return metric

    def _metric(self) -> Metric:
        made = {
            "counter": CounterMetricFamily,
            "gauge": GaugeMetricFamily,
            "summary": SummaryMetricFamily,
            "histogram": HistogramMetricFamily,
        }[self.kind]
        metric: Metric = made(self.name, self.help, labels=self.label_names)
        return metric

    def _add(self, metric: Metric, labels: Labels, numbers: Numbers, examples: Examples) -> None:
        if isinstance(metric, CounterMetricFamily | GaugeMetricFamily):
            metric.add_metric(labels, numbers[0])
        elif isinstance(metric, SummaryMetricFamily):
            metric.add_metric(labels, int(numbers[0]), numbers[1])
        elif isinstance(metric, HistogramMetricFamily):
            metric.add_metric(labels, self._buckets(labels, numbers, examples), numbers[-1])

    def _buckets(self, labels: Labels, numbers: Numbers, examples: Examples) -> list[Bucket]:
        if self.unbucketed and labels[-1] == self.unbucketed:
            return [("+Inf", sum(numbers[:-1]))]
        found: list[Bucket] = []
        for at, count in enumerate(accumulate(numbers[:-1])):
            edge = repr(float(self.bounds[at])) if at < len(self.bounds) else "+Inf"
            example = examples.get((labels, at)) if examples else None
            if example is None:
                found.append((edge, count))
            else:
                trace, value, when = example
                found.append((edge, count, Exemplar({"trace_id": trace}, value, when)))
        return found

    def __repr__(self) -> str:
        return f"<Family {self.name} of {len(self.series)} series>"


def decoded(snapshot: FamilySnapshot, width: int) -> Iterator[tuple[Labels, Numbers]]:
    """The series of a snapshot, each of which has `width` numbers."""
    labels, numbers = marshal.loads(snapshot[0]), array("d")
    numbers.frombytes(snapshot[1])
    for at, values in enumerate(labels):
        yield values, list(numbers[at * width : (at + 1) * width])


def replace_all(family: Family[Number], values: Mapping[Labels, float]) -> None:
    """Let a family of gauges have these series and values, and no others."""
    if family.series.keys() != values.keys():
        for labels in [labels for labels in family.series if labels not in values]:
            family.discard(labels)
    for labels, value in values.items():
        family.labels(*labels).set(value)


class MetricRegistry(Collector):
    """Every metric family of this process, in the order of declaration."""

    def __init__(self, inherited: Snapshot | None = None, clock: Callable[[], float] = time.time) -> None:
        """`inherited`: what the previous worker in our place had counted. `clock` gives Unix time."""
        self.families: list[Family[Number] | Family[CountAndSum] | Family[Distribution]] = []
        self.refreshers: list[Callable[[], None]] = []
        """Called before the numbers are read, to update gauges that nobody keeps current."""
        self._inherited = inherited or {}
        self._clock = clock

    def counter(self, name: str, help_: str, labels: Sequence[str] = ()) -> Family[Number]:
        """A family of counters; `name` without `_total`."""
        family = Family("counter", name, help_, labels, Number, inherited=self._left(name, 1))
        self.families.append(family)
        return family

    def gauge(self, name: str, help_: str, labels: Sequence[str] = (), workers: WorkerMode = "sum") -> Family[Number]:
        """A family of gauges; `workers` says how the values of several workers are combined."""
        family = Family("gauge", name, help_, labels, Number, workers=workers)
        self.families.append(family)
        return family

    def summary(self, name: str, help_: str, labels: Sequence[str] = ()) -> Family[CountAndSum]:
        """A family of summaries without quantiles."""
        family = Family("summary", name, help_, labels, CountAndSum, inherited=self._left(name, 2))
        self.families.append(family)
        return family

    def histogram(
        self, name: str, help_: str, bounds: Sequence[float], labels: Sequence[str] = (), unbucketed: str = ""
    ) -> Family[Distribution]:
        """A family of histograms with these rising upper bounds; see Family for `unbucketed`."""
        buckets, clock = Buckets(bounds), self._clock
        family = Family(
            "histogram",
            name,
            help_,
            labels,
            lambda numbers: Distribution(numbers, buckets, clock),
            bounds,
            inherited=self._left(name, len(bounds) + 2),
            unbucketed=unbucketed,
        )
        self.families.append(family)
        return family

    def _left(self, name: str, width: int) -> dict[Labels, Numbers]:
        return dict(decoded(self._inherited[name], width)) if name in self._inherited else {}

    def refresh(self) -> None:
        """Update the gauges that are read at a scrape."""
        for refresher in self.refreshers:
            refresher()

    def snapshot(self, kinds: Iterable[Kind]) -> Snapshot:
        """The numbers of all families of these kinds."""
        return {family.name: family.snapshot() for family in self.families if family.kind in kinds}

    def collect(self) -> Iterator[Metric]:
        """For prometheus_client: every family as it is now in this process."""
        self.refresh()
        for family in self.families:
            yield family.metric()

    def __repr__(self) -> str:
        return f"<MetricRegistry of {len(self.families)} families>"
