"""The conformance checks against real servers: the published SDK over HTTP and stdio, and the gateway's endpoints."""

import json
import sys
from pathlib import Path

import pytest

from app.conformance.http_peer import HttpPeer
from app.conformance.stdio_peer import StdioPeer
from tests.support.examined import examined, failed, passed, skipped, warned
from tests.support.listening_gateway import listening
from tests.support.model_process import OVER_STDIO, model_over_http
from tests.support.running_gateway import entry

SDK_DEPARTURES = {
    "framing.null-id",
    "framing.bad-id",
    "framing.version",
    "framing.positional",
    "framing.no-json",
    "framing.path",
    "options.null",
    "stream.refusal",
}
"""What servers on the SDK do differently: tolerated, and failures if strict."""


async def test_the_sdk_passes_over_http() -> None:
    """A server on the published SDK that claims L2 proves it."""
    with model_over_http() as url:
        report = await examined(url, strict=False)
        assert failed(report) == {}
        assert warned(report).keys() == SDK_DEPARTURES
        assert (report.claimed, report.proved, report.admitted) == ("L2", "L2", True)
        assert len(passed(report)) > 100
        again = await examined(url, strict=True)
    assert failed(again).keys() == SDK_DEPARTURES
    assert not again.admitted
    assert "somebody else has initialized" in skipped(again)["handshake.version"]


async def test_the_sdk_passes_over_stdio() -> None:
    """The same over stdio, where the handshake is required and the process ends as it should."""
    report = await examined(StdioPeer(OVER_STDIO), strict=False)
    assert failed(report) == {}
    assert report.proved == "L2"
    assert {"handshake.required", "stdio.clean-output", "stdio.end-of-input", "stdio.shutdown"} <= passed(report)
    assert "stream.progress" in skipped(report)


SMALL = Path(__file__).parents[1] / "support" / "small_server.py"


@pytest.mark.parametrize("level", ["L0", "L1"])
async def test_a_small_server_on_the_sdk_is_admitted(level: str) -> None:
    """Dense retrieval of strings, and every MUST kept: recommendations that are missing warn."""
    report = await examined(StdioPeer([sys.executable, str(SMALL), level]), strict=False)
    assert failed(report) == {}
    assert (report.claimed, report.proved, report.admitted) == (level, "L1", True)
    assert "retrieve.query-content" in passed(report)
    assert ("claim.profile" in warned(report)) == (level == "L1")


async def test_more_than_is_proved_may_not_be_claimed() -> None:
    """A server that offers nothing of L2 does not get it by saying so."""
    report = await examined(StdioPeer([sys.executable, str(SMALL), "L2"]), strict=False)
    assert failed(report).keys() == {"claim.level"}
    assert not report.admitted


async def test_a_server_that_states_no_level_is_not_admitted() -> None:
    """To state it is a MUST (RCP §14), which servers on the SDK break unless they call `set_conformance`."""
    report = await examined(StdioPeer([sys.executable, str(SMALL)]), strict=False)
    assert failed(report).keys() == {"capabilities.claim"}
    assert not report.admitted


async def test_the_gateway_proves_what_it_claims() -> None:
    """In front of two such engines, the gateway passes strictly, at the level that it claims."""
    with model_over_http() as one, model_over_http() as two:
        async with listening([entry("one", one), entry("two", two)]) as (_, port):
            report = await examined(HttpPeer(f"http://127.0.0.1:{port}/rcp", {}))
    assert failed(report) == {}
    assert report.claimed == report.proved
    assert report.claimed in ("L1", "L2")
    wanted = {"framing.path", "framing.compact", "batch.malformed", "stream.progress", "pages.no-gaps", "filter.or"}
    assert wanted <= passed(report)
    assert {"graph.results", "feedback.accepted", "feedback.bad-signals", "memory.recall"} <= passed(report)
    assert "memory.round-trip" in passed(report)


async def test_memories_are_built_through_the_gateway() -> None:
    """Where one engine has memories it is clear which one is meant, and what is built is recalled by its name."""
    with model_over_http() as one:
        async with listening([entry("one", one)]) as (_, port):
            report = await examined(f"http://127.0.0.1:{port}/rcp")
    assert failed(report) == {}
    assert "memory.round-trip" in passed(report)


async def test_the_gateway_proves_it_where_a_handshake_is_required() -> None:
    """The same where a session must begin with `initialize`: -32001 before it, -32600 for a second one."""
    with model_over_http() as one, model_over_http() as two:
        settings = {"server": {"handshake": "required"}}
        async with listening([entry("one", one), entry("two", two)], settings) as (_, port):
            report = await examined(f"http://127.0.0.1:{port}/rcp")
    assert failed(report) == {}
    assert report.claimed == report.proved
    assert {"handshake.required", "handshake.version", "handshake.again"} <= passed(report)


async def test_the_gateway_proves_it_over_stdio(tmp_path: Path) -> None:
    """The same as a child process: clean output, requests sent at once, and an end in good order."""
    with model_over_http() as one, model_over_http() as two:
        registry = tmp_path / "rcp.json"
        registry.write_text(json.dumps({"engines": [entry("one", one), entry("two", two)]}), encoding="utf-8")
        peer = StdioPeer([sys.executable, "-m", "app", "stdio", "--registry", str(registry)])
        report = await examined(peer)
    assert failed(report) == {}
    assert report.claimed == report.proved
    assert {"stdio.pipelined", "stdio.cancel", "stdio.end-of-input", "stream.progress"} <= passed(report)


async def test_an_engine_proves_at_its_own_endpoint_what_it_proves_alone() -> None:
    """One engine behind the gateway keeps its level, and departs from RCP in nothing that it does not by itself."""
    with model_over_http() as one, model_over_http() as two:
        async with listening([entry("one", one), entry("two", two)]) as (_, port):
            url = f"http://127.0.0.1:{port}/engines/one/rcp"
            report = await examined(url, strict=False)
            strictly = await examined(url)
    assert failed(report) == {}
    assert (report.claimed, report.proved) == ("L2", "L2")
    assert failed(strictly).keys() <= SDK_DEPARTURES
