"""`rcp-gateway stdio`: run the gateway as a child process that speaks RCP over stdin and stdout.

Separate from `serve`: each command has a module of its own.
"""

import typer

from app.cli.config_files import DEFAULT_REGISTRY, ConfigOption, RegistryOption, config_or_default, faults_located_in


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(stdio)


def stdio(registry: RegistryOption = DEFAULT_REGISTRY, config: ConfigOption = None) -> None:
    """Serve one client over stdin and stdout, one JSON-RPC message per line. The log goes to stderr."""
    from app import main

    config = config_or_default(config)
    with faults_located_in(config):
        code = main.serve_stdio(registry, config)
    raise typer.Exit(code)
