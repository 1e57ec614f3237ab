"""Entry point of the command line `rcp-gateway`. Each command is a module of `app/cli/`.

Modules that are slow to import are imported by the command that needs them, so that `--help` stays fast.
"""

import importlib
import io
import sys
from functools import cache
from typing import Annotated, NoReturn

import typer

from app.cli.failures import Commands
from app.server.early_signals import end_on_signals

COMMANDS = (
    *("serve", "stdio", "mcp", "demo", "query", "engines", "check", "schema", "conformance"),
    *("fuse", "calibrate", "eval", "tune", "compile", "key"),
)
"""Modules of `app/cli/`, in the order of the help; each has a function `register(app)`."""

SERVING = frozenset({"serve", "stdio", "mcp"})
"""Commands that a supervisor may stop before they have finished starting."""

app = typer.Typer(
    name="rcp-gateway",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="One Retrieval Context Protocol endpoint in front of many retrieval engines.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"rcp-gateway {version('rcp-gateway')}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of all commands. `debug` is read in `failures.py`; `version` is handled by its callback."""


def _register(name: str) -> None:
    """Add the command; if a library that it needs is missing, add a command that says so."""
    try:
        importlib.import_module(f"app.cli.{name}").register(app)
    except ModuleNotFoundError as missing:
        reason = missing

        @app.command(name, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
        def absent() -> NoReturn:
            """Not available: a library that it needs is not installed."""
            raise reason


@cache
def load() -> typer.Typer:
    """The command line with every command."""
    for name in COMMANDS:
        _register(name)
    return app


def main() -> None:
    """The console script `rcp-gateway`, and `python -m app`. Ends with SystemExit."""
    if next((word for word in sys.argv[1:] if not word.startswith("-")), "") in SERVING:
        end_on_signals()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(
            stream, io.TextIOWrapper
        ):  # print a replacement for characters that the terminal's encoding lacks
            stream.reconfigure(errors="replace")
    load()(prog_name="rcp-gateway")


if __name__ == "__main__":
    main()
