"""What make does with what a newcomer types: a question that the shell would obey, an installation that was cut off."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
PIP = """#!/bin/sh
case "$*" in
  "-m pip install"*) echo "$*" >> installed; echo "Collecting much"; exit 0;;
esac
"""
"""A Python that says it has installed, and writes down what."""

ECHO = '#!/bin/sh\nfor word in "$@"; do printf "<%s>" "$word"; done\n'

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="needs make")


def program(path: Path, text: str) -> None:
    """A script that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that looks installed, whose gateway says how it was called."""
    shutil.copy(PROJECT / "Makefile", tmp_path)
    program(tmp_path / ".venv/bin/rcp-gateway", ECHO)
    for name in (
        "pyproject.toml",
        "requirements.lock",
        "requirements-demo.lock",
        ".venv/.installed",
        ".venv/.installed-demo",
    ):
        (tmp_path / name).touch()
    return tmp_path


def make(checkout: Path, *words: str) -> str:
    """What make prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "--no-print-directory", *words]
    result = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("question", ["what's new?", 'read $HOME & "quotes"', "cost $(x `id` #5", "read a csv file"])
def test_a_question_is_one_word(checkout: Path, question: str) -> None:
    """Whatever the shell and make would obey in it is asked as it was typed."""
    assert make(checkout, "demo", f"ARGS={question}") == f"<demo><{question}>"


@pytest.mark.parametrize(
    ("given", "words"), [("--port 8090 'a b'", "<--port><8090><a b>"), ("-k 3 x", "<-k><3><x>"), ("", "")]
)
def test_options_are_several_words(checkout: Path, given: str, words: str) -> None:
    """What begins with a dash is read as the shell reads it; nothing given is nothing passed on."""
    assert make(checkout, "demo", f"ARGS={given}") == f"<demo>{words}"


def test_the_demo_is_there_before_the_large_tools(checkout: Path) -> None:
    """The demo installs what its lock file names, and all other acts everything, the demo included."""
    shutil.rmtree(checkout / ".venv")
    program(checkout / ".venv/bin/python", PIP)
    program(checkout / ".venv/bin/rcp-gateway", ECHO)
    made = make(checkout, "demo")
    assert "requirements-demo.lock" in (checkout / "installed").read_text()
    assert made.count("\n") == 1, "one line says what is installed, and pip's output is kept back"
    assert made.startswith("installing the gateway and its demo engines")
    (checkout / "installed").unlink()
    make(checkout, "test")
    assert "requirements.lock" in (checkout / "installed").read_text()
    assert make(checkout, "demo") == "<demo>"
    (checkout / "installed").unlink()
    (checkout / ".venv/.installed-demo").unlink()
    (checkout / ".venv/.installed").unlink()
    make(checkout, "install")
    assert "--require-hashes --requirement requirements.lock" in (checkout / "installed").read_text()
    assert make(checkout, "demo") == "<demo>"


def test_a_failed_installation_shows_what_pip_said(checkout: Path) -> None:
    """pip's output appears with its error, nothing counts as installed, and the next try installs again."""
    (checkout / ".venv/.installed-demo").unlink()
    program(checkout / ".venv/bin/python", PIP.replace("exit 0", 'echo "no such package"; exit 1'))
    failed = subprocess.run(["make", "demo"], cwd=checkout, capture_output=True, text=True, check=False)
    assert failed.returncode != 0
    assert "no such package" in failed.stdout
    assert not (checkout / ".venv/.installed-demo").exists()
    program(checkout / ".venv/bin/python", PIP)
    assert make(checkout, "demo").endswith("<demo>")


def test_an_environment_that_was_cut_off_is_made_again(checkout: Path) -> None:
    """A .venv without pip, as an interrupted creation leaves it, is created anew before anything is installed."""
    shutil.rmtree(checkout / ".venv")
    program(checkout / ".venv/bin/python", "#!/bin/sh\nexit 1\n")
    program(
        checkout / "python",
        '#!/bin/sh\nif [ "$1" = -m ]; then echo "made $*"; cp works .venv/bin/python; fi\n',
    )
    program(checkout / "works", '#!/bin/sh\necho "ran $*"\n')
    made = make(checkout, "install", "PYTHON=./python")
    assert "made -m venv --clear .venv" in made
    assert "ran -m pip install" in (checkout / ".venv/pip.log").read_text()
    (checkout / ".venv/.installed").unlink()
    assert "made" not in make(checkout, "install", "PYTHON=./python")
