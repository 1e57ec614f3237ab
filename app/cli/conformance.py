"""`rcp-gateway conformance`: check whether an RCP server follows the protocol, at the level that it claims.

The server is a URL, or a command after `--`. The exit code is 0 if every MUST of the claimed level holds.
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.gateway_client import CaFileOption, trust, unreachable
from app.cli.terminal import answers, harmless_json

if TYPE_CHECKING:
    from app.conformance.peer import Peer
    from app.conformance.verdict import Report


NO_SERVER = "no server is listening at {url}; start it, or check the address"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(conformance)


def conformance(
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="URL | -- CMD...",
            help="URL of the server, or the command that starts it over stdio.",
            show_default=False,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    query: Annotated[str, typer.Option(help="A query for which the server has several hits.")] = "test",
    write: Annotated[
        bool,
        typer.Option("--write", help="Also add and delete documents and build a memory. Do not use in production."),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Treat warnings (rules with SHOULD or MAY) as failures.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID", help="Run only these checks, for example 'filter.' or 'retrieve.k'.", show_default=False
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:VALUE", help="HTTP header of every request.", show_default=False),
    ] = None,
    ca_file: CaFileOption = None,
    timeout: Annotated[float, typer.Option(min=0.01, help="Seconds per check.")] = 10.0,
) -> None:
    """Check whether an RCP server follows the protocol, at the level that it claims."""
    from app.cli.conformance_report import report_of, show_finding_count, show_report
    from app.conformance.examination import CHECKS, Examination
    from app.conformance.subject import QueryOptions

    chosen = only or []
    unknown = [name for name in chosen if not any(check.id.startswith(name) for check in CHECKS)]
    if unknown:
        raise typer.BadParameter(f"no check is called '{unknown[0]}'", param_hint="--only")
    peer = _peer(target, header or [], ca_file)

    async def examined() -> "Report":
        examination = Examination(peer(), QueryOptions(query, write), timeout=timeout, strict=strict, only=chosen)
        with show_finding_count(len(examination.checks)) as heard:
            return await examination.run(heard)

    report = asyncio.run(examined())
    if as_json:
        typer.echo(harmless_json(json.dumps(report_of(report, " ".join(target)), ensure_ascii=False)))
    else:
        show_report(report, answers())
    if not report.admitted:
        raise typer.Exit(1)


def _peer(target: list[str], header: list[str], ca_file: Path | None) -> "Callable[[], Peer]":
    """A factory of the connection to the server, to be called in the event loop. Raises BadParameter."""
    headers = dict(_header(text) for text in header)
    word = target[0]
    if len(target) == 1 and ("://" in word or word.startswith(":")):
        from app.conformance.http_peer import HttpPeer

        url = _url(word)
        verify = trust(url, ca_file)
        return lambda: HttpPeer(url, headers, verify, lambda fault: unreachable(fault, url, refused=NO_SERVER))
    if headers:
        raise typer.BadParameter("a server over stdio takes no headers", param_hint="--header")
    from app.conformance.stdio_peer import StdioPeer

    return lambda: StdioPeer(target)


def _url(text: str) -> str:
    """The URL that methods are appended to. Without a path, the default path of RCP §5.2 is added."""
    from urllib.parse import urlsplit

    url = (f"http://127.0.0.1{text}" if text.startswith(":") else text).rstrip("/")
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        sound = False
    if not sound:
        raise typer.BadParameter(f"'{text}' is not a URL; write it like http://127.0.0.1:9001/rcp", param_hint="URL")
    return url if parts.path else f"{url}/rcp"


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not (colon and name.strip() and value.strip() and text.isascii() and text.isprintable()):
        raise typer.BadParameter("write it like 'Authorization: Bearer …'", param_hint="--header")
    return name.strip(), value.strip()
