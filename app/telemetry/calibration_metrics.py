"""Metrics of learned calibration: how feedback was used, and the evidence about each engine's confidences.

One series per engine over all tenants; the operator's view lists tenants separately.
"""

from collections.abc import Collection, Iterable, Sequence

from app.telemetry.series import MetricRegistry

OUTCOMES = ("learned", "unknown", "dropped")
"""A map was updated; a signal was for a hit that is not remembered or already learned; an update was not finite."""


class CalibrationMetrics:
    """Every series of every engine exists with 0 from the start."""

    __slots__ = ("_claimed", "_events", "_evidence", "_gauges", "_worth")

    def __init__(self, registry: MetricRegistry) -> None:
        self._events = registry.counter(
            "rcp_gateway_calibration_events",
            "Feedback for learned calibration: updates of a map, signals that teach nothing, updates dropped.",
            ["outcome"],
        )
        for outcome in OUTCOMES:
            self._events.labels(outcome)
        self._evidence = registry.gauge(
            "rcp_gateway_calibration_evidence",
            "Rewards that an engine's calibration is based on, over all tenants.",
            ["engine"],
            workers="max",
        )
        self._claimed = registry.gauge(
            "rcp_gateway_calibration_claimed",
            "Chance of relevance that an engine claimed for judged hits, recent mean.",
            ["engine"],
            workers="max",
        )
        self._worth = registry.gauge(
            "rcp_gateway_calibration_worth",
            "Chance of relevance of these hits by learned calibration, recent mean.",
            ["engine"],
            workers="max",
        )
        self._gauges = (self._evidence, self._claimed, self._worth)

    def declare(self, engine: str) -> None:
        """Create the series of an engine."""
        for gauge in self._gauges:
            gauge.labels(engine)

    def forget(self, engines: Collection[str]) -> None:
        """Remove the series of these engines."""
        for gauge in self._gauges:
            gauge.remove("engine", engines)

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
