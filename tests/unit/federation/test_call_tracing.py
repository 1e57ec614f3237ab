"""Trace spans of engine calls: the trace context that requests carry, and the end of each span."""

from opentelemetry.sdk.trace import TracerProvider

from app.federation.call_tracing import CallSpans, spans_for
from app.telemetry.tracing import OUTGOING, Tracing


def test_requests_started_within_a_span_carry_its_trace_context() -> None:
    """It holds while the call is started, and not for the call that is started next."""
    spans = CallSpans(Tracing(TracerProvider(shutdown_on_exit=False)), "retrieve")
    with spans.start("docs"):
        first = OUTGOING.get()
    with spans.start("wiki"):
        second = OUTGOING.get()
    assert first is not None
    assert second is not None
    assert first.lines != second.lines
    assert OUTGOING.get() is None
    assert repr(spans) == "<CallSpans retrieve, 2 open>"


def test_without_tracing_there_are_no_spans() -> None:
    """Then a fan-out does nothing about traces."""
    assert spans_for(None, "retrieve") is None
