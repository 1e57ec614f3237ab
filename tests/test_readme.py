"""Runs the blocks of the README: its commands, its program and its files, against a running demo."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.settings.sources import load_registry, load_settings
from tests.support.running_demo import RunningDemo, running_demo

PROJECT = Path(__file__).parents[1]
README = (PROJECT / "README.md").read_text(encoding="utf-8")
NOT_RUN = ("make test", "make check", "docker ", "python3 -m venv ", "/opt/rcp-gateway/bin/pip ")
"""Commands that run the tests themselves, need other programs, or change the machine: they are only parsed."""


def blocks(language: str) -> list[str]:
    """The fenced blocks of this language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Every command of the shell blocks, continued lines joined."""
    lines = "".join(blocks("sh")).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip()]


RUN = [command for command in commands() if not command.startswith(NOT_RUN)]


@pytest.fixture(scope="session")
def demo() -> Iterator[RunningDemo]:
    """The demo of this session."""
    running = running_demo()
    yield running
    assert running.end() == 0


def as_tested(command: str, port: int) -> str:
    """The command with this interpreter and the port of the running demo; `serve` only prints its help."""
    command = re.sub(r'^make demo ARGS="(.*)"$', r".venv/bin/rcp-gateway demo \1", command)
    command = re.sub(r"^make demo$", ".venv/bin/rcp-gateway demo", command)
    command = re.sub(r"(rcp-gateway demo)", rf"\1 --port {port}", command)
    command = re.sub(r"(rcp-gateway (?:query|engines))", rf"\1 --url http://127.0.0.1:{port}", command)
    if " serve " in command:
        command += " --help"
    command = command.replace("127.0.0.1:8080", f"127.0.0.1:{port}")
    return command.replace(".venv/bin/rcp-gateway", f"'{sys.executable}' -m app")


@pytest.mark.parametrize("command", RUN)
def test_a_command_works(command: str, demo: RunningDemo) -> None:
    """Each command of the README succeeds and prints something."""
    if command.startswith("curl ") and not shutil.which("curl"):
        pytest.skip("there is no curl on this machine")
    done = subprocess.run(
        ["bash", "-euc", as_tested(command, demo.port)], cwd=PROJECT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert '"error":' not in done.stdout


def test_every_command_can_be_parsed() -> None:
    """The shell can parse every block, and the Makefile has every target."""
    assert len(RUN) >= 8
    for block in blocks("sh"):
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"\bmake ([a-z]+)", "".join(blocks("sh")) + (PROJECT / "CONTRIBUTING.md").read_text()):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_program_works(demo: RunningDemo) -> None:
    """The Python program runs as printed and shows three hits with their citations."""
    (program,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", program.replace(":8080/", f":{demo.port}/")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert "tempfile.TemporaryDirectory" in lines[0]
    assert all("https://docs.python.org/" in line for line in lines if " pkg:" not in line)


def test_the_answers_are_real(demo: RunningDemo) -> None:
    """The hits in the README are those of the running demo, and its JSON has the fields of a real answer."""
    (shown,) = blocks("text")
    first = re.search(r"^1\. .*$", shown, re.MULTILINE)
    assert first is not None
    assert first[0].split()[-1] in demo.answer
    assert shown.splitlines()[0] in demo.answer
    answer = json.loads(blocks("json")[0])
    asked = next(command for command in RUN if "curl" in command and "retrieve" in command)
    real = json.loads(subprocess.check_output(["bash", "-c", as_tested(asked, demo.port)], timeout=60))
    assert shape(answer) == shape(real)
    assert answer["result"]["hits"][0]["id"] == real["result"]["hits"][0]["id"]


def shape(value: object) -> object:
    """The keys of a JSON value, with the first member of each array."""
    if isinstance(value, dict):
        return {key: shape(member) for key, member in value.items()}
    return [shape(value[0])] if isinstance(value, list) and value else None


def test_the_registry_is_one(tmp_path: Path) -> None:
    """The registry in the README is valid, and so are the files that it names."""
    registry = tmp_path / "rcp.json"
    registry.write_text(blocks("json")[1], encoding="utf-8")
    assert [engine.id for engine in load_registry(registry, {"DOCS_TOKEN": "t"}).registry.engines] == [
        "docs",
        "code",
        "notes",
    ]
    load_registry(PROJECT / "config/rcp.json", os.environ)
    load_settings(PROJECT / "config/gateway.yaml", {})


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(page: str) -> None:
    """Links inside the project name existing files."""
    text = (PROJECT / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert all((PROJECT / link.partition("#")[0]).exists() for link in links), links


def test_every_block_is_tried() -> None:
    """Every block has a language that a test here reads; the picture is a flow chart."""
    languages = set(re.findall(r"^```(\w+)$", README, re.MULTILINE))
    assert languages == {"sh", "python", "json", "text", "mermaid"}
    (picture,) = blocks("mermaid")
    assert picture.startswith("flowchart ")
