"""What `serve` hands to the composition root."""

import errno
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


class Root:
    """A composition root that only remembers."""

    def __init__(self) -> None:
        self.wished: tuple[Any, ...] = ()
        self.ends: Any = 0

    def serve(self, *wishes: Any) -> Any:
        self.wished = wishes
        if isinstance(self.ends, BaseException):
            raise self.ends
        return self.ends


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Root:
    """In place of the composition root; the working directory is empty."""
    fake = Root()
    module: Any = SimpleNamespace(serve=fake.serve)
    monkeypatch.setitem(sys.modules, "app.main", module)
    monkeypatch.setattr(house, "main", module, raising=False)
    monkeypatch.chdir(tmp_path)
    return fake


def test_what_is_not_given_is_left_to_the_settings(root: Root, run: Run) -> None:
    """Without options: the default registry, and None for everything the settings decide."""
    assert run("serve").exit_code == 0
    assert root.wished == (Path("config/rcp.json"), None, None, None, None)


def test_options_are_handed_on(root: Root, run: Run) -> None:
    """Every option reaches the composition root as a value."""
    run("serve", "--registry", "r", "--config", "c", "--host", "::1", "--port", 0, "--workers", 2)
    assert root.wished == (Path("r"), Path("c"), "::1", 0, 2)


def test_a_settings_file_in_its_place_is_found(root: Root, run: Run) -> None:
    """`config/gateway.yaml` is read where there is one."""
    Path("config").mkdir()
    Path("config/gateway.yaml").touch()
    run("serve")
    assert root.wished[1] == Path("config/gateway.yaml")


def test_the_exit_code_is_the_gateways(root: Root, run: Run) -> None:
    """What the gateway ends with, the command ends with."""
    root.ends = 3
    assert run("serve").exit_code == 3


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (
            SettingsError("rcp.json", (FieldError("engines", "is missing"),)),
            "error: rcp.json: 1 fault\n  engines: is missing\n",
        ),
        (
            OSError(errno.EADDRINUSE, "Address already in use"),
            "error: cannot serve: Address already in use; choose another port with --port\n",
        ),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign"), "error: cannot serve: Cannot assign\n"),
    ],
)
def test_what_keeps_it_from_serving_is_told(root: Root, run: Run, end: Exception, told: str) -> None:
    """Faulty files and taken addresses are told without a traceback, exit code 1."""
    root.ends = end
    result = run("serve")
    assert (result.exit_code, result.stderr) == (1, told)


@pytest.mark.parametrize("words", [("--port", 70000), ("--port", "http"), ("--workers", 0)])
def test_impossible_wishes_are_usage_errors(root: Root, run: Run, words: tuple[Any, ...]) -> None:
    """A port or a number of workers that cannot be is a usage error."""
    assert run("serve", *words).exit_code == 2
    assert root.wished == ()
