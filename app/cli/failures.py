"""How a command fails: a message on stderr and an exit code (1 failed, 2 usage error, 130 interrupted).

A traceback is shown only with `--debug` or RCP_GATEWAY_DEBUG.
"""

import os
import sys
import traceback
from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperGroup

from app.cli.terminal import harmless
from app.evaluation.judged_queries import EvaluationError
from app.settings.field_errors import SettingsError

DEBUG_VARIABLE = "RCP_GATEWAY_DEBUG"

_EXTRAS = {"rcp": "demo", "sklearn": "demo", "numpy": "demo", "scipy": "eval", "ir_measures": "eval"}
"""Optional libraries -> the extra that installs them."""


class Failure(Exception):
    """An error with a message for the user. The command ends with exit code 1."""


class CommandGroup(TyperGroup):
    """A group of commands whose help shows flags without a type."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _hide_types_of_flags(command.get_params(ctx))
        return command

    def get_params(self, ctx: Any) -> Any:
        params = super().get_params(ctx)
        _hide_types_of_flags(params)
        return params


def _hide_types_of_flags(params: Iterable[Any]) -> None:
    """Typer prints `<bool>` beside each flag, which reads as if the flag took a value."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""


class Commands(CommandGroup):
    """All commands; every error of a command ends here."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # notice a closed pipe here, not while the interpreter shuts down
            return result
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except BrokenPipeError:
            raise  # typer handles it: quiet exit
        except Exception as fault:
            if isinstance(fault, typer.Abort) or hasattr(fault, "exit_code"):  # usage errors and typer.Exit
                raise
            _print_error(
                fault, debug=bool(ctx.params.get("debug")) or os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")
            )
            raise typer.Exit(1) from None


def explain(fault: BaseException) -> str:
    """The message for the user: one line, or several for a settings file with several faults."""
    if isinstance(fault, Failure | SettingsError | EvaluationError):
        return str(fault)
    if isinstance(fault, ModuleNotFoundError) and fault.name:
        library = fault.name.partition(".")[0]
        if library in _EXTRAS:
            return missing(library, _EXTRAS[library])
    text = str(fault).strip().partition("\n")[0]
    kind = type(fault).__name__
    return f"{kind}: {text} (rcp-gateway --debug shows where)" if text else f"{kind} (rcp-gateway --debug shows where)"


def missing(library: str, extra: str) -> str:
    """The message that `library` is missing. The extra is installed from a checkout: the package is on no index."""
    return f"this command needs '{library}', which is not installed: in the checkout, pip install '.[{extra}]'"


def _print_error(fault: Exception, debug: bool) -> None:
    if debug:
        traceback.print_exception(fault, file=sys.stderr)
    typer.echo(f"error: {harmless(explain(fault))}", err=True)
