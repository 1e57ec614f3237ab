"""Printing what the files may hold."""

import json
from collections.abc import Callable

import pytest
from typer.testing import Result

from app.cli.schema import SchemaDocument
from app.settings.reference import DOCUMENTS, json_schema, table

Run = Callable[..., Result]


def test_each_document_can_be_named() -> None:
    """The command knows the documents that the settings room describes, and no other."""
    assert [str(document) for document in SchemaDocument] == list(DOCUMENTS)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_schema_is_printed(run: Run, document: str) -> None:
    """One JSON value on stdout, fit to be put into a file for an editor."""
    result = run("schema", document)
    assert result.exit_code == 0
    assert json.loads(result.stdout) == json_schema(document)


def test_settings_are_meant_if_nothing_is_named(run: Run) -> None:
    """The file with the most keys is the one that is asked for most."""
    assert run("schema").stdout == run("schema", "settings").stdout


def test_a_table_is_printed(run: Run) -> None:
    """The rows of docs/reference/registry.md, for a page of one's own."""
    assert run("schema", "registry", "--markdown").stdout == table("registry")


def test_a_slip_names_what_there_is(run: Run) -> None:
    """Exit code 2 and the documents that can be described."""
    result = run("schema", "registri")
    assert result.exit_code == 2
    assert "registry" in result.output
