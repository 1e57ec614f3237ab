"""`rcp-gateway engines`: list the engines behind a running gateway, once or repeatedly."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import gateway_client
from app.cli.failures import Failure
from app.cli.terminal import answers, harmless_json, one_line

if TYPE_CHECKING:
    from rich.console import RenderableType

EngineList = list[dict[str, Any]]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(engines)


def engines(
    url: gateway_client.UrlOption = gateway_client.DEFAULT_URL,
    ca_file: gateway_client.CaFileOption = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh the list until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two refreshes of --watch.")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --watch, one line per refresh.")] = False,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds to wait for the response.")] = 10.0,
) -> None:
    """List the engines behind a running gateway."""

    def load() -> EngineList:
        return gateway_client.engines(url, timeout, ca_file)

    if watch:
        _watch(load, interval, as_json)
    elif as_json:
        _print_json(load())
    else:
        answers().print(_view(load()))


def _watch(load: Callable[[], EngineList], interval: float, as_json: bool) -> None:
    """Print the list until interrupted. Only the first failure ends it: later the gateway may be restarting."""
    from rich.live import Live

    console = answers()
    # On anything but a terminal, a live display would print nothing until its end.
    live = Live(console=console, auto_refresh=False) if console.is_terminal and not as_json else nullcontext()
    listed: EngineList | str = load()
    with live as display:
        while True:
            if as_json:
                _print_json(listed)
            elif display is None:
                console.print(_view(listed))
            else:
                display.update(_view(listed), refresh=True)
            time.sleep(interval)
            try:
                listed = load()
            except Failure as fault:
                listed = f"{time.strftime('%H:%M:%S')} {fault}"


def _print_json(listed: EngineList | str) -> None:
    shown = {"error": listed} if isinstance(listed, str) else {"engines": listed}
    typer.echo(harmless_json(json.dumps(shown, ensure_ascii=False)))
    sys.stdout.flush()  # a program that reads --watch through a pipe gets each line at once


def _view(listed: EngineList | str) -> "RenderableType":
    """The engines as a table, with a column of reasons only if there is one; or the error in place of a list."""
    from rich.table import Table
    from rich.text import Text

    if isinstance(listed, str):
        return Text(listed, style="red")
    if not listed:
        return Text("no engines")
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
    return table


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
