"""Asking a running gateway from the command line."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tests.support.ports import free_port

Run = Callable[..., Result]
ROOT = Path(__file__).parents[3]
HIT = {"id": "d1", "score": 0.5, "text": "some text", "meta": {"engine": "docs"}}


def test_hits_go_to_stdout_and_notes_to_stderr(gateway: Any, run: Run) -> None:
    """What was asked for and what is said about it can be told apart by a script."""
    engines = [{"id": "code", "status": "failed", "reason": "connect"}]
    gateway.result(hits=[HIT], usage={"notes": ["code: connect"]}, _meta={"x-gateway": {"engines": engines}})
    result = run("query", "what", "--url", gateway.url)
    assert result.exit_code == 0
    assert result.stdout.split() == ["1.", "0.5000", "docs", "d1", "some", "text"]
    assert result.stderr.splitlines() == ["note: code: connect", "failed engines: code (connect)"]


def test_options_become_params(gateway: Any, run: Run) -> None:
    """Each option is sent as the protocol names it; what is not given is not sent."""
    gateway.result(hits=[])
    tree = {"field": "a", "op": "eq", "value": 1}
    words = ["-k", 3, "--mode", "dense", "--filter", json.dumps(tree), "--engines", "a, b", "--timeout", "2.5"]
    run("query", "what", "--url", gateway.url, *words)
    run("query", "what", "--url", gateway.url)
    (verb, path, full), (_, _, bare) = gateway.asked
    assert (verb, path, full["method"]) == ("POST", "/rcp/retrieve", "retrieve")
    assert full["params"] == {
        "query": "what",
        "k": 3,
        "mode": "dense",
        "filter": tree,
        "x-gateway": {"engines": ["a", "b"]},
        "_meta": {"deadlineMs": 2500},
    }
    assert bare["params"] == {"query": "what", "k": 10, "_meta": {"deadlineMs": 30000}}


@pytest.mark.parametrize("ending", ["", "/", "/rcp", "/rcp/"])
def test_addresses_are_taken_as_people_write_them(gateway: Any, run: Run, ending: str) -> None:
    """With or without scheme, slash and `/rcp`, the same endpoint is found."""
    gateway.result(hits=[])
    for url in (gateway.url, gateway.url.removeprefix("http://"), gateway.url.removeprefix("http://127.0.0.1")):
        assert run("query", "what", "--url", url + ending).exit_code == 0
    assert {path for _, path, _ in gateway.asked} == {"/rcp/retrieve"}


def test_json_is_the_result_and_nothing_else(gateway: Any, run: Run) -> None:
    """`--json` prints what the gateway sent, harmless to terminals and unchanged in meaning."""
    sent = {"hits": [{**HIT, "text": "\x9b2Jü\u202e"}], "usage": {"notes": ["n"]}}
    gateway.result(**sent)
    result = run("query", "what", "--url", gateway.url, "--json")
    assert json.loads(result.stdout) == sent
    assert "\x9b" not in result.stdout
    assert result.stderr == ""


def test_an_empty_answer_says_so(gateway: Any, run: Run) -> None:
    """No hits is an answer, not an error."""
    gateway.result(hits=[])
    result = run("query", "what", "--url", gateway.url)
    assert (result.exit_code, result.stdout) == (0, "no hits\n")


def test_an_error_is_told_with_code_and_field(gateway: Any, run: Run) -> None:
    """A JSON-RPC error comes out as its message, code and field, on stderr, exit code 1."""
    gateway.error(-32602, "unknown field\x1b[2J", field="filter.modul")
    result = run("query", "what", "--url", gateway.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: unknown field [2J (code -32602, field filter.modul)\n".replace(" [2J", "�[2J")


def test_an_error_tells_why_each_engine_failed(gateway: Any, run: Run) -> None:
    """When no engine answered, the reason of each has a line."""
    gateway.error(-32010, "no engine answered", notes=["docs: connect", "code: timeout"])
    stderr = run("query", "what", "--url", gateway.url).stderr
    assert stderr.splitlines() == ["error: no engine answered (code -32010)", "  docs: connect", "  code: timeout"]


def test_an_error_tells_its_detail(gateway: Any, run: Run) -> None:
    """Where there are no notes, the detail has a line."""
    gateway.error(-32010, "no engine has been reached yet", detail="docs: connect: refused")
    assert run("query", "what", "--url", gateway.url).stderr.splitlines()[1] == "  docs: connect: refused"


def test_a_refusal_of_the_door_is_read_as_an_error(gateway: Any, run: Run) -> None:
    """HTTP 401 with a JSON-RPC body is that JSON-RPC error."""
    gateway.status = 401
    gateway.error(-32012, "who are you?")
    assert "who are you? (code -32012)" in run("query", "what", "--url", gateway.url).stderr


def test_no_gateway_is_told_with_the_remedy(run: Run) -> None:
    """Where nothing listens, one line says how to start a gateway."""
    url = f"http://127.0.0.1:{free_port()}"
    result = run("query", "what", "--url", url)
    assert result.exit_code == 1
    assert result.stderr == (
        f"error: no gateway is running at {url}; start one with: rcp-gateway serve (or: rcp-gateway demo)\n"
    )


def test_a_silent_gateway_is_given_up(gateway: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that does not answer in time is told with that time."""
    monkeypatch.setattr("app.cli.gateway_client.GRACE_SECONDS", 0.0)
    gateway.mute = True
    result = run("query", "what", "--url", gateway.url, "--timeout", "0.05")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: no answer from {gateway.url} within 0.05 seconds; raise --timeout")


@pytest.mark.parametrize(
    ("status", "body"),
    [(404, b"<html>"), (200, b"<html>"), (500, b'{"detail": 1}'), (302, b""), (200, b"[]"), (200, b"{}")],
)
def test_something_else_at_that_address_is_told(gateway: Any, run: Run, status: int, body: bytes) -> None:
    """What answers but is no gateway is named as that."""
    gateway.status, gateway.body = status, body
    result = run("query", "what", "--url", gateway.url)
    assert result.exit_code == 1
    assert "check the address" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("url", ["ftp://h", "http://[::1", "http://h:x"])
def test_a_bad_address_is_told(run: Run, url: str) -> None:
    """What is no address is said to be none."""
    result = run("query", "what", "--url", url)
    assert result.exit_code == 1
    assert "is not a URL" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["-k", "0"],
        ["-k", "x"],
        ["--mode", "fuzzy"],
        ["--filter", "{"],
        ["--filter", "[]"],
        ["--filter", '{"a": NaN}'],
        ["--engines", " , "],
        ["--timeout", "0"],
        ["--nonsense"],
    ],
)
def test_usage_errors_end_with_two(run: Run, words: list[str]) -> None:
    """A word that cannot be meant is a usage error: exit code 2 and no request."""
    assert run("query", "what", *words).exit_code == 2


def test_text_that_is_no_unicode_is_refused(run: Run) -> None:
    """Bytes that are no UTF-8 in a question are a usage error."""
    assert run("query", "\udcff").exit_code == 2


def test_a_proxy_of_the_environment_is_not_used(gateway: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way to one's own gateway does not lead through HTTP_PROXY."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    gateway.result(hits=[])
    assert run("query", "what", "--url", gateway.url).exit_code == 0


def test_a_reader_that_leaves_is_no_error(gateway: Any) -> None:
    """When the reader of the pipe has gone, the command ends without a word."""
    gateway.result(hits=[HIT] * 2000)
    words = [sys.executable, "-m", "app", "query", "what", "--url", gateway.url]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_several_words_are_one_question(gateway: Any, run: Run) -> None:
    """What is written without quotes is asked as it is read; options may follow."""
    gateway.result(hits=[])
    assert run("query", "two", "words", "--url", gateway.url).exit_code == 0
    assert gateway.asked[-1][2]["params"]["query"] == "two words"


EXPLANATION = {
    "method": "rrf",
    "plan": {"fusion": {"method": "rrf", "rrfK": 60, "confidenceWeight": 0.8, "identity": "id"}},
    "ceiling": 0.05,
    "hits": [
        {
            "id": 7,
            "key": "7",
            "sum": 0.03,
            "parts": [
                {"engine": "docs", "rank": 1, "confidence": 0.9, "points": 0.02, "share": 0.667},
                {"engine": "co\x1b[2Jde", "rank": 3, "confidence": None, "points": 0.01, "share": 0.333},
            ],
        }
    ],
}


def test_explain_shows_what_each_engine_contributed(gateway: Any, run: Run) -> None:
    """Rank, points, share and confidence below each hit, and the fusion at the end; a hit without parts has none."""
    hits = [{"id": 7, "score": 0.6}, {"id": "other", "score": 0.1}]
    gateway.result(hits=hits, _meta={"x-gateway": {"explain": EXPLANATION}})
    result = run("query", "--url", gateway.url, "--explain", "--engines", "docs,code", "sort")
    assert gateway.asked[0][2]["params"]["x-gateway"] == {"engines": ["docs", "code"], "explain": True}
    assert result.stdout.splitlines() == [
        "1. 0.6000  ?  7",
        "   docs: rank 1, 0.0200 points, 67% of the score, confidence 0.90",
        "   co�[2Jde: rank 3, 0.0100 points, 33% of the score",
        "2. 0.1000  ?  other",
        "fusion: rrf, rrfK 60, confidenceWeight 0.8, score = sum of points / 0.0500",
    ]


@pytest.mark.parametrize(
    "explain", [None, 7, {"hits": 1}, {"hits": [7, {"id": 7, "parts": 1}]}, {"plan": {"fusion": 1}}]
)
def test_a_strange_explanation_is_no_error(gateway: Any, run: Run, explain: Any) -> None:
    """Whatever answers, the hits are shown."""
    gateway.result(hits=[{"id": 7, "score": 1}], _meta={"x-gateway": {"explain": explain}})
    result = run("query", "--url", gateway.url, "--explain", "sort")
    assert (result.exit_code, result.stdout.splitlines()[0]) == (0, "1. 1.0000  ?  7")
