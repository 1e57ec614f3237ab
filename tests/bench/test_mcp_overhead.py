"""What MCP costs is measured on calls that are answered: requests are MCP's, faults count, sums are right."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.mcp_overhead import BEFORE, MODERN, McpCrew, prebuilt_call, report
from tests.support.mcp_peer import SERVED
from tests.support.running_gateway import entry, running
from tests.support.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the bench reads CPU time from a Linux kernel")


def answer(hits: int = 10, status: str = "ok", message_id: int = 3) -> bytes:
    """The answer to a tool call."""
    content: Any = {"hits": [{}] * hits, "engines": [{"id": "a", "status": status}]}
    return json.dumps({"jsonrpc": "2.0", "id": message_id, "result": {"structuredContent": content}}).encode()


def test_only_whole_answers_count() -> None:
    """Another status, id or number of hits, an error, or an engine that failed is a fault."""
    crew = McpCrew("http://127.0.0.1:1/rcp", MODERN, 1, 10)
    good = b"HTTP/1.1 200"
    assert crew.fault_of(good, answer(), 3) is None
    assert crew.fault_of(b"HTTP/1.1 429", b"", 3) == "status 429"
    assert crew.fault_of(good, answer(), 4) == "another id"
    assert crew.fault_of(good, answer(9), 3) == "9 hits"
    assert crew.fault_of(good, answer(status="failed"), 3) == "degraded"
    assert crew.fault_of(good, b'{"id": 3, "error": {}}', 3) == "no result"


def test_overhead_is_computed_round_by_round() -> None:
    """Medians of differences and of ratios within a round, not of sums over rounds."""
    reported = report({"rcp": [100.0, 200.0, 100.0], "mcp": [200.0, 400.0, 300.0]})
    assert reported["rcp"] == {"cpuUs": 100, "overRcpUs": 0, "ratio": 1.0}
    assert reported["mcp"] == {"cpuUs": 300, "overRcpUs": 200, "ratio": 2.0}


@pytest.mark.parametrize("version", [MODERN, BEFORE])
async def test_the_calls_are_understood(version: str) -> None:
    """What the bench sends is answered with passages."""
    head, _, body = prebuilt_call("gateway", version, 3, 2).partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    engine = await ScriptedEngine().start()
    try:
        async with running([entry("docs", engine)], SERVED) as gateway:
            response = await gateway.post(body, "/mcp", headers)
    finally:
        await engine.stop()
    assert response.status_code == 200
    assert '"hits"' in response.text


def test_the_bench_runs() -> None:
    """A short run against a real gateway reports all three forms."""
    command = [
        sys.executable,
        "-m",
        "bench.mcp_overhead",
        "--rounds",
        "1",
        "--requests",
        "8",
        "--callers",
        "2",
        "--json",
    ]
    run = subprocess.run(
        [*command, "--engines", "2"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    reported = json.loads(run.stdout)
    assert list(reported) == ["rcp", f"mcp {MODERN}", f"mcp {BEFORE}"]
    assert all(row["cpuUs"] > 0 for row in reported.values())
