"""W3C Trace Context of requests, and OpenTelemetry spans where `traces.endpoint` is set.

Without OpenTelemetry the caller's trace context is forwarded to engines unchanged. With it every engine call has a span
of its own, whose context the engine gets. Spans never hold the text of a query or a hit.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from opentelemetry import trace as otel
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider

_PARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]*)?")
_STATE = re.compile(rb"[ -~]{1,512}")
_ID = re.compile(r"[0-9a-f]{32}")
_NOTHING = b"0" * 32


class Trace(NamedTuple):
    """A position in a trace: the values of the headers `traceparent` and `tracestate`."""

    parent: bytes
    state: bytes = b""

    @property
    def id(self) -> str:
        """32 hexadecimal digits."""
        return self.parent[3:35].decode()

    @property
    def sampled(self) -> bool:
        """Whether the sender records the trace."""
        return int(self.parent[53:55], 16) & 1 == 1

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """The HTTP headers to send."""
        parent = (b"traceparent", self.parent)
        return (parent, (b"tracestate", self.state)) if self.state else (parent,)

    @property
    def lines(self) -> bytes:
        """The same as bytes of an HTTP/1.1 request head."""
        return b"".join([b"%b: %b\r\n" % header for header in self.headers])


OUTGOING: ContextVar[Trace | None] = ContextVar("OUTGOING", default=None)
"""The trace context for engines that are called in this task."""

REQUEST_ID: ContextVar[str] = ContextVar("REQUEST_ID", default="")
"""The caller's `X-Request-ID`, forwarded to engines that are called in this task; empty if there is none."""

_SPAN: ContextVar["Span | None"] = ContextVar("_SPAN", default=None)
"""The parent of the next span."""


def read_trace(parent: bytes, state: bytes = b"") -> Trace | None:
    """The trace context that a caller sent; None if it is malformed, which counts as not sent (W3C Trace Context)."""
    if not _PARENT.fullmatch(parent) or parent[:2] == b"ff" or (parent[:2] == b"00" and len(parent) != 55):
        return None
    if parent[3:35] == _NOTHING or parent[36:52] == _NOTHING[:16]:
        return None
    return Trace(parent, state if _STATE.fullmatch(state) else b"")


class Span:
    """A span that has begun; `trace` is its own context, for the engines called within it."""

    __slots__ = ("_span", "trace")

    def __init__(self, span: "otel.Span", state: bytes) -> None:
        found = span.get_span_context()
        parent = b"00-%032x-%016x-%02x" % (found.trace_id, found.span_id, found.trace_flags)
        self._span = span
        self.trace = Trace(parent, state)

    def end(self, outcome: str, *, well: bool, **attributes: str | int | float) -> None:
        """End the span. `outcome` is its result, and `well` whether that counts as a success."""
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attributes({f"rcp.{name}": value for name, value in attributes.items()})
        self._span.set_attribute("rcp.outcome", outcome)
        self._span.set_status(Status(StatusCode.OK) if well else Status(StatusCode.ERROR, outcome))
        self._span.end()

    def __repr__(self) -> str:
        return f"<Span {self.trace.parent.decode()}>"


class Tracing:
    """Starts the spans of one gateway. Where tracing is off there is None in its place."""

    def __init__(self, provider: "TracerProvider") -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("rcp-gateway")

    def serve(self, method: str, request_id: str, sent: Trace | None, trace_id: object = None) -> Span:
        """Start the span of a request, a child of the caller's. `trace_id`: its `_meta.traceId`, the second choice."""
        from opentelemetry.trace import SpanKind

        attributes = {"rpc.system": "jsonrpc", "rpc.method": method, "rcp.request_id": request_id}
        parent = _remote(sent, trace_id, self._provider)
        started = self._tracer.start_span(method, context=parent, kind=SpanKind.SERVER, attributes=attributes)
        return Span(started, b"" if sent is None else sent.state)

    def engine_call(self, engine: str, method: str) -> Span:
        """Start the span of an engine call, a child of the request's."""
        from opentelemetry.trace import SpanKind

        return self._below(f"leg {engine}", SpanKind.CLIENT, {"rcp.engine": engine, "rpc.method": method})

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """The span of a step of the gateway's own work."""
        from opentelemetry.trace import SpanKind

        span = self._below(name, SpanKind.INTERNAL, {})
        outcome = "error"
        try:
            yield
            outcome = "ok"
        finally:
            span.end(outcome, well=outcome == "ok")

    def _below(self, name: str, kind: "otel.SpanKind", attributes: Mapping[str, str]) -> Span:
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        above = _SPAN.get()
        context = Context() if above is None else set_span_in_context(above._span, Context())
        started = self._tracer.start_span(name, context=context, kind=kind, attributes=attributes)
        return Span(started, b"" if above is None else above.trace.state)

    def close(self) -> None:
        """Send the remaining spans; takes a second at most if the collector does not answer."""
        self._provider.shutdown()

    def __repr__(self) -> str:
        return f"<Tracing with {self._provider.sampler.get_description()}>"


def enter(span: Span) -> None:
    """Make this span the parent of later spans, and its context that of engine calls, in this task and its children."""
    _SPAN.set(span)
    OUTGOING.set(span.trace)


def _remote(sent: Trace | None, trace_id: object, provider: "TracerProvider") -> "Context":
    """The context of the caller's span: from its headers, else from its trace id, else empty."""
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    if sent is not None:
        _, trace, span, flags = sent.parent[:55].split(b"-")
        found = SpanContext(int(trace, 16), int(span, 16), True, TraceFlags(int(flags, 16)))
    elif type(trace_id) is str and _ID.fullmatch(trace_id) and int(trace_id, 16):
        made = provider.id_generator.generate_span_id()
        found = SpanContext(int(trace_id, 16), made, True, TraceFlags(TraceFlags.SAMPLED))
    else:
        return Context()
    return set_span_in_context(NonRecordingSpan(found), Context())


def tracing_to(
    endpoint: str, ratio: float, service: str, version: str, lost: Callable[[int], None] = lambda spans: None
) -> Tracing:
    """Tracing to an OTLP/HTTP collector, in a thread of its own.

    `ratio` is the share of requests traced that belong to no trace yet; callers decide for theirs. `lost` is called
    with the number of spans that the collector did not accept. Raises ModuleNotFoundError without OpenTelemetry.
    """
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    from app.telemetry.span_export import SpanExport

    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(ratio)),
        resource=Resource.create({"service.name": service, "service.version": version}),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(SpanExport(endpoint, lost))
    return Tracing(provider)
