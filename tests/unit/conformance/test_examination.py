"""An examination ends, whatever the server does: mute, dead, dying midway, or saying what nobody foresaw."""

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from app.conformance.examination import CHECKS, PATIENCE, Examination
from app.conformance.http_peer import HttpPeer
from app.conformance.stdio_peer import StdioPeer
from app.conformance.subject import QueryOptions
from app.conformance.verdict import Verdict
from tests.support.authority import Authority
from tests.support.breakable_server import BreakableServer
from tests.support.breaking import without
from tests.support.broken_hits import strings_only
from tests.support.broken_lines import LINE_BREAKS, STDIO_BREAKS
from tests.support.examined import examined, failed, passed, skipped, warned
from tests.support.model_process import PROGRAM
from tests.support.raw_peer import RawPeer


def script(text: str) -> StdioPeer:
    """A server over stdio that is this program."""
    return StdioPeer([sys.executable, "-c", textwrap.dedent(text)])


async def test_a_mute_server_ends_in_failures() -> None:
    """After three checks without an answer the others are not asked any more."""
    async with RawPeer(lambda line: line.until_ended()) as mute:
        report = await examined(mute.url, timeout=0.1)
    reasons = list(failed(report).values())
    assert reasons[:PATIENCE] == ["no answer within 0.1 seconds"] * PATIENCE
    assert set(reasons[PATIENCE:-1]) == {"not asked: the last 3 checks got no answer"}
    assert report.count(Verdict.PASS) == 0
    assert not report.admitted
    assert report.proved is None


async def test_nobody_there_is_told() -> None:
    """A port on which nobody listens fails with the reason."""
    report = await examined("http://127.0.0.1:9/rcp")
    assert failed(report)["handshake.info-first"].startswith("ConnectError")


async def test_a_command_that_there_is_not() -> None:
    """A program that cannot be started is told by its name."""
    report = await examined(StdioPeer(["/no/such/program"]))
    assert "'/no/such/program' cannot be started" in failed(report)["handshake.info-first"]


async def test_a_server_that_dies_midway_is_reported_and_started_again() -> None:
    """The check it dies in fails with last output; a new process shakes hands and is asked the rest."""
    peer = StdioPeer(
        [
            sys.executable,
            "-c",
            textwrap.dedent(f"""
            import json, sys
            sys.path.insert(0, {str(PROGRAM.parent)!r})
            import model_server
            server = model_server.build()
            def fall(params):
                sys.stderr.write("a bug\\nout of memory\\n")
                sys.stderr.flush()
                sys.stdout.flush()
                import os
                os._exit(7)
            server.on("query/transform", fall)
            server.serve_stdio()
            """),
        ]
    )
    report = await examined(peer, strict=False)
    found = failed(report)
    assert found.pop("transform.queries") == "the server ended with status 7; last output: out of memory"
    assert found.keys() == {"transform.methods", "claim.level"}
    assert {"graph.results", "stdio.shutdown"} <= passed(report)


async def test_a_stdio_server_that_hangs_once_is_started_again() -> None:
    """What it was asked then fails after its time, and nothing that follows."""
    peer = StdioPeer(
        [
            sys.executable,
            "-c",
            textwrap.dedent(f"""
            import sys, time
            sys.path.insert(0, {str(PROGRAM.parent)!r})
            import model_server
            server = model_server.build()
            server.on("graph", lambda params: time.sleep(60))
            server.serve_stdio()
            """),
        ]
    )
    report = await examined(peer, "graph.results", "catalog.list", "stdio.shutdown", strict=False, timeout=8.0)
    assert failed(report) == {"graph.results": "no answer within 8 seconds"}
    assert "catalog.list" in passed(report)


@pytest.mark.parametrize("check", STDIO_BREAKS)
async def test_breaks_of_a_child_process_are_caught(check: str) -> None:
    """No handshake wanted, words on stdout, and an end that never comes or comes with a status."""
    place, line = STDIO_BREAKS[check]
    before, serve = ("pass", line) if place == "serve" else (line, "server.serve_stdio()")
    peer = script(f"""
        import sys
        sys.path.insert(0, {str(PROGRAM.parent)!r})
        import model_server
        server = model_server.build()
        {before}
        {serve}
        """)
    report = await examined(peer, check, strict=False)
    assert failed(report).keys() | warned(report).keys() == {check}


@pytest.mark.parametrize("check", LINE_BREAKS)
async def test_breaks_of_lines_are_caught(check: str) -> None:
    """Ended by a blank line, every other message lost, and a cancelled request answered twice."""
    peer = script(f"""
        import sys
        sys.path.insert(0, {str(PROGRAM.parent)!r})
        import model_server
        server = model_server.build()
        for line in iter(sys.stdin.readline, ""):
            {LINE_BREAKS[check]}
            answer = server.handle_line(line) if line.strip() else ""
            if answer:
                print(answer, flush=True)
        """)
    assert check in failed(await examined(peer, check, strict=False, timeout=2.0))


async def test_what_nobody_foresaw_is_a_failure_and_no_end() -> None:
    """A check that stumbles over an answer fails with it, and the next one is run."""
    async with BreakableServer() as server:
        server.replace(
            "catalog/list", lambda before, params: {"engines": [{"id": "a", "server": {}, "capabilities": {}}]}
        )
        server.change_hits(lambda hits, _: [hit.update(meta=7) for hit in hits])
        report = await examined(server.url)
    assert "cannot be made sense of" in failed(report)["filter.eq"]
    assert "catalog.list" in passed(report)


async def test_a_part_of_the_checks_proves_nothing() -> None:
    """With `only`, the handshake is made, what is wanted is reported, and no level is judged."""
    async with BreakableServer() as server:
        report = await examined(server.url, "filter.eq", "pages.")
    assert {check.partition(".")[0] for check in passed(report)} == {"filter", "pages"}
    assert report.proved is None
    assert report.claimed == "L2"


async def test_a_session_is_taken_up() -> None:
    """A server that gives a token in `_meta.session` gets it back in the header of every later request."""
    seen: list[str | None] = []

    class Sessions(BreakableServer):
        def handle(self, message: Any) -> Any:
            response = super().handle(message)
            if response and message.get("method") == "initialize" and "result" in response:
                response["result"]["_meta"]["session"] = "token-7"
            return response

    async with Sessions() as server:
        peer = HttpPeer(server.url, {})
        await Examination(peer, QueryOptions(), only=["handshake."]).run(lambda finding: seen.append(finding.check.id))
        assert peer._client.headers["RCP-Session"] == "token-7"
    assert "handshake.again" in seen


async def test_writing_needs_permission() -> None:
    """Nothing is written to a server that may not be written to, and the reason says how to allow it."""
    async with BreakableServer() as server:
        report = await Examination(HttpPeer(server.url, {}), QueryOptions()).run()
    writing = {"index.round-trip", "index.no-documents", "memory.round-trip"}
    assert writing <= skipped(report).keys()
    assert "--write" in skipped(report)["index.round-trip"]


async def test_what_is_not_advertised_is_skipped() -> None:
    """A small honest server passes with what it has."""
    async with BreakableServer() as server:
        for name in set(server.offers) - {"retrieve"}:
            del server.offers[name]
        server.offers["retrieve"] = {"maxK": 20, "modes": ["dense"]}
        server.model._conformance = "L0"
        server.replace("retrieve", _plain)
        report = await examined(server.url)
    assert failed(report) == {}
    assert (report.claimed, report.proved) == ("L0", "L1")
    assert skipped(report)["embed.vectors"] == "not advertised: embed"
    assert {"gating.missing", "filter.not-offered"} <= passed(report)


@pytest.mark.parametrize("level", ["L0", "L1"])
async def test_a_text_only_server_may_take_strings_alone(level: str) -> None:
    """A query as a text block is refused with -32602, as RCP §4.8 allows: no failure, no warning (C6)."""
    async with BreakableServer() as server:
        server.model._conformance = level
        server.replace("retrieve", strings_only)
        report = await examined(server.url, strict=False)
    assert "retrieve.query-content" in passed(report)
    assert report.admitted


async def test_musts_alone_admit() -> None:
    """A server of L1 that keeps every MUST, and few recommendations, is admitted with warnings; strictly it is not."""
    async with BreakableServer() as server:
        for name in set(server.offers) - {"retrieve"}:
            del server.offers[name]
        server.offers["retrieve"] = {"maxK": 20, "modes": ["dense"]}
        server.model._conformance = "L1"
        server.replace("retrieve", _plain)
        server.replace("retrieve", strings_only)
        without(server, "minScore", "includeVectors", "includeText")
        report = await examined(server.url, strict=False)
        strictly = await examined(server.url)
    assert failed(report) == {}
    assert (report.claimed, report.proved, report.admitted) == ("L1", "L1", True)
    assert {"claim.profile", "retrieve.min-score", "retrieve.include-text"} <= warned(report).keys()
    assert not strictly.admitted


async def test_a_fault_above_the_claimed_level_is_told_and_keeps_nobody_out() -> None:
    """Scores that belong to no passage fail, and a server that claims L1 is held to L1."""
    async with BreakableServer() as server:
        server.model._conformance = "L1"
        server.replace("rerank", lambda before, params: {**before(params), "scores": [3.0, 2.0, 1.0], "order": None})
        report = await examined(server.url, strict=False)
    assert failed(report).keys() == {"rerank.scores"}
    assert (report.proved, report.admitted) == ("L1", True)


ODD = """
    import json, sys
    sys.path.insert(0, {parent!r})
    import model_server
    server = model_server.build()
    held = []
    for line in iter(sys.stdin.readline, ""):
        answer = server.handle_line(line) if line.strip() else ""
        {odd}
        if answer:
            print(answer, flush=True)
    """


@pytest.mark.parametrize(
    ("odd", "wanted"),
    [
        # A reply to nobody, with an id of its own, before the answers to everything else.
        ("""print('{"jsonrpc": "2.0", "id": "nobody", "result": {}}', flush=True)""", {"stdio.one-reply"}),
        # Every answer comes twice, the second one in front of the next.
        ("print(answer, flush=True) if answer else None", {"stdio.one-reply", "stdio.cancel"}),
    ],
)
async def test_replies_are_matched_by_id_over_stdio(odd: str, wanted: set[str]) -> None:
    """A line that answers nothing fails one check, and no other is misled by it."""
    peer = script(ODD.format(parent=str(PROGRAM.parent), odd=odd))
    report = await examined(peer, strict=False)
    found = failed(report)
    found.pop("claim.level")
    assert found.keys() - {"batch.notifications"} == wanted
    assert len(passed(report)) > 90


async def test_answers_out_of_order_are_no_fault() -> None:
    """Of requests that are sent at once the last may be answered first (RCP §4.7)."""
    program = f"""
import sys
sys.path.insert(0, {str(PROGRAM.parent)!r})
import model_server
server, held = model_server.build(), []
for line in iter(sys.stdin.readline, ""):
    answer = server.handle_line(line) if line.strip() else ""
    if "pipelined" in answer:
        held.insert(0, answer)
        answer = chr(10).join(held) if len(held) == 20 else ""
    if answer:
        print(answer, flush=True)
"""
    peer = script(program)
    report = await examined(peer, "stdio.pipelined", "stdio.one-reply", strict=False)
    assert failed(report) == {}
    assert {"stdio.pipelined", "stdio.one-reply"} <= passed(report)


def _plain(before: Any, params: Any) -> Any:
    """Dense retrieval without filters, pages and snapshots."""
    import rcp

    for option in ("filter", "cursor", "indexVersion"):
        if option in params:
            raise rcp.RcpError(-32005, "not offered", {"option": option})
    if params.get("mode", "dense") != "dense":
        if params.get("strict", True):
            raise rcp.RcpError(-32005, "not offered", {"option": "mode"})
        params = {**params, "mode": "dense"}
        result = before(params)
        result["usage"]["notes"] = ["mode is not offered"]
        return result
    return before(params)


async def test_a_question_without_hits_is_told() -> None:
    """Checks that need hits are skipped, and say that another question may help; L1 is not proved so."""
    async with BreakableServer() as server:
        server.change_hits(lambda hits, _: hits.clear())
        report = await examined(server.url)
    assert "--query" in skipped(report)["retrieve.scores"]
    assert "retrieve.scores did not pass" in failed(report)["claim.level"]


def test_every_check_speaks() -> None:
    """Each check has an id of its own with a group, a section, and a sentence."""
    assert len({check.id for check in CHECKS}) == len(CHECKS) > 100
    for check in CHECKS:
        assert check.group != check.id
        assert check.section[0].isdigit()
        assert check.sentence.endswith(".")


async def test_state_is_told() -> None:
    """Examination and peers say what they are at."""
    async with BreakableServer() as server:
        examination = Examination(HttpPeer(server.url, {}), QueryOptions(), only=["batch."])
        await examination.run()
        assert repr(examination).startswith(f"<Examination of HttpPeer({server.url}), ")
    peer = StdioPeer(["/bin/cat"])
    assert repr(peer) == "StdioPeer(/bin/cat, not running, 0 lines of noise)"
    await peer.close()


async def test_certificates_are_looked_at(tmp_path: Path) -> None:
    """A server over HTTPS whose certificate nobody has vouched for is not spoken to."""
    tls = Authority(tmp_path).server("127.0.0.1")
    async with RawPeer(lambda line: line.until_ended(), tls=tls) as peer:
        report = await examined(peer.url, "handshake.info-first")
    assert "certificate" in failed(report)["handshake.info-first"].lower()
