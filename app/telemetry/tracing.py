"""Which trace a request belongs to (W3C Trace Context), and the spans that OpenTelemetry is told of, if wished for.

Telemetry room. Without OpenTelemetry a caller's trace context is handed on as it came; with it every leg has a span of
its own, and the engine is told that one. It decides what spans are called and hold: never the text of a query or a hit.
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
    """Where in which trace something is: the values of the headers `traceparent` and `tracestate`."""

    parent: bytes
    state: bytes = b""

    @property
    def id(self) -> str:
        """32 hexadecimal digits."""
        return self.parent[3:35].decode()

    @property
    def sampled(self) -> bool:
        """Whether somebody keeps it, as far as its sender knows."""
        return int(self.parent[53:55], 16) & 1 == 1

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """What an engine is told over HTTP."""
        parent = (b"traceparent", self.parent)
        return (parent, (b"tracestate", self.state)) if self.state else (parent,)

    @property
    def lines(self) -> bytes:
        """The same as header lines."""
        return b"".join([b"%b: %b\r\n" % header for header in self.headers])


OUTGOING: ContextVar[Trace | None] = ContextVar("OUTGOING", default=None)
"""What the engines that are asked from here are told."""

REQUEST_ID: ContextVar[str] = ContextVar("REQUEST_ID", default="")
"""The caller's own `X-Request-ID`, which the engines that are asked from here are sent; empty: there is none."""

_SPAN: ContextVar["Span | None"] = ContextVar("_SPAN", default=None)
"""Under which the next span belongs."""


def read_trace(parent: bytes, state: bytes = b"") -> Trace | None:
    """The trace context that a caller sent; None if it is none, which is then as if nothing had been sent."""
    if not _PARENT.fullmatch(parent) or parent[:2] == b"ff" or (parent[:2] == b"00" and len(parent) != 55):
        return None
    if parent[3:35] == _NOTHING or parent[36:52] == _NOTHING[:16]:
        return None
    return Trace(parent, state if _STATE.fullmatch(state) else b"")


class Span:
    """One span under way; `trace` is what is told to those who are asked within it."""

    __slots__ = ("_span", "trace")

    def __init__(self, span: "otel.Span", state: bytes) -> None:
        found = span.get_span_context()
        parent = b"00-%032x-%016x-%02x" % (found.trace_id, found.span_id, found.trace_flags)
        self._span = span
        self.trace = Trace(parent, state)

    def end(self, outcome: str, *, well: bool, **attributes: str | int | float) -> None:
        """It is over; `outcome` says how it ended, and `well` whether that is as it should be."""
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attributes({f"rcp.{name}": value for name, value in attributes.items()})
        self._span.set_attribute("rcp.outcome", outcome)
        self._span.set_status(Status(StatusCode.OK) if well else Status(StatusCode.ERROR, outcome))
        self._span.end()

    def __repr__(self) -> str:
        return f"<Span {self.trace.parent.decode()}>"


class Tracing:
    """Makes the spans of one gateway; None stands for it where no traces are wished for."""

    def __init__(self, provider: "TracerProvider") -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("rcp-gateway")

    def serve(self, method: str, request_id: str, sent: Trace | None, trace_id: object = None) -> Span:
        """The span of a request, below the caller's; `trace_id` is its `_meta.traceId`, heeded if nothing else is."""
        from opentelemetry.trace import SpanKind

        attributes = {"rpc.system": "jsonrpc", "rpc.method": method, "rcp.request_id": request_id}
        parent = _remote(sent, trace_id, self._provider)
        started = self._tracer.start_span(method, context=parent, kind=SpanKind.SERVER, attributes=attributes)
        return Span(started, b"" if sent is None else sent.state)

    def engine_call(self, engine: str, method: str) -> Span:
        """The span of asking one engine, below that of the request; those of one fan-out are siblings."""
        from opentelemetry.trace import SpanKind

        return self._below(f"leg {engine}", SpanKind.CLIENT, {"rcp.engine": engine, "rpc.method": method})

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """The span of what the gateway does itself for a while."""
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
        """Send what is left; takes a second at most if nobody is there to take it."""
        self._provider.shutdown()

    def __repr__(self) -> str:
        return f"<Tracing with {self._provider.sampler.get_description()}>"


def enter(span: Span) -> None:
    """From here on, in this task and those it makes, spans belong below this one and engines are told of it."""
    _SPAN.set(span)
    OUTGOING.set(span.trace)


def _remote(sent: Trace | None, trace_id: object, provider: "TracerProvider") -> "Context":
    """The context of a caller's span: as it said, else of its trace alone, else none."""
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
    """Spans for a collector of OTLP over HTTP, in a thread of their own. `ratio`: what share of traces begins here.

    Callers decide for the traces that they began. `lost` is told how many spans the collector did not take. Raises
    ModuleNotFoundError if OpenTelemetry is not installed.
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
