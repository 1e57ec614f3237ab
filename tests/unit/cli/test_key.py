"""Making keys, and telling the digests of those that there are."""

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from app.__main__ import load
from app.settings.file_syntax import read_yaml
from app.settings.tenants_file import tenants_in

Run = Callable[..., Result]


def entry_in(line: str) -> Any:
    """The entry of a line that is to be pasted."""
    (entry,) = read_yaml("", line.strip())
    return entry


def test_a_new_key_opens_what_its_line_says(run: Run) -> None:
    """The key alone is on stdout, the line for the file on stderr; the line holds the key's digest."""
    result = run("key", "new", "acme", "--id", "ci", "--expires", "2027-01-31")
    assert result.exit_code == 0
    key = result.stdout.strip()
    assert key.startswith("rcpgw_")
    assert len(key) > 40
    told, line = result.stderr.splitlines()
    assert "under tenants.acme.keys" in told
    assert entry_in(line) == {"id": "ci", "sha256": sha256(key.encode()).hexdigest(), "expires": "2027-01-31"}
    assert tenants_in("t", {"tenants": {"acme": {"keys": [entry_in(line)]}}})
    assert key not in result.stderr


def test_no_two_keys_are_alike(run: Run) -> None:
    """Each is new, and so is its made-up name."""
    results = [run("key", "new", "acme") for _ in range(5)]
    assert len({result.stdout for result in results}) == 5
    assert len({entry_in(result.stderr.splitlines()[1])["id"] for result in results}) == 5


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["ac me"], "must start with a letter or digit"),
        (["anonymous"], "the tenant 'anonymous' cannot have keys"),
        (["acme", "--expires", "soon"], "must be a date"),
        (["acme", "--id", "-"], "must start with a letter or digit"),
    ],
)
def test_what_could_not_stand_in_the_file_is_told(run: Run, words: list[str], told: str) -> None:
    """No key is made for a line that would be refused later."""
    result = run("key", "new", *words)
    assert (result.exit_code, result.stdout) == (1, "")
    assert told in result.stderr


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_the_digest_of_a_key_one_has(end: str) -> None:
    """The line break at the end of a file is no part of the key."""
    result = CliRunner().invoke(load(), ["key", "digest", "--id", "old"], input=f"a-key-of-sixteen{end}")
    assert result.exit_code == 0
    assert entry_in(result.stdout) == {"id": "old", "sha256": sha256(b"a-key-of-sixteen").hexdigest()}


@pytest.mark.parametrize(
    "key", ["Bearer a-key-of-sixteen", "bearer\ta-key-of-sixteen", "short", "two words of a key", ""]
)
def test_what_is_no_key(key: str) -> None:
    """A header instead of a key, and what could never be sent, are refused without being repeated."""
    result = CliRunner().invoke(load(), ["key", "digest"], input=key)
    assert (result.exit_code, result.stdout) == (1, "")
    assert not key or key not in result.stderr
