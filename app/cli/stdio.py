"""`rcp-gateway stdio`: the gateway as a child process that speaks RCP over its stdin and stdout.

It decides nothing but the names of the options; the composition root does the rest.
"""

import typer

from app.cli.config_files import DEFAULT_REGISTRY, ConfigOption, RegistryOption, config_or_default


def register(app: typer.Typer) -> None:
    """Offer the command."""
    app.command()(stdio)


def stdio(registry: RegistryOption = DEFAULT_REGISTRY, config: ConfigOption = None) -> None:
    """Serve one caller over stdin and stdout, a JSON-RPC message a line; the log goes to stderr."""
    from app import main

    raise typer.Exit(main.serve_stdio(registry, config_or_default(config)))
