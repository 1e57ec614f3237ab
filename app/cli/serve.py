"""`rcp-gateway serve`: the gateway itself, in the foreground.

It decides nothing but the names of the options; the composition root does the rest.
"""

import errno
from typing import Annotated

import typer

from app.cli.config_files import DEFAULT_REGISTRY, ConfigOption, RegistryOption, config_or_default
from app.cli.failures import Failure


def register(app: typer.Typer) -> None:
    """Offer the command."""
    app.command()(serve)


def serve(
    registry: RegistryOption = DEFAULT_REGISTRY,
    config: ConfigOption = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on.", show_default="server.host, 127.0.0.1")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="0 takes any free port.", show_default="server.port, 8080")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="Processes.", show_default="server.workers, 1")
    ] = None,
) -> None:
    """Serve one RCP endpoint in front of the engines of a registry."""
    from app import main

    try:
        code = main.serve(registry, config_or_default(config), host, port, workers)
    except OSError as fault:
        remedy = "; choose another port with --port" if fault.errno in (errno.EADDRINUSE, errno.EACCES) else ""
        raise Failure(f"cannot serve: {fault.strerror or fault}{remedy}") from fault
    raise typer.Exit(code)
