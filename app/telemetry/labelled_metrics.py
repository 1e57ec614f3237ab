"""Counts and durations that share their labels, kept in plain numbers and turned into metrics when somebody scrapes.

For what is observed many times per request: a tenth of the cost of a counter and a histogram of prometheus_client,
whose values are locked and scanned for. It decides how they are kept; several processes that add up their values need
prometheus_client's own (`Outcomes` in outcomes.py). It refuses to know what is counted.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, Exemplar, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from app.telemetry.buckets import Buckets

Bucket = tuple[str, float] | tuple[str, float, Exemplar]
"""Upper bound, how many up to it, and perhaps one of them."""


class LabelledSeries:
    """One pair of labels: how often in each bucket (the last has no bound), and the sum of the seconds.

    `examples`: of some buckets the latest that belonged to a trace: (its id, its seconds, when in Unix time).
    """

    __slots__ = ("counts", "examples", "seconds")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets
        self.examples: dict[int, tuple[str, float, float]] | None = None
        self.seconds = 0.0

    def buckets(self, edges: Sequence[str]) -> list[Bucket]:
        """The buckets as a scrape sees them, each with its example if it has one."""
        examples = self.examples or {}
        found: list[Bucket] = []
        for at, count in enumerate(accumulate(self.counts)):
            if at in examples:
                trace, seconds, when = examples[at]
                found.append((edges[at], float(count), Exemplar({"trace_id": trace}, seconds, when)))
            else:
                found.append((edges[at], float(count)))
        return found

    def __repr__(self) -> str:
        return f"<Tally of {sum(self.counts)} in {self.seconds:g} s>"


class LabelledMetrics:
    """A counter and a histogram that share two labels, for a process that scrapes itself."""

    __slots__ = ("_clock", "_counted", "_labels", "_scale", "_tallies", "_timed")

    def __init__(
        self,
        counted: tuple[str, str],
        timed: tuple[str, str],
        labels: tuple[str, str],
        bounds: Sequence[float],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`counted` and `timed`: name and text of the two metrics; `bounds` of the buckets in seconds, rising.

        `clock` gives Unix time, for what belonged to a trace.
        """
        self._clock = clock
        self._counted = counted
        self._timed = timed
        self._labels = labels
        self._scale = Buckets(bounds)
        self._tallies: dict[tuple[str, str], LabelledSeries] = {}

    def declare(self, first: str, second: str) -> None:
        """Let the series of these labels exist."""
        self._tallies.setdefault((first, second), LabelledSeries(len(self._scale.bounds) + 1))

    def observe(self, first: str, second: str, seconds: float, trace: str | None = None) -> None:
        """One more, how long it took, and the id of its trace if it has one.

        Nothing for labels that are forgotten, or were never declared.
        """
        tally = self._tallies.get((first, second))
        if tally is not None:
            bucket = self._scale.place(seconds)
            tally.counts[bucket] += 1
            tally.seconds += seconds
            if trace is not None:
                if tally.examples is None:
                    tally.examples = {}
                tally.examples[bucket] = (trace, seconds, self._clock())

    def forget(self, first: str) -> None:
        """Let every series with this first label end."""
        for key in [key for key in self._tallies if key[0] == first]:
            del self._tallies[key]

    def families(self) -> Iterator[Metric]:
        """Both metrics as they are now."""
        count = CounterMetricFamily(*self._counted, labels=self._labels)
        duration = HistogramMetricFamily(*self._timed, labels=self._labels)
        edges = [*map(floatToGoString, self._scale.bounds), "+Inf"]
        for labels, tally in self._tallies.items():
            buckets = tally.buckets(edges)
            count.add_metric(labels, buckets[-1][1])
            duration.add_metric(labels, buckets, tally.seconds)
        yield count
        yield duration

    def __repr__(self) -> str:
        return f"<Tallies of {len(self._tallies)} pairs of labels>"
