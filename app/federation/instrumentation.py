"""What the journey tells those who watch it: numbers and log events, never query or hit text.

The only place where federation and telemetry meet; the journey itself knows this one object.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import monotonic
from typing import Final

from app.federation.outcome import Hit, Outcome
from app.federation.planner import Plan
from app.fusion.confidence import valid_confidence
from app.fusion.injection_screen import InjectionScreen
from app.fusion.merge import FusedList
from app.telemetry.logs import logger
from app.telemetry.metrics import Metrics
from app.telemetry.overlap import MAX_HITS, Overlap
from app.telemetry.rolling import RollingStatistics
from app.telemetry.tracing import Tracing

MAX_PAIRS = 1000
"""Pairs of engines whose id collisions are remembered as logged."""


DROPPED_QUIET_SECONDS: Final = 60.0
"""Of one engine's hits that were left out the log tells at most once in so long."""


_NO_SPAN: Final = nullcontext()


class RetrieveInstrumentation:
    """Turns outcomes into metrics, the last minutes into windows, and the rare event into a log line."""

    __slots__ = (
        "_clock",
        "_confidences",
        "_log",
        "_metrics",
        "_quiet_until",
        "_reported_pairs",
        "overlap",
        "tracing",
        "windows",
    )

    def __init__(
        self, metrics: Metrics, clock: Callable[[], float] = monotonic, tracing: Tracing | None = None
    ) -> None:
        """`clock` gives seconds and never goes back."""
        self.windows = RollingStatistics(clock)
        self.overlap = Overlap(clock)
        self.tracing = tracing
        self._clock = clock
        self._confidences = metrics.answers.confidences
        self._quiet_until: dict[str, float] = {}
        self._metrics = metrics
        self._log = logger()
        self._reported_pairs: set[tuple[str, str]] = set()

    def step(self, name: str) -> AbstractContextManager[None]:
        """The time of one step, if traces are wished for."""
        return _NO_SPAN if self.tracing is None else self.tracing.step(name)

    def engine_call(self, outcome: Outcome) -> None:
        """One leg ended."""
        engine, status, took, kind = outcome.engine, outcome.status, outcome.took, outcome.kind
        if outcome.not_sent:
            # It took no time of the engine's: as a call it would make the engine look fast.
            self._metrics.skipped(engine, kind or "")
            self.windows.skipped(engine, kind or "")
            return
        self._metrics.engine_call(engine, kind or "ok", took)
        if status == "ok":
            self.windows.ended(engine, took)
        elif status == "failed":
            self.windows.failed(engine, took, kind or "", outcome.detail or "")
        hits = outcome.hits
        if hits:
            confidence = valid_confidence(hits[0].get("confidence"))
            if confidence is not None:
                self._confidences.observe(engine, confidence)
        if outcome.malformed or outcome.excess:
            self.dropped(outcome)

    def retrieved(self, outcomes: Sequence[Outcome], took: float) -> None:
        """One retrieve of these legs was answered after `took` seconds."""
        if outcomes:
            self._metrics.overhead.observe(max(0.0, took - max([outcome.took for outcome in outcomes])))

    def screened(self, screen: InjectionScreen) -> None:
        """Hits were looked at before they were answered."""
        for action, hits in (("marked", screen.marked), ("reported", screen.reported), ("dropped", screen.dropped)):
            if hits:
                self._metrics.callers.screened(action, hits)

    def served(self, plan: Plan, outcomes: Sequence[Outcome], fusion: FusedList, hits: Sequence[Hit]) -> None:
        """One retrieve is answered with these hits of `fusion`. Copies are compared in sampled answers only."""
        duplicates = fusion.duplicates
        if duplicates:
            self._metrics.duplicates.inc(duplicates)
        if not self.overlap.due():
            return
        answered = [outcome.engine for outcome in outcomes if outcome.status == "ok"]
        givers = [[mark["id"] for mark in hit["meta"]["engines"]] for hit in hits[:MAX_HITS]]
        self.overlap.add(answered, givers)
        if not duplicates:
            return
        looked_at = min(plan.k, MAX_HITS)
        pairs = self._metrics.answers.pairs
        for engines in fusion.shared(0, looked_at):
            pairs.count(engines)
        for pair in fusion.collisions(0, looked_at):
            self._metrics.collisions.inc()
            self._report_collision(pair)

    def dropped(self, outcome: Outcome) -> None:
        """Hits of an engine were left out: counted, and logged now and then."""
        engine = outcome.engine
        for reason, hits in (("malformed", outcome.malformed), ("excess", outcome.excess)):
            if hits:
                self._metrics.dropped(engine, reason, hits)
        now = self._clock()
        if now >= self._quiet_until.get(engine, now):
            self._quiet_until[engine] = now + DROPPED_QUIET_SECONDS
            self._log.warning("hits_dropped", engine=engine, malformed=outcome.malformed, excess=outcome.excess)

    def _report_collision(self, pair: tuple[str, str]) -> None:
        if pair not in self._reported_pairs and len(self._reported_pairs) < MAX_PAIRS:
            self._reported_pairs.add(pair)
            self._log.warning(
                "id_collision",
                engines=list(pair),
                remedy="the same hit id stands for different texts; give one of them an idNamespace in the registry",
            )

    def __repr__(self) -> str:
        return f"<Witness of {len(self._reported_pairs)} pairs of engines whose ids collide>"
