"""Writes the metrics as text for a scraper, in slices, so that a scrape never holds up the event loop."""

import asyncio
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Final

from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from app.telemetry.series import CountAndSum, Distribution, Family, MetricRegistry, Number
from app.telemetry.worker_snapshots import WorkerSnapshot, WorkerSnapshots

Encode = Callable[[Collector], bytes]

END_OF_OPENMETRICS: Final = b"# EOF\n"
ENGINE_LABEL: Final = "engine"


class OneMetric(Collector):
    """A single metric as prometheus_client's encoders take it."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        """The metric."""
        return (self._metric,)


class Exposition:
    """The text of the metrics. One scrape under way serves everybody who asks in the meantime."""

    __slots__ = ("_engines", "_registry", "_snapshots", "_under_way")

    def __init__(
        self, registry: MetricRegistry, engines: Container[str], snapshots: WorkerSnapshots | None = None
    ) -> None:
        """`engines`: ids of the engines in use. Workers learn of a reload at different times, so series of other
        engines are left out. `snapshots`: the numbers of the other workers, if there are any."""
        self._registry = registry
        self._engines = engines
        self._snapshots = snapshots
        self._under_way: dict[str, asyncio.Task[bytes]] = {}

    async def text(self, accept: str) -> tuple[bytes, str]:
        """The metrics in the best format that the header `accept` allows, and its content type."""
        try:
            encode, content_type = choose_encoder(accept)
        except (ValueError, TypeError):  # a malformed version
            encode, content_type = choose_encoder("")
        task = self._under_way.get(content_type)
        if task is None:
            task = self._under_way[content_type] = asyncio.create_task(self._written(encode))
            task.add_done_callback(lambda _: self._under_way.pop(content_type))
        return await asyncio.shield(task), content_type  # one caller that leaves must not end it for the others

    async def _written(self, encode: Encode) -> bytes:
        self._registry.refresh()
        await asyncio.sleep(0)
        workers = await self._other_workers()
        parts: list[bytes] = []
        for family in self._registry.families:
            first, chunks = True, self._chunks(family, workers)
            await asyncio.sleep(0)  # copying thousands of numbers is work for one turn
            for metric in chunks:
                part = encode(OneMetric(metric)).removesuffix(END_OF_OPENMETRICS)
                parts.append(part if first else without_header(part))
                first = False
                await asyncio.sleep(0)
        if encode(_NOTHING).endswith(END_OF_OPENMETRICS):
            parts.append(END_OF_OPENMETRICS)
        return b"".join(parts)

    async def _other_workers(self) -> list[WorkerSnapshot]:
        """The numbers of the other workers."""
        if self._snapshots is None:
            return []
        # What we show must be in our file first. If we die, the next scrape of another worker must not show less.
        publish(self._registry, self._snapshots)
        found = []
        for path in self._snapshots.others():
            await asyncio.sleep(0)
            snapshot = self._snapshots.read(path)
            if snapshot is not None:
                found.append(snapshot)
        return found

    def _chunks(
        self, family: Family[Number] | Family[CountAndSum] | Family[Distribution], workers: list[WorkerSnapshot]
    ) -> Iterator[Metric]:
        values, examples = family.values(), family.examples()
        for worker in workers:
            snapshot = (worker.gauges if family.kind == "gauge" else worker.counts).get(family.name)
            if snapshot is not None:
                family.add_worker(values, snapshot)
                for place, example in snapshot[2].items():
                    if place not in examples or examples[place][2] < example[2]:
                        examples[place] = example
        if workers and ENGINE_LABEL in family.label_names:
            at = family.label_names.index(ENGINE_LABEL)
            values = {labels: numbers for labels, numbers in values.items() if labels[at] in self._engines}
        return family.chunks(values, examples)

    def __repr__(self) -> str:
        return f"<Exposition, {len(self._under_way)} scrapes under way>"


class _Nothing(Collector):
    def collect(self) -> Iterable[Metric]:
        return ()


_NOTHING: Final = _Nothing()


def publish(registry: MetricRegistry, snapshots: WorkerSnapshots) -> None:
    """Let the other workers read our numbers."""
    snapshots.write(
        WorkerSnapshot(registry.snapshot(("counter", "summary", "histogram")), registry.snapshot(("gauge",)))
    )


def without_header(part: bytes) -> bytes:
    """The lines of samples: a family that is written in several parts has its comments once."""
    return b"".join(line for line in part.splitlines(keepends=True) if not line.startswith(b"#"))
