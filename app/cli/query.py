"""`rcp-gateway query`: send one `retrieve` (RCP §7.7) to a running gateway and print the fused hits."""

import json
from typing import Annotated, Any, Literal

import typer

from app.cli.gateway_client import DEFAULT_URL, CaFileOption, UrlOption, call
from app.cli.terminal import answers, asides, harmless_json


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(query)


def query(
    words: Annotated[
        list[str],
        typer.Argument(metavar="TEXT...", help="Query text, in one or more words.", show_default=False),
    ],
    url: UrlOption = DEFAULT_URL,
    ca_file: CaFileOption = None,
    k: Annotated[int, typer.Option("-k", "--k", min=1, help="Maximum number of hits.")] = 10,
    mode: Annotated[
        Literal["dense", "sparse", "hybrid"] | None,
        typer.Option(help="Retrieval mode of the engines.", show_default=False),
    ] = None,
    filter_tree: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="JSON",
            help='Filter tree, for example: {"field": "module", "op": "eq", "value": "json"}',
        ),
    ] = None,
    engines: Annotated[str | None, typer.Option(metavar="A,B", help="Query only these engines.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show what each engine contributed to each hit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds to wait for the response.")] = 30.0,
) -> None:
    """Query a running gateway and print the fused hits."""
    text = " ".join(words)
    # Bytes of the command line that are not UTF-8 arrive as surrogates, which JSON cannot carry.
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise typer.BadParameter("is not UTF-8", param_hint="TEXT")
    params: dict[str, Any] = {"query": text, "k": k, "_meta": {"deadlineMs": max(1, int(timeout * 1000))}}
    if mode is not None:
        params["mode"] = mode
    if filter_tree is not None:
        params["filter"] = _read_filter(filter_tree)
    options: dict[str, Any] = {}
    if engines is not None:
        options["engines"] = _read_engines(engines)
    if explain:
        options["explain"] = True
    if options:
        params["x-gateway"] = options
    result = call(url, "retrieve", params, timeout, ca_file)
    if as_json:
        typer.echo(harmless_json(json.dumps(result, ensure_ascii=False)))
        return
    from app.cli.hit_table import render_fusion, render_hits, render_notes

    render_hits(result, answers())
    render_fusion(result, answers())
    render_notes(result, asides(), k)


def _read_filter(text: str) -> dict[str, Any]:
    try:
        tree = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as fault:
        raise typer.BadParameter(f"is not JSON: {fault}", param_hint="--filter") from None
    if not isinstance(tree, dict):
        raise typer.BadParameter("must be a JSON object", param_hint="--filter")
    return tree


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _read_engines(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise typer.BadParameter("names no engine", param_hint="--engines")
    return names
