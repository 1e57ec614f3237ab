"""`rcp-gateway schema`: the JSON Schema of a file, for editors that complete and check it; or its keys as a table.

It decides how a description is printed; what it says comes from the settings room.
"""

import json
from enum import StrEnum
from typing import Annotated

import typer


class SchemaDocument(StrEnum):
    """What can be described."""

    registry = "registry"
    settings = "settings"
    tenants = "tenants"


def register(app: typer.Typer) -> None:
    """Offer the command."""
    app.command()(schema)


def schema(
    document: Annotated[
        SchemaDocument,
        typer.Argument(help="registry: rcp.json. settings: gateway.yaml. tenants: auth.tenants_file."),
    ] = SchemaDocument.settings,
    markdown: Annotated[bool, typer.Option("--markdown", help="Every key as a row of a table instead.")] = False,
) -> None:
    """Print the JSON Schema of the registry, the settings or the tenants: every key, its type, default and meaning."""
    from app.settings.reference import json_schema, table

    if markdown:
        typer.echo(table(document.value), nl=False)
    else:
        typer.echo(json.dumps(json_schema(document.value), indent=2))
