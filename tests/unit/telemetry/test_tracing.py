"""Trace contexts as they are read and written, and spans as they reach a collector."""

import asyncio
import gzip
import io
import json
import socket
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Event, Thread
from typing import ClassVar

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from app.protocol.envelope import dumps
from app.telemetry import logs, span_export
from app.telemetry.tracing import OUTGOING, Trace, enter, read_trace, tracing_to

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_trace_is_read_and_written_as_it_came() -> None:
    """Id, headers and lines of a context; one of a later version is kept whole."""
    trace = read_trace(PARENT, b"a=1,b=2")
    assert trace == Trace(PARENT, b"a=1,b=2")
    assert trace.id == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert trace.lines == b"traceparent: " + PARENT + b"\r\ntracestate: a=1,b=2\r\n"
    assert read_trace(b"cc" + PARENT[2:] + b"-more") == Trace(b"cc" + PARENT[2:] + b"-more")


@pytest.mark.parametrize(
    "parent", [b"", PARENT[:-1], PARENT.upper(), PARENT + b"-x", b"ff" + PARENT[2:], PARENT[:36] + b"0" * 16 + b"-01"]
)
def test_what_is_malformed_is_no_trace(parent: bytes) -> None:
    """Neither half a context nor one of zeros is taken for one."""
    assert read_trace(parent) is None


@pytest.mark.parametrize("state", [b"a=1\r\nx: y", b"a" * 513, b"\xff"])
def test_a_state_that_could_not_be_sent_is_left_out(state: bytes) -> None:
    """What might break a header never reaches an engine's."""
    assert read_trace(PARENT, state) == Trace(PARENT)


class Collector(BaseHTTPRequestHandler):
    """Takes spans of OTLP over HTTP."""

    taken: ClassVar[list[ExportTraceServiceRequest]] = []

    def do_POST(self) -> None:
        """One batch of spans."""
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.taken.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed."""


@pytest.mark.parametrize(("ratio", "kept"), [(1.0, ["leg docs", "retrieve"]), (0.0, [])])
async def test_spans_reach_a_collector(ratio: float, kept: list[str]) -> None:
    """As many as `ratio` says, with the name of the service; what is told to engines says whether they are kept."""
    Collector.taken.clear()
    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        tracing = tracing_to(f"http://127.0.0.1:{server.server_port}/v1/traces", ratio, "gate", "1.2")
        request = tracing.serve("retrieve", "r-1", None)
        enter(request)
        engine_call = tracing.engine_call("docs", "retrieve")
        assert OUTGOING.get() == request.trace
        assert int(request.trace.parent[-2:], 16) & 1 == bool(kept)
        assert (engine_call.trace.id, engine_call.trace.parent[36:52]) != (
            request.trace.id,
            request.trace.parent[36:52],
        )
        assert engine_call.trace.id == request.trace.id
        assert repr(engine_call) == f"<Span {engine_call.trace.parent.decode()}>"
        engine_call.end("timeout", well=False, attempts=2)
        request.end("degraded", well=True)
        await asyncio.to_thread(tracing.close)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    sent = [resource for taken in Collector.taken for resource in taken.resource_spans]
    spans = [span for resource in sent for scope in resource.scope_spans for span in scope.spans]
    assert sorted(span.name for span in spans) == kept
    if kept:
        (service,) = [mark for mark in sent[0].resource.attributes if mark.key == "service.name"]
        assert service.value.string_value == "gate"
        assert [span.status.message for span in spans if span.name == "leg docs"] == ["timeout"]


class HungCollector:
    """Accepts connections and never answers."""

    def __enter__(self) -> str:
        self._socket = socket.create_server(("127.0.0.1", 0))
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1/traces"

    def __exit__(self, *exc_info: object) -> None:
        self._socket.close()


def test_a_collector_that_hangs_delays_no_shutdown(capsys: pytest.CaptureFixture[str]) -> None:
    """Closing ends within the bound; the spans are counted as lost, in one line of the gateway's own form."""
    lost: list[int] = []
    logs.configure("json", "info", dumps, stream := io.StringIO())
    with HungCollector() as endpoint:
        tracing = tracing_to(endpoint.replace("//", "//user:SECRET@"), 1.0, "gate", "1.2", lost.append)
        for _ in range(3):
            tracing.serve("retrieve", "r-1", None).end("ok", well=True)
        closing = Thread(target=tracing.close)
        closing.start()
        closing.join(span_export.FLUSH_SECONDS + 10)
        assert not closing.is_alive()
    assert lost == [3]
    (line,) = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (line["event"], line["level"], line["spans"]) == ("traces_lost", "warning", 3)
    assert "SECRET" not in stream.getvalue()
    assert capsys.readouterr().err == ""


class Refusing(SpanExporter):
    """Takes no spans."""

    def __init__(self) -> None:
        self.asked = Event()
        self.go = Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.asked.set()
        self.go.wait(30)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self.go.set()


def test_lost_spans_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans beyond the queue, and those of a batch that is refused, are lost, each counted once."""
    monkeypatch.setattr(span_export, "MAX_WAITING", 512)
    lost: list[int] = []
    exporter = Refusing()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(span_export.SpanExport("http://collector/", lost.append, exporter))
    tracer = provider.get_tracer("t")
    for _ in range(512):
        tracer.start_span("s").end()
    assert exporter.asked.wait(30)
    for _ in range(513):
        tracer.start_span("s").end()
    assert lost == [1]
    exporter.go.set()
    provider.shutdown()
    assert sum(lost) == 1025
