"""`rcp-gateway compile`: what it needs, what it says, and that a failed attempt leaves what was there."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from app import compiled
from app.cli import compile as command

Run = Callable[..., Result]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of compiled modules, empty and of this test alone."""
    place = tmp_path / "lib" / "compiled"
    monkeypatch.setattr(compiled, "place", lambda: place)
    return place


def test_without_a_compiler_it_says_so(run: Run, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line names what is missing, the exit code is 1, nothing is written."""
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    result = run("compile")
    assert result.exit_code == 1
    assert "the gateway runs interpreted: there is no C compiler (no-such-compiler)" in result.stderr
    assert not elsewhere.exists()


def test_without_headers_it_says_so(run: Run, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Python's headers are looked for before anything is begun."""
    monkeypatch.setenv("CC", sys.executable)
    monkeypatch.setattr(command.sysconfig, "get_path", lambda name: str(tmp_path))
    result = run("compile")
    assert result.exit_code == 1
    assert "python3-dev" in result.stderr


def test_without_mypyc_it_says_how_to_get_it(run: Run, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra that brings what is missing is named."""
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    assert "pip install '.[compile]'" in run("compile").stderr


def test_a_failed_attempt_changes_nothing(run: Run, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the compiler said last is shown; what was compiled before is still there, and no rubbish beside it."""
    elsewhere.mkdir(parents=True)
    (elsewhere / compiled.MANIFEST).write_text("older")
    monkeypatch.setattr(command, "_lacking", lambda: None)
    monkeypatch.setattr(command, "_BUILD", "import sys; print('no space left'); sys.exit(3)")
    result = run("compile")
    assert result.exit_code == 1
    assert "no space left" in result.stderr
    assert (elsewhere / compiled.MANIFEST).read_text() == "older"
    assert [path.name for path in elsewhere.parent.iterdir()] == ["compiled"]


def test_what_is_compiled_is_not_compiled_again(run: Run, elsewhere: Path) -> None:
    """Unchanged sources cost nothing."""
    elsewhere.mkdir(parents=True)
    (elsewhere / compiled.MANIFEST).write_text(compiled.manifest())
    result = run("compile")
    assert (result.exit_code, result.stdout) == (0, "compiled already, from these very sources\n")


def test_a_success_takes_the_old_place(run: Run, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new modules and the label of their sources stand where the old ones were."""
    elsewhere.mkdir(parents=True)
    (elsewhere / "old.so").touch()
    monkeypatch.setattr(command, "_lacking", lambda: None)
    build = "import pathlib; pathlib.Path('made').mkdir(); pathlib.Path('made/new.so').touch()"
    monkeypatch.setattr(command, "_BUILD", build)
    assert run("compile").exit_code == 0
    assert sorted(path.name for path in elsewhere.iterdir()) == sorted([compiled.MANIFEST, "new.so"])
    assert compiled.reason_against(elsewhere) is None


def test_tests_of_compiled_rooms_need_some() -> None:
    """The plugin that tests compiled rooms refuses where there are none, instead of testing the sources."""
    places = {**os.environ, "PYTHONPATH": str(Path(compiled.__file__).parents[1])}
    code = "import sys, pytest; sys.prefix = '/nowhere'; sys.exit(pytest.main(['-p', 'tests.support.compiled_rooms']))"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=places, check=False)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "nothing is compiled" in done.stderr
