"""Signals that come before a gateway has begun: in processes of their own, for they end them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

SENT_BEFORE = """
import os, signal, sys
sys.argv[1:] = {words!r}
import app.__main__ as entry
def load():
    os.kill(os.getpid(), signal.{number})
    raise SystemExit(7)
entry.load = load
entry.main()
"""
"""A signal before the commands are even known: nothing but the entry has been imported."""


def ended(words: list[str], number: str) -> int:
    """The exit code of a command line that is sent a signal while it loads."""
    script = SENT_BEFORE.format(words=words, number=number)
    return subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, timeout=60).returncode


@pytest.mark.parametrize("words", [["serve", "--port", "0"], ["--debug", "serve"], ["stdio"]])
@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_a_gateway_that_has_not_begun_ends_at_once(words: list[str], number: str) -> None:
    """From its first line on `serve` and `stdio` heed who stops them, also as PID 1, where unheard signals are lost."""
    assert ended(words, number) == 0


def test_an_ignored_interrupt_ends_a_gateway_all_the_same() -> None:
    """A job in the background of a script inherits SIGINT as ignored."""
    script = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    script += SENT_BEFORE.format(words=["serve", "--port", "0"], number="SIGINT")
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, timeout=60).returncode == 0


def test_a_reload_before_the_files_were_read_is_none() -> None:
    """SIGHUP does not end a gateway that is about to read its files."""
    assert ended(["serve"], "SIGHUP") == 7


def test_other_commands_end_as_programs_do() -> None:
    """What is no server is ended by the signal itself, whatever else it is given."""
    assert ended(["query", "serve"], "SIGTERM") == -15
