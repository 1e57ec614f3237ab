"""Trace spans of engine calls: one for each call of a fan-out, from its start until its outcome is known.

Separate from fanout.py, which runs without traces in most deployments.
"""

from typing import Self, final

from app.federation.outcome import Outcome
from app.telemetry.tracing import OUTGOING, Span, Tracing


@final
class CallSpans:
    """The spans of one fan-out. As a context manager it is entered around the start of one call."""

    __slots__ = ("_before", "_method", "_open", "_tracing")

    def __init__(self, tracing: Tracing, method: str) -> None:
        self._tracing = tracing
        self._method = method
        self._open: dict[str, Span] = {}

    def start(self, engine_id: str) -> Self:
        """Open the span of the next call; requests that are started within `with` carry its trace context."""
        span = self._open[engine_id] = self._tracing.engine_call(engine_id, self._method)
        self._before = OUTGOING.set(span.trace)
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        # The calls of a fan-out are started one after the other in one task, so each has to restore the context.
        OUTGOING.reset(self._before)

    def end(self, outcome: Outcome) -> None:
        """Close the span of a call whose outcome is known."""
        span = self._open.pop(outcome.engine, None)
        if span is not None:
            span.end(outcome.kind or outcome.status, well=outcome.status == "ok", attempts=outcome.attempts)

    def __repr__(self) -> str:
        return f"<CallSpans {self._method}, {len(self._open)} open>"


def spans_for(tracing: Tracing | None, method: str) -> CallSpans | None:
    """The spans of a fan-out of `method`; None without tracing."""
    return None if tracing is None else CallSpans(tracing, method)
