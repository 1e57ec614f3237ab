"""`rcp-gateway compile`, deprecated: says what replaces it.

Separate so that removing the command in the next release removes one file.
"""

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compile", deprecated=True)(print_replacement)


def print_replacement() -> None:
    """Do nothing: compiled modules come with a wheel built by `make wheel`. The next release removes this command."""
    typer.echo(
        "'compile' does nothing and will be removed: run 'make wheel' in the checkout, "
        "then install dist/rcp_gateway-*.whl, which holds the compiled modules",
        err=True,
    )
