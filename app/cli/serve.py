"""`rcp-gateway serve`: run the gateway in the foreground."""

import errno
from typing import Annotated

import typer

from app.cli.config_files import DEFAULT_REGISTRY, ConfigOption, RegistryOption, config_or_default, faults_located_in
from app.cli.failures import Failure


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(serve)


def serve(
    registry: RegistryOption = DEFAULT_REGISTRY,
    config: ConfigOption = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on.", show_default="server.host, 127.0.0.1")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.", show_default="server.port, 8080"),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="Number of processes.", show_default="server.workers, 1")
    ] = None,
) -> None:
    """Serve one RCP endpoint in front of the engines of a registry."""
    from app import main

    config = config_or_default(config)
    try:
        with faults_located_in(config):
            code = main.serve(registry, config, host, port, workers)
    except OSError as fault:
        remedy = "; choose another port with --port" if fault.errno in (errno.EADDRINUSE, errno.EACCES) else ""
        raise Failure(f"cannot serve: {fault.strerror or fault}{remedy}") from fault
    raise typer.Exit(code)
