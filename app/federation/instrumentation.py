"""Metrics, traces, statistics and log events of the federation; never query or hit text.

The only module of the federation that imports telemetry.
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
"""Shortest time between two log lines about dropped hits of one engine."""


_NO_SPAN: Final = nullcontext()


class RetrieveInstrumentation:
    """Turns outcomes into metrics, rolling statistics, and rare log events."""

    __slots__ = (
        "_answers",
        "_clock",
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
        """`clock` is monotonic, in seconds."""
        self.windows = RollingStatistics(clock)
        self.overlap = Overlap(clock)
        self.tracing = tracing
        self._clock = clock
        self._answers = metrics.answers
        self._quiet_until: dict[str, float] = {}
        self._metrics = metrics
        self._log = logger()
        self._reported_pairs: set[tuple[str, str]] = set()

    def step(self, name: str) -> AbstractContextManager[None]:
        """A span for one step, if tracing is enabled."""
        return _NO_SPAN if self.tracing is None else self.tracing.step(name)

    def engine_call(self, outcome: Outcome) -> None:
        """One engine call ended."""
        engine, status, took, kind = outcome.engine, outcome.status, outcome.took, outcome.kind
        if outcome.not_sent:
            # Nothing was sent: counted as a call it would make the engine look fast.
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
            # One observation per response: the top hit stands for its list.
            confidence = valid_confidence(hits[0].get("confidence"))
            if confidence is not None:
                self._answers.confidence(engine, confidence)
        if outcome.malformed or outcome.excess:
            self.dropped(outcome)

    def retrieved(self, outcomes: Sequence[Outcome], took: float) -> None:
        """One retrieve with these engine calls was answered after `took` seconds."""
        if outcomes:
            self._metrics.overhead.observe(max(0.0, took - max([outcome.took for outcome in outcomes])))

    def screened(self, screen: InjectionScreen) -> None:
        """Hits of one response were screened."""
        for action, hits in (("marked", screen.marked), ("reported", screen.reported), ("dropped", screen.dropped)):
            if hits:
                self._metrics.callers.screened(action, hits)

    def served(self, plan: Plan, outcomes: Sequence[Outcome], fusion: FusedList, hits: Sequence[Hit]) -> None:
        """One retrieve returns these hits of `fusion`. Copies are compared in a sample of responses only."""
        duplicates = fusion.duplicates
        if duplicates:
            self._metrics.duplicates.inc(duplicates)
        # Sampled: comparing copies costs more than the rest of the metrics together (decision 14).
        if not self.overlap.due():
            return
        answered = [outcome.engine for outcome in outcomes if outcome.status == "ok"]
        givers = [[mark["id"] for mark in hit["meta"]["engines"]] for hit in hits[:MAX_HITS]]
        self.overlap.add(answered, givers)
        if not duplicates:
            return
        # Only the top of the list, whatever `k` is: the work per request must be bounded.
        looked_at = min(plan.k, MAX_HITS)
        for pair in fusion.collisions(0, looked_at):
            self._metrics.collisions.inc()
            self._report_collision(pair)

    def dropped(self, outcome: Outcome) -> None:
        """Hits of an engine were dropped: counted, and logged at a bounded rate."""
        engine = outcome.engine
        for reason, hits in (("malformed", outcome.malformed), ("excess", outcome.excess)):
            if hits:
                self._metrics.dropped(engine, reason, hits)
        now = self._clock()
        # A broken engine would otherwise write a line per request.
        if now >= self._quiet_until.get(engine, now):
            self._quiet_until[engine] = now + DROPPED_QUIET_SECONDS
            self._log.warning("hits_dropped", engine=engine, malformed=outcome.malformed, excess=outcome.excess)

    def _report_collision(self, pair: tuple[str, str]) -> None:
        if pair not in self._reported_pairs and len(self._reported_pairs) < MAX_PAIRS:
            self._reported_pairs.add(pair)
            self._log.warning(
                "id_collision",
                engines=list(pair),
                remedy="the same id has different texts in both engines; set idNamespace for one of them",
            )

    def __repr__(self) -> str:
        return f"<RetrieveInstrumentation with {len(self._reported_pairs)} pairs of colliding engines>"
