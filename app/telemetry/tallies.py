"""Counts and durations that share their labels, kept in plain numbers and turned into metrics when somebody scrapes.

For what is observed many times per request: a tenth of the cost of a counter and a histogram of prometheus_client,
whose values are locked and scanned for. It decides how they are kept; several processes that add up their values need
prometheus_client's own (`Outcomes` in outcomes.py). It refuses to know what is counted.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Tally:
    """One pair of labels: how often in each bucket (the last has no bound), and the sum of the seconds."""

    __slots__ = ("counts", "seconds")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets
        self.seconds = 0.0

    def __repr__(self) -> str:
        return f"<Tally of {sum(self.counts)} in {self.seconds:g} s>"


class Tallies:
    """A counter and a histogram that share two labels, for a process that scrapes itself."""

    __slots__ = ("_bounds", "_counted", "_labels", "_tallies", "_timed")

    def __init__(
        self, counted: tuple[str, str], timed: tuple[str, str], labels: tuple[str, str], bounds: Sequence[float]
    ) -> None:
        """`counted` and `timed`: name and text of the two metrics; `bounds` of the buckets in seconds, rising."""
        self._counted = counted
        self._timed = timed
        self._labels = labels
        self._bounds = list(bounds)
        self._tallies: dict[tuple[str, str], Tally] = {}

    def declare(self, first: str, second: str) -> None:
        """Let the series of these labels exist."""
        self._tallies.setdefault((first, second), Tally(len(self._bounds) + 1))

    def observe(self, first: str, second: str, seconds: float) -> None:
        """One more, and how long it took; nothing for labels that are forgotten, or were never declared."""
        tally = self._tallies.get((first, second))
        if tally is not None:
            tally.counts[bisect_left(self._bounds, seconds)] += 1
            tally.seconds += seconds

    def forget(self, first: str) -> None:
        """Let every series with this first label end."""
        for key in [key for key in self._tallies if key[0] == first]:
            del self._tallies[key]

    def families(self) -> Iterator[Metric]:
        """Both metrics as they are now."""
        count = CounterMetricFamily(*self._counted, labels=self._labels)
        duration = HistogramMetricFamily(*self._timed, labels=self._labels)
        edges = [*map(floatToGoString, self._bounds), "+Inf"]
        for labels, tally in self._tallies.items():
            below = list(accumulate(tally.counts))
            count.add_metric(labels, below[-1])
            duration.add_metric(labels, list(zip(edges, map(float, below), strict=True)), tally.seconds)
        yield count
        yield duration

    def __repr__(self) -> str:
        return f"<Tallies of {len(self._tallies)} pairs of labels>"


class Exposed(Collector):
    """Shows Tallies to whoever scrapes."""

    def __init__(self, tallies: Tallies) -> None:
        self._tallies = tallies

    def collect(self) -> Iterator[Metric]:
        """Both metrics as they are now."""
        return self._tallies.families()
