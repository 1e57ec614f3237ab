"""How a command ends when it cannot do its work: one line on stderr and an exit code, never a traceback.

The edge of the command line. It decides exit codes (1 failed, 2 usage, 130 interrupted); it refuses to know commands.
"""

import os
import sys
import traceback
from typing import Any

import typer
from typer.core import TyperGroup

from app.cli.terminal import harmless
from app.evaluation.judged_queries import EvaluationError
from app.settings.field_errors import SettingsError

DEBUG_VARIABLE = "RCP_GATEWAY_DEBUG"

_EXTRAS = {"rcp": "demo", "sklearn": "demo", "numpy": "demo", "scipy": "eval", "ir_measures": "eval"}
"""Libraries that are not always installed -> the extra that brings them."""


class Failure(Exception):
    """What a command tells the user, in words that need no knowledge of the code, before it ends with exit code 1."""


class Commands(TyperGroup):
    """All commands; whatever one of them raises ends here."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # a reader that has left is noticed here and not while the interpreter shuts down
            return result
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except BrokenPipeError:
            raise  # typer itself ends quietly for this one
        except Exception as fault:
            if isinstance(fault, typer.Abort) or hasattr(fault, "exit_code"):  # usage errors, and ends on purpose
                raise
            _tell(fault, debug=bool(ctx.params.get("debug")) or os.environ.get(DEBUG_VARIABLE, "") not in ("", "0"))
            raise typer.Exit(1) from None


def explain(fault: BaseException) -> str:
    """`fault` in words for the user: one line, or one for each fault of a settings file."""
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
    """That `library` is not installed, and how the extra that brings it is: from a checkout, not from an index."""
    return f"this command needs '{library}', which is not installed: in the checkout, pip install '.[{extra}]'"


def _tell(fault: Exception, debug: bool) -> None:
    if debug:
        traceback.print_exception(fault, file=sys.stderr)
    typer.echo(f"error: {harmless(explain(fault))}", err=True)
