"""What the journey tells those who watch it: numbers and log events, never query or hit text.

The only place where federation and telemetry meet; the journey itself knows this one object.
"""

from collections.abc import Callable, Sequence
from time import monotonic

from app.federation.outcome import Hit, Outcome
from app.federation.plan import Plan
from app.fusion.merge import Fusion
from app.fusion.screen import Screen
from app.telemetry.logs import logger
from app.telemetry.metrics import Metrics
from app.telemetry.overlap import MAX_HITS, Overlap
from app.telemetry.windows import Windows

MAX_PAIRS = 1000
"""Pairs of engines whose id collisions are remembered as logged."""


class Witness:
    """Turns outcomes into metrics, the last minutes into windows, and the rare event into a log line."""

    __slots__ = ("_log", "_metrics", "_reported_pairs", "overlap", "windows")

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = monotonic) -> None:
        """`clock` gives seconds and never goes back."""
        self.windows = Windows(clock)
        self.overlap = Overlap(clock)
        self._metrics = metrics
        self._log = logger()
        self._reported_pairs: set[tuple[str, str]] = set()

    def leg(self, outcome: Outcome) -> None:
        """One leg ended."""
        self._metrics.leg(outcome.engine, outcome.kind or "ok", outcome.took)
        if outcome.status == "ok":
            self.windows.ended(outcome.engine, outcome.took)
        elif outcome.status == "failed":
            self.windows.failed(outcome.engine, outcome.took, outcome.kind or "", outcome.detail or "")
        if outcome.malformed:
            self._metrics.dropped(outcome.engine, "malformed", outcome.malformed)
        if outcome.excess:
            self._metrics.dropped(outcome.engine, "excess", outcome.excess)

    def retrieved(self, plan: Plan, outcomes: Sequence[Outcome], fusion: Fusion | None, took: float) -> None:
        """One retrieve was answered after `took` seconds."""
        if outcomes:
            self._metrics.overhead.observe(max(0.0, took - max(outcome.took for outcome in outcomes)))
        if fusion is None:
            return
        if fusion.duplicates:
            self._metrics.duplicates.inc(fusion.duplicates)
        for first, second, _ in fusion.collisions(0, plan.k):
            self._metrics.collisions.inc()
            self._report_collision(first, second)

    def screened(self, screen: Screen) -> None:
        """Hits were looked at before they were answered."""
        for action, hits in (("marked", screen.marked), ("reported", screen.reported), ("dropped", screen.dropped)):
            if hits:
                self._metrics.callers.screened(action, hits)

    def served(self, outcomes: Sequence[Outcome], hits: Sequence[Hit]) -> None:
        """These hits are what one retrieve is answered with, of engines that were asked for them."""
        if outcomes and self.overlap.due():
            answered = [outcome.engine for outcome in outcomes if outcome.status == "ok"]
            givers = [[mark["id"] for mark in hit["meta"]["engines"]] for hit in hits[:MAX_HITS]]
            self.overlap.add(answered, givers)

    def _report_collision(self, first: str, second: str) -> None:
        pair = (first, second)
        if pair not in self._reported_pairs and len(self._reported_pairs) < MAX_PAIRS:
            self._reported_pairs.add(pair)
            self._log.warning(
                "id_collision",
                engines=list(pair),
                remedy="the same hit id stands for different texts; give one of them an idNamespace in the registry",
            )

    def __repr__(self) -> str:
        return f"<Witness of {len(self._reported_pairs)} pairs of engines whose ids collide>"
