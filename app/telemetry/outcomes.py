"""How often and how long, by two labels: as plain numbers, or where several workers add up their values.

Telemetry room. It decides which of the two is used. It refuses to know what is counted.
"""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram

from app.telemetry.counts import Exposed
from app.telemetry.shared import is_shared
from app.telemetry.tallies import Tallies


class Outcomes:
    """As Tallies, for several worker processes whose values are added up at the scrape."""

    __slots__ = ("_children", "_counter", "_histogram")

    def __init__(self, counter: Counter, histogram: Histogram) -> None:
        self._counter = counter
        self._histogram = histogram
        self._children: dict[tuple[str, str], tuple[Counter, Histogram]] = {}

    def declare(self, first: str, second: str) -> None:
        key = (first, second)
        if key not in self._children:
            self._children[key] = (self._counter.labels(first, second), self._histogram.labels(first, second))

    def observe(self, first: str, second: str, seconds: float, trace: str | None = None) -> None:
        """As that of Tallies; `trace` is let go, since the files that workers share hold none."""
        children = self._children.get((first, second))
        if children is not None:  # else an engine that has left since
            children[0].inc()
            children[1].observe(seconds)

    def forget(self, engine: str) -> None:
        for key in [key for key in self._children if key[0] == engine]:
            del self._children[key]

    def __repr__(self) -> str:
        return f"<Outcomes {len(self._children)} pairs of labels>"


def outcomes(
    counted: tuple[str, str],
    timed: tuple[str, str],
    labels: tuple[str, str],
    bounds: Sequence[float],
    registry: CollectorRegistry,
) -> Tallies | Outcomes:
    """How often and how long, by two labels; `counted` and `timed` are name and text of the metrics."""
    if is_shared():
        return Outcomes(
            Counter(*counted, labels, registry=registry), Histogram(*timed, labels, buckets=bounds, registry=registry)
        )
    tallies = Tallies(counted, timed, labels, bounds)
    registry.register(Exposed(tallies.families))
    return tallies
