"""Metrics of engine selection: calls made and saved, coverage, audits, and praise for hits of engines left out."""

from collections.abc import Collection
from typing import Protocol

from app.telemetry.series import MetricRegistry


class Selected(Protocol):
    """One selection, as the federation made it."""

    @property
    def order(self) -> Collection[str]: ...

    @property
    def asked(self) -> Collection[str]: ...

    @property
    def explored(self) -> Collection[str]: ...

    @property
    def audit(self) -> bool: ...


class SelectionMetrics:
    """Every series of every engine exists with 0 from the start."""

    __slots__ = ("_asked", "_audits", "_coverage", "_explored", "_feedback", "_fruitless", "_n", "_saved")

    def __init__(self, registry: MetricRegistry) -> None:
        self._n = registry.gauge(
            "rcp_gateway_select_n", "Engines that selection asks, latest request; 0 before the first.", workers="max"
        ).labels()
        self._coverage = registry.gauge(
            "rcp_gateway_select_coverage",
            "Share of good hits that the selected engines give, by recent audits; 0 while unknown.",
            workers="max",
        ).labels()
        self._asked = registry.counter(
            "rcp_gateway_select_asked", "Engines asked by requests with engine selection, of its candidates."
        ).labels()
        self._saved = registry.counter(
            "rcp_gateway_select_saved_calls", "Engine calls not made because the engine was not promising."
        ).labels()
        self._audits = registry.counter(
            "rcp_gateway_select_audits", "Requests that asked every candidate in order to measure engine selection."
        ).labels()
        self._feedback = registry.counter(
            "rcp_gateway_select_feedback",
            "Praised hits of audits: selection would have asked an engine that gave the hit (kept), or not (lost).",
            ["outcome"],
        )
        for outcome in ("kept", "lost"):
            self._feedback.labels(outcome)
        self._explored = registry.counter(
            "rcp_gateway_engine_explored", "Times an engine was asked in order to learn about it.", ["engine"]
        )
        self._fruitless = registry.gauge(
            "rcp_gateway_engine_fruitless",
            "1 while an engine counts half in selection because it was chosen 200 times without a hit in an answer.",
            ["engine"],
            workers="max",
        )

    def declare(self, engine: str) -> None:
        """Create the series of an engine."""
        self._explored.labels(engine)
        self._fruitless.labels(engine)

    def selected(self, selection: Selected, n: int, coverage: float) -> None:
        """One request: `n` engines reach `coverage` by recent audits."""
        self._n.set(n)
        self._coverage.set(coverage)
        self._asked.inc(len(selection.asked))
        self._saved.inc(len(selection.order) - len(selection.asked))
        if selection.audit:
            self._audits.inc()
        for engine in selection.explored:
            self._explored.labels(engine).inc()

    def fruitless(self, engine: str, *, fruitless: bool) -> None:
        """An engine began or ceased to count half."""
        self._fruitless.labels(engine).set(fruitless)

    def praised(self, *, kept: bool) -> None:
        """Feedback praised a hit of an audit."""
        self._feedback.labels("kept" if kept else "lost").inc()

    def forget(self, engines: Collection[str]) -> None:
        """Remove the series of these engines."""
        self._explored.remove("engine", engines)
        self._fruitless.remove("engine", engines)

    def __repr__(self) -> str:
        return f"<SelectionMetrics {self._asked!r}>"
