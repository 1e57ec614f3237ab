"""`rcp-gateway key new` and `key digest`: a key for a tenant, shown once, and the line that lets it in.

It decides what a key looks like. Only its digest belongs into a file; it refuses to write or keep either.
"""

import re
import sys
from datetime import UTC, datetime
from hashlib import sha256
from secrets import token_hex, token_urlsafe
from typing import Annotated

import typer

from app.cli.failures import Failure

PREFIX = "rcpgw_"
"""What every key begins with, so that scanners for lost secrets find it."""

keys = typer.Typer(no_args_is_help=True, help="Make keys for tenants.")

IdOption = Annotated[str | None, typer.Option("--id", help="Its name in the log.", show_default="made up")]


def register(app: typer.Typer) -> None:
    """Offer the commands."""
    app.add_typer(keys, name="key")


@keys.command()
def new(
    tenant: Annotated[str, typer.Argument(help="The tenant that it is for.")],
    key_id: IdOption = None,
    expires: Annotated[
        str | None, typer.Option(help="From then on it opens nothing: 2027-01-31, or a time with its offset.")
    ] = None,
) -> None:
    """Make a key, print it once, and the line to paste into the tenants file."""
    key = PREFIX + token_urlsafe(32)
    line = entry(key_id or f"key-{datetime.now(UTC):%Y%m%d}-{token_hex(2)}", key, expires)
    _check(tenant, line)
    typer.echo(key)
    typer.echo(f"The key is shown this once. Add this line in the tenants file, under tenants.{tenant}.keys:", err=True)
    typer.echo(f"      - {line}", err=True)


@keys.command()
def digest(key_id: IdOption = None) -> None:
    """Read a key you have from stdin, and print the line to paste into the tenants file."""
    key = sys.stdin.read().removesuffix("\n").removesuffix("\r")  # a file with a key ends with a line break
    if re.match(r"bearer\s", key, re.IGNORECASE):
        raise Failure("that is a header, not a key: leave 'Bearer' out, callers send it before the key")
    if not re.fullmatch(r"[A-Za-z0-9._~+/=-]{16,}", key):
        raise Failure("a key is at least 16 letters, digits and . _ ~ + / = - without spaces")
    typer.echo(f"      - {entry(key_id or f'key-{datetime.now(UTC):%Y%m%d}-{token_hex(2)}', key, None)}")


def entry(key_id: str, key: str, expires: str | None) -> str:
    """The key's entry of a tenants file, as one line of YAML."""
    until = "" if expires is None else f', expires: "{expires}"'
    return f'{{id: {key_id}, sha256: "{sha256(key.encode()).hexdigest()}"{until}}}'


def _check(tenant: str, line: str) -> None:
    """Whether the line can stand in a tenants file. Raises SettingsError."""
    from app.settings.file_syntax import read_yaml
    from app.settings.tenants_file import tenants_in

    tenants_in("command line", {"tenants": {tenant: {"keys": [read_yaml("command line", line)]}}})
