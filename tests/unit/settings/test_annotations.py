"""`$schema`, `description` and `x-*` are allowed in every object with fixed keys of all three files; typos are not."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.settings.field_errors import SettingsError
from app.settings.reference import json_schema
from app.settings.sources import LoadedRegistry, load_registry, load_settings
from app.settings.tenants_file import read_tenants

NOTES = {"$schema": "./rcp.schema.json", "description": "of ${NOBODY}", "x-owner": {"team": ["a", "${NOBODY}"]}}

# As in the registry that the protocol's own document shows: its keys, and a reference to its schema.
PUBLISHED = {
    "$schema": "https://example.org/rcp-1.0.schema.json",
    "engines": [
        {"id": "docs", "transport": "stdio", "command": ["docs-engine"], "weight": 1.0, "priority": 10},
        {"id": "web", "transport": "http", "url": "http://web.example/rcp", "weight": 0.5, "required": True},
    ],
}


def registry(tmp_path: Path, document: Any) -> LoadedRegistry:
    path = tmp_path / "rcp.json"
    path.write_text(json.dumps(document))
    return load_registry(path, {})


def test_the_published_registry_is_accepted(tmp_path: Path) -> None:
    loaded = registry(tmp_path, PUBLISHED)
    assert [entry.id for entry in loaded.registry.engines] == ["docs", "web"]


def test_annotations_pass_at_every_level_of_the_registry(tmp_path: Path) -> None:
    """They change nothing, the fingerprint included; a header that looks like one stays a header."""
    entry = {"id": "a", "url": "https://h", "headers": {"x-key": "1"}, "tls": {"caFile": "ca"}, "breaker": {"share": 1}}
    plain = registry(tmp_path, {"engines": [entry]})
    noted = {key: {**value, **NOTES} if key in ("tls", "breaker") else value for key, value in entry.items()}
    loaded = registry(tmp_path, {**NOTES, "engines": [{**noted, **NOTES}]})
    assert loaded.registry == plain.registry
    assert loaded.fingerprint == plain.fingerprint
    assert loaded.registry.engines[0].headers == {"x-key": "1"}


def test_the_headers_tell_registries_apart(tmp_path: Path) -> None:
    one, other = (
        registry(tmp_path, {"engines": [{"id": "a", "url": "http://h", "headers": {"x-key": value}}]}) for value in "12"
    )
    assert one.fingerprint != other.fingerprint


def test_annotations_pass_in_settings_and_tenants(tmp_path: Path) -> None:
    settings = tmp_path / "gateway.yaml"
    settings.write_text(json.dumps({**NOTES, "server": {**NOTES, "port": 1, "tls": None}, "x-unused": None}))
    assert load_settings(settings, {}).server.port == 1
    tenants = tmp_path / "tenants.yaml"
    key = {"id": "k", "sha256": "0" * 64, **NOTES}
    acme = {"keys": [key], "limits": {"rps": 1, **NOTES}, "fusion": NOTES, **NOTES}
    # A tenant's name is no key of ours: it may begin with x-.
    tenants.write_text(json.dumps({**NOTES, "tenants": {"acme": acme, "x-lab": {"engines": ["*"]}}}))
    assert set(read_tenants(tenants).by_id) == {"acme", "x-lab"}


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ({"$shema": "s", "engines": []}, r"\$shema: unknown key"),
        ({"engines": [{"id": "a", "url": "http://h", "wieght": 1}]}, "unknown key; did you mean 'weight'"),
        ({"engines": [{"id": "a", "url": "http://h", "X-Note": 1}]}, "X-Note: unknown key"),
        ({"engines": [{"id": "a", "url": "https://h", "tls": {"cafile": "f"}}]}, "did you mean 'caFile'"),
    ],
)
def test_typos_are_still_caught(tmp_path: Path, document: Any, fault: str) -> None:
    with pytest.raises(SettingsError, match=fault):
        registry(tmp_path, document)


@pytest.mark.parametrize("document", ["registry", "settings", "tenants"])
def test_the_schema_for_editors_allows_them_too(document: str) -> None:
    schema = json_schema(document)
    levels = [schema, *schema["$defs"].values()]
    closed = [level for level in levels if level.get("additionalProperties") is False]
    assert closed
    assert all("^(\\$schema$|description$|x-)" in level["patternProperties"] for level in closed)
