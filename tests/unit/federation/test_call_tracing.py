"""Legs within spans: engines that tell what they are told, and spans that end once."""

from typing import Any

from opentelemetry.sdk.trace import TracerProvider

from app.federation.call_tracing import TracedEngine, traced
from app.telemetry.tracing import OUTGOING, Tracing


class Told:
    """An engine that remembers what it would have told."""

    id = "docs"
    entry = advertisement = down_reason = None

    def begin(self, method: str, params: Any) -> None:
        self.trace = OUTGOING.get()

    def __repr__(self) -> str:
        return "<Told>"


def test_an_engine_is_asked_within_its_span() -> None:
    """What is told holds while the engine is asked and not after; the rest is the engine's own."""
    span = Tracing(TracerProvider(shutdown_on_exit=False)).engine_call("docs", "retrieve")
    engine: Any = Told()
    within = TracedEngine(engine, span)
    assert within.begin("retrieve", {}) is None
    assert engine.trace == span.trace
    assert OUTGOING.get() is None
    assert (within.id, within.entry, within.advertisement, within.down_reason) == ("docs", None, None, None)
    assert repr(within) == f"<TracedEngine <Told> in {span!r}>"


def test_without_tracing_engine_calls_are_as_they_are() -> None:
    """Nothing is wrapped, and nothing made."""
    engine_calls: list[Any] = []
    heard: Any = object()
    assert traced(None, "retrieve", engine_calls, heard) == (engine_calls, heard)
