"""Metrics of several workers as if they were one: what each wrote into a common folder, read together at a scrape.

Telemetry room. It decides whose files are whose and what becomes of them when a worker dies. It refuses to know which
metrics there are.
"""

import os
from collections.abc import Callable, Container, Iterator

from prometheus_client import Metric, values
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable that names the common folder; without it a process counts for itself."""

OF_ENGINES = ("engine", "other")
"""Labels whose values are engines."""


def is_shared() -> bool:
    """Whether this process is one of several workers."""
    return FOLDER in os.environ


def share(place: int) -> None:
    """Let this process write what it counts where all workers do, as the one in this place.

    To be called before there is a metric. Whoever had the place before left its counts behind, and they go on growing:
    they never go down, and there are no more files than places.
    """
    forget_worker(place)
    # prometheus_client has no documented way to name a process by anything but its pid, which would leave one set of
    # files for every worker that ever ran. pyproject.toml therefore bounds its version from above.
    values.ValueClass = values.MultiProcessValue(lambda: place)  # type: ignore[no-untyped-call]


def forget_worker(place: int) -> None:
    """The worker in this place has ended: what it had under way is no more. Its counts stay, as they must."""
    mark_process_dead(place, os.environ[FOLDER])  # type: ignore[no-untyped-call]


class AllWorkers(Collector):
    """What all workers wrote, without the series of engines that are no more; files only grow."""

    def __init__(
        self, engines: Callable[[], Container[str]], illustrate: Callable[[Metric], None] = lambda metric: None
    ) -> None:
        """`illustrate` adds what this process alone knows of a metric."""
        self._illustrate = illustrate
        self._whole = MultiProcessCollector(None, os.environ[FOLDER])  # type: ignore[no-untyped-call]
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        """Every metric of every worker."""
        engines = self._engines()
        for metric in self._whole.collect():  # type: ignore[no-untyped-call]
            metric.samples = [
                sample
                for sample in metric.samples
                if all(sample.labels.get(label) in engines for label in OF_ENGINES if label in sample.labels)
            ]
            self._illustrate(metric)
            yield metric
