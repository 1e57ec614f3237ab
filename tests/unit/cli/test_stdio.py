"""What `stdio` hands to the composition root."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import Result

import app as house
from app.settings.field_errors import FieldError, SettingsError

Run = Callable[..., Result]


def served(monkeypatch: pytest.MonkeyPatch, end: Any = 0) -> list[tuple[Any, ...]]:
    """What a composition root that only remembers was asked; it ends with `end`."""
    wishes: list[tuple[Any, ...]] = []

    def serve_stdio(*wished: Any) -> Any:
        wishes.append(wished)
        if isinstance(end, BaseException):
            raise end
        return end

    module: Any = SimpleNamespace(serve_stdio=serve_stdio)
    monkeypatch.setitem(sys.modules, "app.main", module)
    monkeypatch.setattr(house, "main", module, raising=False)
    return wishes


def test_files_are_handed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Run) -> None:
    """The files that are given, or the usual ones."""
    monkeypatch.chdir(tmp_path)
    wishes = served(monkeypatch, 3)
    assert run("stdio").exit_code == 3
    run("stdio", "--registry", "r", "--config", "c")
    Path("config").mkdir()
    Path("config/gateway.yaml").touch()
    run("stdio")
    assert wishes == [
        (Path("config/rcp.json"), None),
        (Path("r"), Path("c")),
        (Path("config/rcp.json"), Path("config/gateway.yaml")),
    ]


def test_faulty_files_are_told_on_stderr(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """Stdout stays empty: whoever reads it expects protocol."""
    served(monkeypatch, SettingsError("rcp.json", (FieldError("engines", "is missing"),)))
    result = run("stdio")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: rcp.json: 1 fault\n  engines: is missing\n"
