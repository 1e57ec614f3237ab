"""Sends finished spans to a trace collector, bounded in number and time, and counts the spans that were lost.

Separate from `tracing.py` because it needs OpenTelemetry at import; it is loaded only if `traces.endpoint` is set.
"""

import logging
from collections.abc import Callable, Sequence
from threading import Lock, Thread
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from app.telemetry.logs import logger

EXPORT_SECONDS = 3.0
"""How long a collector may take to accept a batch of spans. No request waits for it."""

FLUSH_SECONDS = 1.0
"""How long shutdown waits for the collector."""

MAX_WAITING = 2048
"""Spans that may wait to be sent; further spans are lost."""


class SpanExport(SpanProcessor):
    """Sends spans in batches from a thread of its own. `lost` is called with the number of spans lost."""

    def __init__(self, endpoint: str, lost: Callable[[int], None], exporter: SpanExporter | None = None) -> None:
        """`exporter` sends a batch; by default as OTLP over HTTP to `endpoint`."""
        # It logs every attempt and every retry; `traces_lost` says what came of them.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._collector = urlsplit(endpoint).netloc.rpartition("@")[2]
        self._lost = lost
        self._lock = Lock()
        self._waiting = 0  # spans that the batches have not taken up yet
        self._unsettled = 0  # those, and the spans of the batch that is being sent
        self._closed = False
        self._exporter = _Watched(exporter or OTLPSpanExporter(endpoint, timeout=EXPORT_SECONDS), self)
        self._batches = BatchSpanProcessor(self._exporter, max_queue_size=MAX_WAITING)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing: a span is sent when it has ended."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queue the span for the next batch; it is lost if the queue is full."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        with self._lock:
            if self._closed:
                return
            full = self._waiting >= MAX_WAITING
            if not full:
                self._waiting += 1
                self._unsettled += 1
        if full:
            self._lose(1, "the queue is full")
        else:
            self._batches.on_end(span)

    def shutdown(self) -> None:
        """Send the queued spans, for at most FLUSH_SECONDS."""
        # The library's own shutdown waits for as long as the collector does. Its threads do not keep a process alive.
        flush = Thread(target=self._batches.shutdown, name="trace-flush", daemon=True)
        flush.start()
        flush.join(FLUSH_SECONDS)
        with self._lock:
            self._closed = True
            left, self._unsettled = self._unsettled, 0
        if flush.is_alive():
            Thread(target=self._exporter.shutdown, name="trace-abort", daemon=True).start()  # ends its retries
        if left:
            self._lose(left, f"the collector did not take them within {FLUSH_SECONDS:g} s at shutdown")

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Send the queued spans now."""
        return self._batches.force_flush(timeout_millis)

    def taken_up(self, spans: int) -> None:
        """A batch has been taken from the queue."""
        with self._lock:
            self._waiting -= spans

    def settled(self, spans: int, *, sent: bool) -> None:
        """A batch was sent, or given up after its retries."""
        with self._lock:
            if self._closed:
                return  # counted as lost already
            self._unsettled -= spans
        if not sent:
            self._lose(spans, "the collector did not take them")

    def _lose(self, spans: int, reason: str) -> None:
        self._lost(spans)
        logger().warning("traces_lost", spans=spans, collector=self._collector, reason=reason)

    def __repr__(self) -> str:
        return f"<SpanExport to {self._collector}, {self._waiting} spans waiting>"


class _Watched(SpanExporter):
    """Reports what becomes of each batch."""

    def __init__(self, exporter: SpanExporter, owner: SpanExport) -> None:
        self._inner = exporter
        self._owner = owner
        self._closed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._owner.taken_up(len(spans))
        result = SpanExportResult.FAILURE
        try:
            result = self._inner.export(spans)
        finally:
            self._owner.settled(len(spans), sent=result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        if not self._closed:
            self._closed = True
            self._inner.shutdown()
