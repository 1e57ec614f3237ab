"""`rcp-gateway conformance`: how a server is named, what is printed, and the exit code."""

import inspect
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from app.cli.conformance import _header, _url, conformance
from app.conformance.examination import CHECKS
from tests.support.model_process import OVER_STDIO, PROGRAM, model_over_http
from tests.support.running_gateway import PATIENCE

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    """The URL of a server on the SDK."""
    with model_over_http() as url:
        yield url


def test_a_table_and_a_conclusion(run: Run, model: str) -> None:
    """Each check has a line with its verdict, level and section; the last line says what it comes to."""
    result = run("conformance", model, "--only", "framing.")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert any(line.startswith("pass  framing.ids ") and " L0     MUST " in line for line in lines)
    assert any(line.startswith("warn  framing.path ") and " (MUST) " in line for line in lines)
    whole = " ".join(result.stdout.split())
    end = "9 passed, 0 failed, 6 warned, 1 skipped; claims L2; a part of the checks proves no level: admitted"
    assert whole.endswith(end), whole[-200:]
    assert "\x1b" not in result.stdout + result.stderr


def test_json_is_the_report_and_nothing_else(run: Run, model: str) -> None:
    """`--json` prints one object, with every check and its reason."""
    result = run("conformance", "--json", model)
    report = json.loads(result.stdout)
    assert (report["claimed"], report["proved"], report["admitted"]) == ("L2", "L2", True)
    assert report["server"] == {"name": "model", "version": "1.0"}
    assert sum(report["counts"].values()) == len(report["checks"]) > 100
    checks = {check["id"]: check for check in report["checks"]}
    assert checks["framing.ids"]["verdict"] == "pass"
    assert (checks["framing.path"]["rule"], checks["framing.path"]["verdict"]) == ("MUST, tolerated", "warn")
    assert "--write" in checks["index.round-trip"]["reason"]


def test_a_failure_is_the_exit_code(run: Run, model: str) -> None:
    """A warning keeps nobody out; with `--strict` it does, by exit code 1. Its sentence and reason are told."""
    assert run("conformance", model, "--only", "framing.path").exit_code == 0
    result = run("conformance", model, "--strict", "--only", "framing.path")
    assert result.exit_code == 1
    assert "warn  framing.path" in result.stdout
    assert "the path said info and the body ping" in " ".join(result.stdout.split())
    assert "1 warned" in result.stdout
    assert result.stdout.rstrip().endswith("not admitted")


def test_a_command_is_a_server_over_stdio(run: Run) -> None:
    """After `--` comes the command, with options of its own."""
    result = run("conformance", "--only", "stdio.", "--", *OVER_STDIO)
    assert result.exit_code == 0, result.stdout
    assert "stdio.shutdown" in result.stdout


def test_nobody_there_is_told_shortly(run: Run) -> None:
    """A server that does not answer is asked three times; the rest is only counted."""
    result = run("conformance", "http://127.0.0.1:9/rcp")
    assert result.exit_code == 1
    assert " ".join(result.stdout.split()).count("no server is listening at http://127.0.0.1:9; start it") == 3
    assert "checks were not run and count as failed, because the server stopped answering" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr


def test_words_of_the_server_are_harmless(run: Run, tmp_path: Any) -> None:
    """What a server says of itself cannot command the terminal."""
    server = tmp_path / "evil.py"
    server.write_text(
        f"import sys; sys.path.insert(0, {str(PROGRAM.parent)!r})\n"
        "import model_server\nserver = model_server.build()\n"
        "server.set_info('e\\x1b[31mvil', '1')\nserver.serve_stdio()\n"
    )
    result = run("conformance", "--only", "handshake.", "--", sys.executable, str(server))
    assert "\x1b" not in result.stdout
    assert "e�[31mvil 1: " in result.stdout


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("http://[", "--json"), "is not a URL"),
        (("ftp://127.0.0.1/rcp",), "is not a URL"),
        (("http://127.0.0.1:9", "--only", "nothing."), "no check is called 'nothing.'"),
        (("http://127.0.0.1:9", "--header", "no-colon"), "write it like"),
        (("--header", "A: b", "--", "cat"), "takes no headers"),
        ((), "Missing argument"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(run: Run, words: tuple[str, ...], hint: str) -> None:
    """A bad address, check, header or nothing at all: exit code 2 with the remedy."""
    result = run("conformance", *words)
    assert result.exit_code == 2
    assert hint in " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("text", "url"),
    [
        (":9001", "http://127.0.0.1:9001/rcp"),
        ("http://host", "http://host/rcp"),
        ("http://host/", "http://host/rcp"),
        ("https://host:1/engines/docs/rcp/", "https://host:1/engines/docs/rcp"),
    ],
)
def test_an_address_without_a_path_gets_the_usual_one(text: str, url: str) -> None:
    """The path of a URL is kept, and `/rcp` added where there is none."""
    assert _url(text) == url


def test_a_header_is_a_name_and_a_value() -> None:
    """Blanks around both do not count."""
    assert _header("Authorization:  Bearer abc ") == ("Authorization", "Bearer abc")


def test_everything_is_documented() -> None:
    """docs/reference/conformance.md names every option and every group of checks."""
    page = (Path(__file__).parents[3] / "docs" / "reference" / "conformance.md").read_text(encoding="utf-8")
    options = {name for name in inspect.signature(conformance).parameters if name != "target"}
    assert options == {"as_json", "query", "write", "strict", "only", "header", "ca_file", "timeout"}
    for name in options:
        assert f"| `--{name.removeprefix('as_').replace('_', '-')}" in page
    for group in {check.group for check in CHECKS}:
        assert f"`{group}.`" in page


def test_an_interrupted_run_leaves_no_process(tmp_path: Path) -> None:
    """Ctrl-C ends the server that was started, with exit code 130."""
    server, mark = tmp_path / "mute.py", tmp_path / "pid"
    server.write_text(f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(60)")
    command = [sys.executable, "-m", "app", "conformance", "--timeout", "30", "--", sys.executable, str(server)]
    run = subprocess.Popen(command, cwd=Path(__file__).parents[3], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ends = time.monotonic() + PATIENCE
    while not (mark.exists() and mark.read_text()):
        assert time.monotonic() < ends
        time.sleep(0.02)
    run.send_signal(signal.SIGINT)
    assert run.wait(PATIENCE) == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)
