"""The description of the files: what the schema accepts, and how each key is worded."""

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from app.settings.file_syntax import read_text, read_yaml
from app.settings.reference import DOCUMENTS, json_schema, keys, table

PROJECT = Path(__file__).parents[3]


def faults(document: str, value: Any) -> list[str]:
    """What the schema finds wrong with a file of this content."""
    return [fault.message for fault in Draft202012Validator(json_schema(document)).iter_errors(value)]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_it_is_a_schema(document: str) -> None:
    """What is printed for editors is a JSON Schema of the dialect that it names."""
    schema = json_schema(document)
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == Draft202012Validator.META_SCHEMA["$id"]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_key_says_what_it_means(document: str) -> None:
    """No key is without a meaning, and none is listed twice."""
    listed = keys(document)
    assert [key.name for key in listed if not key.meaning] == []
    assert len({key.name for key in listed}) == len(listed) > 10


@pytest.mark.parametrize(
    ("document", "file"),
    [("registry", "rcp.json"), ("settings", "gateway.yaml"), ("tenants", "tenants.example.yaml")],
)
def test_the_example_files_keep_to_it(document: str, file: str) -> None:
    """The files in config/, read as the gateway reads them, are what their schemas allow."""
    assert faults(document, read_yaml(file, read_text(PROJECT / "config" / file))) == []


@pytest.mark.parametrize(
    ("document", "value"),
    [
        ("registry", {"engines": [{"url": "http://127.0.0.1:1/rcp"}]}),
        ("registry", {"engines": [{"id": "a", "url": "http://127.0.0.1:1/rcp", "wieght": 2}]}),
        ("registry", {"engines": [{"id": "a", "url": "http://127.0.0.1:1/rcp", "timeoutMs": 0}]}),
        ("settings", {"server": {"port": "8080"}}),
        ("settings", {"retreive": {}}),
        ("settings", {"fusion": {"method": "best"}}),
    ],
)
def test_an_editor_sees_a_slip(document: str, value: Any) -> None:
    """A key that is missing or not known, a value of another type, out of bounds or not among those allowed."""
    assert len(faults(document, value)) == 1


@pytest.mark.parametrize(
    ("document", "row"),
    [
        ("registry", "| `id` | text, 1 to 128 | required |"),
        ("registry", "| `headers` | object of text | `{}` |"),
        ("registry", "| `tls.caFile` | text | `null` |"),
        ("registry", "| `discoverHosts` | list of text | `[]` |"),
        ("registry", "| `replicas` | list of text, up to 32 | `[]` |"),
        ("settings", '| `fusion.method` | `rrf`, `weighted`, `convex` | `"rrf"` |'),
        ("settings", "| `server.keep_alive_seconds` | whole number, from 1 | `75` |"),
        ("settings", "| `engines.idle_seconds` | number, above 0 | `30.0` |"),
        ("settings", "| `index.enabled` | boolean | `false` |"),
        ("settings", '| `auth.mode` | list of `none`, `keys`, `jwt` | `["none"]` |'),
        ("tenants", "| `keys[].sha256` | text | required |"),
        ("tenants", "| `limits.rps` | number, above 0 to 1000000 | `null` |"),
        ("tenants", "| `weights` | object of number, 0 to 1000000 | `{}` |"),
    ],
)
def test_a_key_is_told_in_words(document: str, row: str) -> None:
    """Type, bounds and default are worded as they stand in the file."""
    assert row in table(document)


def test_a_page_is_linked() -> None:
    """A page that a meaning names is a link in the table and a plain path in the schema."""
    row = next(line for line in table("settings").splitlines() if line.startswith("| `fusion.method`"))
    assert "[fusion](../explanation/fusion.md)" in row
    assert json_schema("settings")["$defs"]["FusionSettings"]["properties"]["method"]["description"].count("docs/") == 1
