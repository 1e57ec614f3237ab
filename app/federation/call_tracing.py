"""Legs whose engines are told of a span of their own, for as long as traces are wished for.

Decides where a leg's span begins and ends: when its engine is asked, and in the moment its outcome is there. It refuses
to know how a fan-out runs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.federation.engine_interface import Engine, EngineReply, StartedCall
from app.federation.outcome import Outcome
from app.federation.planner import EngineCall
from app.protocol.advertisement import Advertisement
from app.protocol.errors import LegError
from app.settings.schema import EngineEntry
from app.telemetry.tracing import OUTGOING, Span, Tracing


class TracedEngine:
    """An engine that is asked within a span. Satisfies `Engine`."""

    __slots__ = ("_engine", "span")

    def __init__(self, engine: Engine, span: Span) -> None:
        self._engine = engine
        self.span = span

    @property
    def id(self) -> str:
        return self._engine.id

    @property
    def entry(self) -> EngineEntry:
        return self._engine.entry

    @property
    def advertisement(self) -> Advertisement | None:
        return self._engine.advertisement

    @property
    def down_reason(self) -> str | None:
        return self._engine.down_reason

    def begin(self, method: str, params: Mapping[str, Any]) -> StartedCall | None:
        """As the engine's own. Its siblings are begun in the same task, so what is told is taken back at once."""
        before = OUTGOING.set(self.span.trace)
        try:
            return self._engine.begin(method, params)
        finally:
            OUTGOING.reset(before)

    async def call(
        self,
        method: str,
        params: Mapping[str, Any],
        deadline: float,
        *,
        idempotent: bool = True,
        after: LegError | None = None,
    ) -> EngineReply:
        """As the engine's own; retries and hedges are told the same."""
        before = OUTGOING.set(self.span.trace)
        try:
            return await self._engine.call(method, params, deadline, idempotent=idempotent, after=after)
        finally:
            OUTGOING.reset(before)

    def __repr__(self) -> str:
        return f"<TracedEngine {self._engine!r} in {self.span!r}>"


def traced(
    tracing: Tracing | None, method: str, engine_calls: Sequence[EngineCall], heard: Callable[[Outcome], None]
) -> tuple[Sequence[EngineCall], Callable[[Outcome], None]]:
    """The legs, each within a span that ends when its outcome is heard; as they are without `tracing`."""
    if tracing is None:
        return engine_calls, heard
    spans = {}
    within = []
    for engine_call in engine_calls:
        span = spans[engine_call.engine.id] = tracing.engine_call(engine_call.engine.id, method)
        within.append(engine_call._replace(engine=TracedEngine(engine_call.engine, span)))

    def ended(outcome: Outcome) -> None:
        span = spans.pop(outcome.engine, None)
        if span is not None:
            span.end(outcome.kind or outcome.status, well=outcome.status == "ok", attempts=outcome.attempts)
        heard(outcome)

    return within, ended
