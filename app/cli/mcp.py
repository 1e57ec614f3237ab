"""`rcp-gateway mcp`: run the gateway as a child process of an assistant that speaks MCP over stdin and stdout.

Separate from `stdio`: each command has a module of its own.
"""

import typer

from app.cli.config_files import DEFAULT_REGISTRY, ConfigOption, RegistryOption, config_or_default, faults_located_in


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(mcp)


def mcp(registry: RegistryOption = DEFAULT_REGISTRY, config: ConfigOption = None) -> None:
    """Serve one MCP client, such as a desktop assistant, over stdin and stdout. The log goes to stderr."""
    from app import main

    config = config_or_default(config)
    with faults_located_in(config):
        code = main.serve_stdio(registry, config, mcp=True)
    raise typer.Exit(code)
