"""Probes, metrics and logs of a whole gateway: what the orchestrator, Prometheus and on-call see."""

import asyncio
import io
import json
from typing import Any

import pytest

from app.protocol import envelope
from app.telemetry import logs
from tests.support.listening_gateway import listening
from tests.support.ports import free_port
from tests.support.running_gateway import entry, running, until
from tests.support.scripted_engine import Http


async def test_readiness_waits_for_the_first_engine_and_never_follows_health(engines: Any) -> None:
    """Alive at once, ready with the first handshake, and still ready, but degraded, with every engine down (B120)."""
    engine = await engines(free_port())
    async with running([entry("e", engine), entry("down", "http://127.0.0.1:1/rcp")], reach=False) as gateway:
        assert (await gateway.client.get("/livez")).status_code == 200
        await until(lambda: gateway.state.engines.engines[1].advertisement is not None)
        ready = await gateway.client.get("/readyz")
        assert (ready.status_code, ready.json()) == (200, {"status": "ready", "degraded": True})
        await engine.stop()
        await gateway.call("retrieve", {"query": "q"})
        assert (await gateway.client.get("/readyz")).status_code == 200
    async with running([entry("down", "http://127.0.0.1:1/rcp")], reach=False) as gateway:
        waiting = await gateway.client.get("/readyz")
        assert waiting.status_code == 503
        assert "handshake" in waiting.json()["reason"]


async def test_what_can_be_looked_at_answers_to_head() -> None:
    """HEAD is answered as GET is, without the body (RFC 9110): probes of balancers, and `curl -I` at the console."""
    async with listening([]) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for path in ("/", "/console.js", "/livez", "/readyz", "/metrics", "/engines", "/admin/session"):
            heads = []
            for method in ("HEAD", "GET"):
                writer.write(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                heads.append(
                    [line for line in head.lower().splitlines() if not line.startswith(("date", "server", "content-l"))]
                )
            assert heads[0] == heads[1], path
            length = next(line for line in head.lower().splitlines() if line.startswith("content-length"))
            await reader.readexactly(int(length.partition(":")[2]))
        writer.close()


async def test_every_series_exists_from_the_start_and_none_is_added(engines: Any) -> None:
    """Each engine has every outcome at 0 before any request; strange methods and paths add nothing (B109, B111)."""
    engine = await engines()
    async with running([entry("e", engine)]) as gateway:
        text = (await gateway.client.get("/metrics")).text
        assert 'rcp_gateway_legs_total{engine="e",outcome="timeout"} 0.0' in text
        assert 'rcp_gateway_engine_up{engine="e"} 1.0' in text
        for index in range(50):
            await gateway.call(f"x-v{index}/m")
            await gateway.client.get(f"/path/{index}")
        after = (await gateway.client.get("/metrics")).text
    names = [line.split(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    grown = [line.split(" ")[0] for line in after.splitlines() if not line.startswith("#")]
    assert {name for name in set(grown) - set(names) if "code=" not in name} == set()


async def test_requests_engine_calls_and_overhead_are_counted(engines: Any) -> None:
    """One request is one observation of its outcome, one per leg, and one of the overhead."""
    well, sick = await engines(), await engines()
    sick.answers["retrieve"] = Http(500)
    async with running([entry("well", well), entry("sick", sick)]) as gateway:
        await gateway.retrieve()
        await gateway.error("retrieve", {})
        metric = gateway.metric
        assert await metric("rcp_gateway_requests_total", method="retrieve", outcome="degraded") == 1
        assert await metric("rcp_gateway_requests_total", method="retrieve", outcome="error") == 1
        assert await metric("rcp_gateway_legs_total", engine="well", outcome="ok") == 1
        assert await metric("rcp_gateway_legs_total", engine="sick", outcome="http_status") == 1
        assert await metric("rcp_gateway_leg_duration_seconds_count", engine="well", outcome="ok") == 1
        assert await metric("rcp_gateway_overhead_seconds_count") == 1
        assert await metric("rcp_gateway_errors_total", code="-32602") == 1
        assert await metric("rcp_gateway_requests_in_flight") == 0


async def test_both_exposition_formats_are_served(engines: Any) -> None:
    """Prometheus text by default, OpenMetrics for who asks for it."""
    async with running([entry("e", await engines())]) as gateway:
        plain = await gateway.client.get("/metrics")
        modern = await gateway.client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert plain.headers["content-type"].startswith("text/plain")
    assert modern.headers["content-type"].startswith("application/openmetrics-text")
    assert modern.text.endswith("# EOF\n")


@pytest.fixture
def log_lines() -> Any:
    """The JSON log lines written while a test runs."""
    out = io.StringIO()
    logs.configure("json", "info", envelope.dumps, out)
    yield lambda: [json.loads(line) for line in out.getvalue().splitlines()]
    logs.configure("json", "error", envelope.dumps)


async def test_one_json_line_per_request_without_its_text(engines: Any, log_lines: Any) -> None:
    """Each request leaves one line with id, method, outcome and time, and never the query or a hit's text."""
    async with running([entry("e", await engines())]) as gateway:
        body = {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": {"query": "the secret question"}}
        await gateway.post(body, headers={"X-Request-ID": "req-1"})
    lines = log_lines()
    (line,) = [line for line in lines if line["event"] == "request"]
    assert line["request_id"] == "req-1"
    assert line["method"] == "retrieve"
    assert line["outcome"] == "ok"
    assert line["ms"] > 0
    assert "secret" not in json.dumps(lines)
    assert "text of" not in json.dumps(lines)
    assert [line["event"] for line in lines if line.get("engine") == "e"] == ["engine_up"]


async def test_the_engines_view_names_states_not_addresses(engines: Any) -> None:
    """GET /engines lists id, state, version and capabilities, and no URL or header."""
    engine = await engines()
    entries = [entry("e", engine, headers={"X-Key": "sesame"}), entry("down", "http://127.0.0.1:1/rcp?key=sesame")]
    async with running(entries, reach=False) as gateway:
        await until(
            lambda: all(e.up or e.down_reason != "connect: no handshake yet" for e in gateway.state.engines.engines)
        )
        await until(lambda: gateway.state.engines.engines[1].up)
        response = await gateway.client.get("/engines")
    listed = {engine["id"]: engine for engine in response.json()["engines"]}
    assert listed["e"]["up"] is True
    assert listed["e"]["version"] == "1.0"
    assert "retrieve" in listed["e"]["capabilities"]
    assert listed["down"]["up"] is False
    assert listed["down"]["reason"].startswith("connect")
    assert "sesame" not in response.text


async def test_what_never_became_a_request_leaves_a_line_too(engines: Any, log_lines: Any) -> None:
    """A body that is no JSON-RPC is logged with its status and code, and counted by its code."""
    async with running([entry("e", await engines())]) as gateway:
        await gateway.post(b"{", headers={"X-Request-ID": "req-2"})
        assert await gateway.metric("rcp_gateway_errors_total", code="-32700") == 1
    (line,) = [line for line in log_lines() if line["event"] == "refused"]
    assert (line["request_id"], line["status"], line["code"]) == ("req-2", 400, -32700)
