"""Traces go through the gateway: as the caller said without OpenTelemetry, and with a span of every leg with it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from app.telemetry.tracing import Tracing
from tests.support.log_lines import own_log
from tests.support.running_gateway import RunningGateway, entry, made_state, running, until
from tests.support.scripted_engine import ScriptedEngine, hang

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
HEADERS = {"traceparent": PARENT, "tracestate": "vendor=1"}


def told(engine: ScriptedEngine) -> tuple[str | None, str | None, str | None]:
    """(traceparent, tracestate, `_meta.traceId`) of the last retrieve an engine was sent."""
    last = engine.requests()[-1]
    return last.headers.get("traceparent"), last.headers.get("tracestate"), last.params["_meta"].get("traceId")


def spans_of(gateway: RunningGateway) -> InMemorySpanExporter:
    """Let this gateway make spans from now on, and keep them here."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    gateway.state.instrumentation.tracing = Tracing(provider)
    return kept


def named(spans: Sequence[ReadableSpan], prefix: str) -> list[ReadableSpan]:
    """The spans whose names begin so."""
    return [span for span in spans if span.name.startswith(prefix)]


@pytest.mark.parametrize("client", ["http", "httpx"])
async def test_a_callers_trace_reaches_the_engines(engines: Any, client: str) -> None:
    """Without OpenTelemetry the context is passed on as it came, and the log has its id."""
    one, two = await engines(), await engines()
    entries = [entry(name, engine, client=client) for name, engine in (("one", one), ("two", two))]
    with own_log() as log:
        async with running(entries) as gateway:
            for _ in range(2):
                await gateway.result("retrieve", {"query": "q"}, headers=HEADERS)
                assert told(one) == told(two) == (PARENT, "vendor=1", TRACE)
            await gateway.retrieve()
            assert told(one) == (None, None, None)
            await gateway.result("retrieve", {"query": "q", "_meta": {"traceId": "mine"}}, headers=HEADERS)
            assert told(one) == (PARENT, "vendor=1", "mine")
    lines = [line for line in log.lines if line["event"] == "request"]
    assert [line.get("trace") for line in lines] == [TRACE, TRACE, None, TRACE]


@pytest.mark.parametrize(
    "sent", ["", "00-xyz", f"00-{'0' * 32}-00f067aa0ba902b7-01", PARENT + "-more", "ff" + PARENT[2:]]
)
async def test_what_is_no_trace_is_as_nothing(engines: Any, sent: str) -> None:
    """A malformed traceparent is not passed on, and costs nobody an answer."""
    engine = await engines()
    async with running([entry("e", engine)]) as gateway:
        await gateway.result("retrieve", {"query": "q"}, headers={"traceparent": sent, "tracestate": "vendor=1"})
    assert told(engine) == (None, None, None)


async def test_each_engine_call_has_a_span_of_its_own(engines: Any) -> None:
    """Three engines: three sibling spans of one trace, below the request's, which is below the caller's (B115)."""
    made = {name: await engines() for name in ("a", "b", "c")}
    async with running([entry(name, engine) for name, engine in made.items()]) as gateway:
        kept = spans_of(gateway)
        await gateway.result("retrieve", {"query": "q"}, headers=HEADERS)
    spans = kept.get_finished_spans()
    (request,) = named(spans, "retrieve")
    assert request.kind is SpanKind.SERVER
    assert request.parent is not None
    assert f"{request.parent.span_id:016x}" == PARENT[36:52]
    engine_calls = named(spans, "leg ")
    assert sorted(engine_call.name for engine_call in engine_calls) == ["leg a", "leg b", "leg c"]
    assert sorted(span.name for span in spans) == ["fuse", "leg a", "leg b", "leg c", "plan", "retrieve"]
    for span in spans:
        assert f"{span.context.trace_id:032x}" == TRACE
        assert span.status.status_code is StatusCode.OK
        assert span is request or (span.parent is not None and span.parent.span_id == request.context.span_id)
    for engine_call in engine_calls:
        parent, state, trace_id = told(made[engine_call.name[-1]])
        assert (parent, state, trace_id) == (f"00-{TRACE}-{engine_call.context.span_id:016x}-01", "vendor=1", TRACE)
    texts = str([dict(span.attributes or {}) for span in spans])
    assert "'q'" not in texts


async def test_a_trace_id_alone_is_heeded(engines: Any) -> None:
    """`_meta.traceId` names the trace if no header does; without either a trace begins here."""
    engine = await engines()
    async with running([entry("e", engine)]) as gateway:
        kept = spans_of(gateway)
        await gateway.retrieve(_meta={"traceId": TRACE})
        assert {f"{span.context.trace_id:032x}" for span in kept.get_finished_spans()} == {TRACE}
        kept.clear()
        await gateway.retrieve()
        (begun,) = {f"{span.context.trace_id:032x}" for span in kept.get_finished_spans()}
        assert told(engine)[2] == begun != TRACE


async def test_late_failed_and_cancelled_engine_calls_end_their_spans(engines: Any) -> None:
    """Whatever becomes of a leg, its span ends with a status that says so (B115)."""
    well, late, sick = await engines(), await engines(), await engines()
    late.answers["retrieve"] = hang
    sick.answers["retrieve"] = {"nothing": 1}
    entries = [entry("well", well), entry("late", late, timeoutMs=150), entry("sick", sick, retries=0)]
    async with running(entries) as gateway:
        kept = spans_of(gateway)
        await gateway.retrieve()
        outcomes = {
            span.name: (span.attributes or {})["rcp.outcome"] for span in named(kept.get_finished_spans(), "leg")
        }
        assert outcomes == {"leg well": "ok", "leg late": "timeout", "leg sick": "protocol"}
        kept.clear()
        well.answers["retrieve"] = hang
        asking = asyncio.create_task(gateway.retrieve())
        await until(lambda: len(well.requests()) == 2)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    ended = {span.name: span for span in kept.get_finished_spans()}
    assert ended["leg well"].status.status_code is StatusCode.ERROR
    assert ended["leg well"].status.description == "cancelled"
    assert ended["retrieve"].status.description == "cancelled"


async def test_methods_of_one_and_of_many_engines_are_traced(engines: Any) -> None:
    """What is gathered from several has a span per leg; what goes to one engine is told of the request's."""
    made = [await engines(), await engines()]
    for engine in made:
        engine.answers["memory/list"] = {"memories": []}
    async with running([entry("a", made[0]), entry("b", made[1])]) as gateway:
        kept = spans_of(gateway)
        await gateway.call("retrieve", {"query": "q"}, base="/engines/a/rcp", headers=HEADERS)
        (request,) = kept.get_finished_spans()
        assert told(made[0])[0] == f"00-{TRACE}-{request.context.span_id:016x}-01"
    assert repr(gateway.state.instrumentation.tracing).startswith("<Tracing with ParentBased")


@pytest.mark.parametrize("ratio", [0.25, 1.0])
def test_settings_say_where_spans_go(ratio: float) -> None:
    """`traces.endpoint` turns spans on and `traces.ratio` is the share that is kept; without them there are none."""
    entries = [entry("e", "http://127.0.0.1:1/rcp")]
    assert made_state(entries).instrumentation.tracing is None
    settings = {"traces": {"endpoint": "http://127.0.0.1:1/v1/traces", "ratio": ratio}}
    tracing = made_state(entries, settings).instrumentation.tracing
    assert f"TraceIdRatioBased{{{ratio}}}" in repr(tracing)
    assert tracing is not None
    tracing.close()
