"""`rcp-gateway schema`: print the JSON Schema of a configuration file, for editors, or its keys as a table.

Separate from `settings/reference.py`, which makes both: each command has a module of its own.
"""

import json
from enum import StrEnum
from typing import Annotated

import typer


class SchemaDocument(StrEnum):
    """The configuration files."""

    registry = "registry"
    settings = "settings"
    tenants = "tenants"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(schema)


def schema(
    document: Annotated[
        SchemaDocument,
        typer.Argument(help="registry: rcp.json. settings: gateway.yaml. tenants: auth.tenants_file."),
    ] = SchemaDocument.settings,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table with a row per key.")] = False,
) -> None:
    """Print the JSON Schema of a configuration file: every key with type, default and meaning."""
    from app.settings.reference import json_schema, table

    if markdown:
        typer.echo(table(document.value), nl=False)
    else:
        typer.echo(json.dumps(json_schema(document.value), indent=2))
