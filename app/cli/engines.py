"""`rcp-gateway engines`: the engines behind a running gateway, as it sees them.

It decides the columns of the table; what is in them is the gateway's word.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from app.cli import gateway_client
from app.cli.terminal import answers, harmless_json, one_line


def register(app: typer.Typer) -> None:
    """Offer the command."""
    app.command()(engines)


def engines(
    url: gateway_client.UrlOption = gateway_client.DEFAULT_URL,
    ca_file: gateway_client.CaFileOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds to wait for the answer.")] = 10.0,
) -> None:
    """List the engines behind a running gateway."""
    listed = gateway_client.engines(url, timeout, ca_file)
    if as_json:
        typer.echo(harmless_json(json.dumps({"engines": listed}, ensure_ascii=False)))
    elif listed:
        _print_table(listed)
    else:
        typer.echo("no engines")


def _print_table(listed: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    columns = ["id", "up", "version", "capabilities", "latency"]
    if any(entry.get("reason") for entry in listed):
        columns.append("reason")
    for column in columns:
        table.add_column(column, overflow="fold", justify="right" if column == "latency" else "left")
    for entry in listed:
        row = _row(entry)
        up = "green" if entry.get("up") is True else "red"
        table.add_row(*(Text(row[column], style=up if column == "up" else "") for column in columns))
    answers().print(table)


def _row(entry: Mapping[str, Any]) -> dict[str, str]:
    capabilities, latency = entry.get("capabilities"), entry.get("latencyMs")
    return {
        "id": one_line(entry.get("id", "?")),
        "up": "yes" if entry.get("up") is True else "no",
        "version": one_line(entry.get("version") or "-"),
        "capabilities": one_line(", ".join(map(str, capabilities)) if isinstance(capabilities, (list, dict)) else "-"),
        "latency": f"{latency:.1f} ms" if isinstance(latency, (int, float)) else "-",
        "reason": one_line(entry.get("reason") or ""),
    }
