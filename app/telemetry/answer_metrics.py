"""What is counted of answers: which engines they lack, who gave the same, and how sure of themselves engines are.

Telemetry room. Of one process these are plain numbers, read at the scrape; of several workers they are
prometheus_client's own, which add up. It refuses to know how answers are fused.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, combinations

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from app.telemetry.buckets import Buckets
from app.telemetry.plain_metrics import Exposed
from app.telemetry.worker_metrics import is_shared

CONFIDENCE_BUCKETS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)

MAX_PAIRED = 32
"""Engines whose pairs are counted, those that were declared first: pairs grow with the square of engines."""

MAX_GIVERS = 1000
"""Sets of engines that gave documents together; beyond so many their pairs are counted at once."""

SHARED = ("rcp_gateway_hits_shared", "Documents of sampled answers that both engines gave.")
CONFIDENCE = ("rcp_gateway_top_confidence", "The confidence that an engine gave the first hit of its answer.")

UNREACHED = "unreached"
"""Of an engine that has never been reached: no leg of it could fail."""

Pair = tuple[str, str]
"""Two engines, the smaller id first."""


class Pairs:
    """How often which two engines gave the same document."""

    __slots__ = ("_counts", "_givers", "_paired", "_shared")

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counts: dict[Pair, float] = {}
        self._givers: dict[tuple[str, ...], int] = {}
        self._shared = Counter(*SHARED, ["engine", "other"], registry=registry) if is_shared() else None
        self._paired: list[str] = []
        if self._shared is None:
            registry.register(Exposed(self.families))

    def declare(self, engine: str) -> None:
        """Let every pair of this engine and those before it exist with 0."""
        if engine in self._paired or len(self._paired) >= MAX_PAIRED:
            return
        self._add_up()
        for other in self._paired:
            pair = (engine, other) if engine < other else (other, engine)
            self._counts[pair] = 0.0
            if self._shared is not None:
                self._shared.labels(*pair)
        self._paired.append(engine)

    def forget(self, engine: str) -> None:
        """Let every pair with this engine vanish."""
        self._add_up()
        if engine in self._paired:
            self._paired.remove(engine)
        for pair in [pair for pair in self._counts if engine in pair]:
            del self._counts[pair]

    def count(self, givers: Sequence[str]) -> None:
        """One document was given by all of these, sorted by id. Pairs are made of them when somebody looks."""
        together = tuple(givers)
        self._givers[together] = self._givers.get(together, 0) + 1
        if self._shared is not None or len(self._givers) > MAX_GIVERS:
            self._add_up()

    def _add_up(self) -> None:
        """Count the pairs of what was counted since it was last done."""
        givers, self._givers = self._givers, {}
        for together, documents in givers.items():
            # Only those whose pairs are counted, or a hundred engines would make 4,950 pairs for each document.
            for pair in combinations([engine for engine in together if engine in self._paired], 2):
                if pair in self._counts:
                    self._counts[pair] += documents
                    if self._shared is not None:
                        self._shared.labels(*pair).inc(documents)

    def families(self) -> Iterator[Metric]:
        """The counts as they are now."""
        self._add_up()
        family = CounterMetricFamily(*SHARED, labels=("engine", "other"))
        for pair, count in self._counts.items():
            family.add_metric(pair, count)
        yield family

    def __repr__(self) -> str:
        self._add_up()
        return f"<Pairs of {len(self._paired)} engines, {sum(self._counts.values()):g} documents shared>"


class Confidences:
    """How sure each engine was of its first hit."""

    __slots__ = ("_counts", "_scale", "_shared", "_sums")

    def __init__(self, registry: CollectorRegistry) -> None:
        self._scale = Buckets(CONFIDENCE_BUCKETS)
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        self._shared = (
            Histogram(*CONFIDENCE, ["engine"], buckets=CONFIDENCE_BUCKETS, registry=registry) if is_shared() else None
        )
        if self._shared is None:
            registry.register(Exposed(self.families))

    def declare(self, engine: str) -> None:
        """Let the series of this engine exist with 0."""
        self._counts.setdefault(engine, [0] * (len(CONFIDENCE_BUCKETS) + 1))
        self._sums.setdefault(engine, 0.0)
        if self._shared is not None:
            self._shared.labels(engine)

    def forget(self, engine: str) -> None:
        """Let the series of this engine vanish."""
        self._counts.pop(engine, None)
        self._sums.pop(engine, None)

    def observe(self, engine: str, confidence: float) -> None:
        """An engine's first hit came with this confidence, in [0,1]."""
        counts = self._counts.get(engine)
        if counts is None:  # it has left since
            return
        counts[self._scale.place(confidence)] += 1
        self._sums[engine] += confidence
        if self._shared is not None:
            self._shared.labels(engine).observe(confidence)

    def families(self) -> Iterator[Metric]:
        """The histograms as they are now."""
        family = HistogramMetricFamily(*CONFIDENCE, labels=("engine",))
        edges = [*map(floatToGoString, CONFIDENCE_BUCKETS), "+Inf"]
        for engine, counts in self._counts.items():
            below = map(float, accumulate(counts))
            family.add_metric([engine], list(zip(edges, below, strict=True)), self._sums[engine])
        yield family

    def __repr__(self) -> str:
        return f"<Confidences of {len(self._counts)} engines, {sum(map(sum, self._counts.values()))} answers>"


class AnswerMetrics:
    """What is counted of answers."""

    __slots__ = ("_degraded", "confidences", "pairs")

    def __init__(self, registry: CollectorRegistry) -> None:
        self.pairs = Pairs(registry)
        self.confidences = Confidences(registry)
        self._degraded = Counter(
            "rcp_gateway_degraded_answers",
            "Answers that lack an engine that was asked, by why it gave nothing.",
            ["reason"],
            registry=registry,
        )

    def declare(self, engine: str, kinds: Iterable[str]) -> None:
        """Let every series of an engine exist with 0; `kinds` are the classes a leg can fail with."""
        self.pairs.declare(engine)
        self.confidences.declare(engine)
        for kind in (*kinds, UNREACHED):
            self._degraded.labels(kind)

    def forget(self, engine: str) -> None:
        """Let every series of an engine vanish."""
        self.pairs.forget(engine)
        self.confidences.forget(engine)

    def degraded(self, reasons: Iterable[str]) -> None:
        """One answer lacks engines, for these reasons: each counts once, however many engines it took."""
        for reason in reasons:
            self._degraded.labels(reason).inc()

    def __repr__(self) -> str:
        return f"<AnswerMetrics {self.pairs!r}, {self.confidences!r}>"
