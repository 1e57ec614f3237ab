"""`rcp-gateway key new` and `key digest`: create a key of a tenant, and print its line for the tenants file.

The key is printed once and stored nowhere. The tenants file holds only its digest.
"""

import re
import sys
from datetime import UTC, datetime
from hashlib import sha256
from secrets import token_hex, token_urlsafe
from typing import Annotated

import typer

from app.cli.failures import CommandGroup, Failure

PREFIX = "rcpgw_"
"""Prefix of every key, so that secret scanners recognise it."""

keys = typer.Typer(cls=CommandGroup, no_args_is_help=True, help="Create keys for tenants.")

IdOption = Annotated[str | None, typer.Option("--id", help="Name of the key in logs.", show_default="generated")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(keys, name="key")


@keys.command()
def new(
    tenant: Annotated[str, typer.Argument(help="Tenant that the key belongs to.")],
    key_id: IdOption = None,
    expires: Annotated[str | None, typer.Option(help="Expiry: a date (2027-01-31), or a time with an offset.")] = None,
) -> None:
    """Create a key. Prints the key and the line to paste into the tenants file."""
    key = PREFIX + token_urlsafe(32)
    line = entry(key_id or f"key-{datetime.now(UTC):%Y%m%d}-{token_hex(2)}", key, expires)
    _check(tenant, line)
    typer.echo(key)
    typer.echo(
        f"This key is shown only once. Add this line to the tenants file, under tenants.{tenant}.keys:", err=True
    )
    typer.echo(f"      - {line}", err=True)


@keys.command()
def digest(key_id: IdOption = None) -> None:
    """Read an existing key from stdin and print the line to paste into the tenants file."""
    key = sys.stdin.read().removesuffix("\n").removesuffix("\r")  # a key read from a file ends with a newline
    if re.match(r"bearer\s", key, re.IGNORECASE):
        raise Failure("that is a header, not a key: remove 'Bearer', which callers send before the key")
    if not re.fullmatch(r"[A-Za-z0-9._~+/=-]{16,}", key):
        raise Failure("a key must be at least 16 letters, digits and . _ ~ + / = - without spaces")
    typer.echo(f"      - {entry(key_id or f'key-{datetime.now(UTC):%Y%m%d}-{token_hex(2)}', key, None)}")


def entry(key_id: str, key: str, expires: str | None) -> str:
    """The entry of the key in a tenants file, as one line of YAML."""
    until = "" if expires is None else f', expires: "{expires}"'
    return f'{{id: {key_id}, sha256: "{sha256(key.encode()).hexdigest()}"{until}}}'


def _check(tenant: str, line: str) -> None:
    """Check that the line is valid in a tenants file. Raises SettingsError."""
    from app.settings.file_syntax import read_yaml
    from app.settings.tenants_file import tenants_in

    tenants_in("command line", {"tenants": {tenant: {"keys": [read_yaml("command line", line)]}}})
