"""Metrics of learned calibration: what became of feedback, and what is known of each engine's claims.

One series for each engine, over all tenants; the operator's view has them apart.
"""

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge

from app.telemetry.worker_metrics import is_shared

OUTCOMES = ("learned", "unknown", "dropped")
"""A map was taught by an answer; a signal was on a hit that is not remembered or was learned before; an update was not
finite."""


class CalibrationMetrics:
    """Every series of every engine exists with 0 from the start."""

    __slots__ = ("_claimed", "_events", "_evidence", "_gauges", "_worth")

    def __init__(self, registry: CollectorRegistry) -> None:
        self._events = Counter(
            "rcp_gateway_calibration_events",
            "Feedback for learned calibration: updates of a map, signals that teach nothing, updates dropped.",
            ["outcome"],
            registry=registry,
        )
        for outcome in OUTCOMES:
            self._events.labels(outcome)
        self._evidence = Gauge(
            "rcp_gateway_calibration_evidence",
            "Rewards that an engine's calibration is based on, of all tenants.",
            ["engine"],
            registry=registry,
            multiprocess_mode="max",
        )
        self._claimed = Gauge(
            "rcp_gateway_calibration_claimed",
            "Chance of relevance that an engine claimed for judged hits, recent mean.",
            ["engine"],
            registry=registry,
            multiprocess_mode="max",
        )
        self._worth = Gauge(
            "rcp_gateway_calibration_worth",
            "Chance of relevance that these claims are worth by learned calibration, recent mean.",
            ["engine"],
            registry=registry,
            multiprocess_mode="max",
        )
        self._gauges = (self._evidence, self._claimed, self._worth)

    def declare(self, engine: str) -> None:
        """Let the series of an engine exist."""
        for gauge in self._gauges:
            gauge.labels(engine)

    def forget(self, engine: str) -> None:
        """Let the series of an engine vanish."""
        if not is_shared():  # else they are left out at the scrape
            for gauge in self._gauges:
                gauge.remove_by_labels({"engine": engine})

    def fed_back(self, outcome: str, count: int) -> None:
        """`outcome` is one of OUTCOMES."""
        self._events.labels(outcome).inc(count)

    def evidence(self, engine: str, maps: Iterable[Sequence[float]]) -> None:
        """What is known of an engine now: evidence, claim and worth of each of its maps."""
        seen = [one for one in maps if one[0] > 0]
        total = sum([evidence for evidence, _, _ in seen])
        self._evidence.labels(engine).set(total)
        if total > 0:
            self._claimed.labels(engine).set(sum([n * claimed for n, claimed, _ in seen]) / total)
            self._worth.labels(engine).set(sum([n * worth for n, _, worth in seen]) / total)

    def __repr__(self) -> str:
        return f"<CalibrationMetrics of {len(OUTCOMES)} outcomes>"
