"""How commands end."""

from collections.abc import Callable

import pytest
import typer
from typer.testing import CliRunner, Result

from app.cli.failures import Commands, Failure, explain


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command line of one command that raises what it is given."""
    monkeypatch.delenv("RCP_GATEWAY_DEBUG", raising=False)

    def run(end: BaseException, *words: str, **environ: str) -> Result:
        app = typer.Typer(cls=Commands, pretty_exceptions_enable=False)

        @app.callback()
        def options(debug: bool = False) -> None:
            """Options of all commands."""

        @app.command()
        def fall() -> None:
            raise end

        return CliRunner().invoke(app, [*words, "fall"], env=environ)

    return run


def test_a_failure_is_one_line(ending: Callable[..., Result]) -> None:
    """The words of the command, exit code 1, nothing else."""
    result = ending(Failure("no gateway here"))
    assert (result.exit_code, result.output) == (1, "error: no gateway here\n")


def test_the_unexpected_is_one_line_too(ending: Callable[..., Result]) -> None:
    """A bug is told by its kind, without a traceback and without control characters."""
    result = ending(KeyError("a\x1b\nb"))
    assert result.exit_code == 1
    assert result.output == "error: KeyError: 'a\\x1b\\nb' (rcp-gateway --debug shows where)\n"
    assert ending(ValueError("a\x1b[2J\nb")).output == "error: ValueError: a�[2J (rcp-gateway --debug shows where)\n"
    assert ending(ValueError()).output == "error: ValueError (rcp-gateway --debug shows where)\n"


@pytest.mark.parametrize(("words", "environ"), [(["--debug"], {}), ([], {"RCP_GATEWAY_DEBUG": "1"})])
def test_debug_shows_where(ending: Callable[..., Result], words: list[str], environ: dict[str, str]) -> None:
    """By option or variable, the traceback comes before the line."""
    result = ending(Failure("no"), *words, **environ)
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.endswith("error: no\n")


def test_debug_can_be_switched_off_by_the_variable(ending: Callable[..., Result]) -> None:
    """The variable set to 0 is off."""
    assert "Traceback" not in ending(Failure("no"), RCP_GATEWAY_DEBUG="0").stderr


def test_ctrl_c_is_quiet(ending: Callable[..., Result]) -> None:
    """An interrupted command says nothing and ends with 130."""
    result = ending(KeyboardInterrupt())
    assert (result.exit_code, result.output) == (130, "")


@pytest.mark.parametrize("code", [0, 3])
def test_ends_on_purpose_keep_their_code(ending: Callable[..., Result], code: int) -> None:
    """A command that ends itself is not disturbed."""
    result = ending(typer.Exit(code))
    assert (result.exit_code, result.output) == (code, "")


def test_usage_errors_keep_their_form(ending: Callable[..., Result]) -> None:
    """A bad parameter found by the command itself is a usage error like any other."""
    result = ending(typer.BadParameter("must be even"))
    assert result.exit_code == 2
    assert "must be even" in result.stderr


def test_a_missing_extra_is_told_with_its_remedy() -> None:
    """A library that comes with an extra is named together with the command that installs it."""
    told = explain(ModuleNotFoundError("No module named 'sklearn.svm'", name="sklearn.svm"))
    assert told == "this command needs 'sklearn', which is not installed: in the checkout, pip install '.[demo]'"
    assert "nonsense" in explain(ModuleNotFoundError("No module named 'nonsense'", name="nonsense"))
