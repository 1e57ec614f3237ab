"""The command line as a whole."""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

import app.__main__ as entry
from app.cli.failures import Commands

Run = Callable[..., Result]
ROOT = Path(__file__).parents[3]


def test_help_names_every_command(run: Run) -> None:
    """Help lists the commands in the order a newcomer meets them."""
    shown = run("--help").stdout
    places = [shown.index(f"│ {name} ") for name in entry.COMMANDS]
    assert places == sorted(places)


@pytest.mark.parametrize("name", entry.COMMANDS)
def test_every_command_has_help(run: Run, name: str) -> None:
    """Each command explains itself."""
    assert run(name, "--help").exit_code == 0


def test_the_version_is_told(run: Run) -> None:
    """`--version` prints name and version."""
    assert run("--version").stdout.startswith("rcp-gateway ")


def test_a_misspelt_command_is_a_usage_error(run: Run) -> None:
    """The nearest command is suggested, exit code 2."""
    result = run("qurey", "x")
    assert result.exit_code == 2
    assert "query" in result.stderr


def test_start_up_loads_nothing_heavy() -> None:
    """Showing the version or asking a gateway does not wait for the server's libraries."""
    heavy = "{'fastapi', 'uvicorn', 'httpx2', 'pydantic', 'sklearn', 'rcp', 'structlog'}"
    script = f"import sys, app.__main__; app.__main__.load(); print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_compile_says_what_replaces_it(run: Run) -> None:
    """The deprecated command succeeds, so scripts that call it go on, and names `make wheel`."""
    result = run("compile")
    assert result.exit_code == 0
    assert "make wheel" in result.stderr


def test_a_command_whose_library_is_missing_explains_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that cannot be loaded takes only its own command with it, and that says what to install."""

    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'rcp'", name="rcp")

    lone = typer.Typer(cls=Commands)
    lone.callback()(lambda: None)
    monkeypatch.setattr(entry, "app", lone)
    monkeypatch.setattr(importlib, "import_module", missing)
    entry._register("demo")
    result = CliRunner().invoke(lone, ["demo", "--any", "words"])
    assert result.exit_code == 1
    assert result.stderr == (
        "error: this command needs 'rcp', which is not installed: in the checkout, pip install '.[demo]'\n"
    )


def test_python_dash_m_is_the_same_command_line() -> None:
    """`python -m app` calls itself by the name of the console script."""
    words = [sys.executable, "-m", "app", "--help"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "Usage: rcp-gateway" in done.stdout


@pytest.mark.parametrize("words", [("-h",), ("query", "-h"), ("demo", "-h")])
def test_h_is_help(run: Run, words: tuple[str, ...]) -> None:
    """`-h` is understood everywhere."""
    result = run(*words)
    assert result.exit_code == 0
    assert "Usage: rcp-gateway" in result.stdout


@pytest.mark.parametrize("command", [*entry.COMMANDS, "key new", ""])
def test_help_shows_flags_without_a_type(command: str) -> None:
    """A flag takes no value; and no text is cut off at the width of a terminal."""
    result = CliRunner().invoke(
        entry.load(), [*command.split(), "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}
    )
    assert result.exit_code == 0
    assert "bool" not in result.output
    assert "…" not in result.output


def test_shells_can_complete_commands_and_options() -> None:
    """Completion as the installed script asks for it."""
    asked = {"_RCP_GATEWAY_COMPLETE": "complete_bash", "COMP_WORDS": "rcp-gateway engines --wa", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "app"], env=os.environ | asked, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["--watch"]
