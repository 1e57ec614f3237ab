"""`make mcpb`: a bundle that starts the gateway, and a registry entry, both as their schemas want them."""

import json
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import jsonschema
import pytest

from tests.support.node_tools import BIN, MODULES, needs, run
from tests.support.running_gateway import entry
from tests.support.scripted_engine import ScriptedEngine
from tests.support.stdio_caller import calling

PROJECT = Path(__file__).parents[2]

# The rules of a registry entry with a bundle, from the schema of the MCP registry of 2025-12-11.
TEXT = {"type": "string", "minLength": 1}
PACKAGE = {
    "type": "object",
    "required": ["registryType", "identifier", "fileSha256", "transport"],
    "properties": {
        "registryType": {"const": "mcpb"},
        "identifier": {"type": "string", "pattern": "^https://.*mcp"},
        "fileSha256": {"type": "string", "pattern": "^[a-f0-9]{64}$"},
        "transport": {"const": {"type": "stdio"}},
    },
}
REMOTE = {
    "type": "object",
    "required": ["type", "url"],
    "properties": {"type": {"const": "streamable-http"}, "url": {"type": "string", "pattern": "^https?://\\S+$"}},
}
SERVER = {
    "type": "object",
    "required": ["$schema", "name", "description", "version"],
    "properties": {
        "$schema": {"const": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"},
        "name": {**TEXT, "minLength": 3, "maxLength": 200, "pattern": "^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$"},
        "title": {**TEXT, "maxLength": 100},
        "description": {**TEXT, "maxLength": 100},
        "version": {**TEXT, "maxLength": 255, "pattern": "^[0-9]+\\.[0-9]+\\.[0-9]+"},
        "packages": {"type": "array", "items": PACKAGE, "minItems": 1},
        "remotes": {"type": "array", "items": REMOTE},
    },
    "additionalProperties": False,
}


def build(folder: Path, *options: str) -> tuple[Path, dict[str, Any]]:
    """The bundle and the registry entry."""
    command = [sys.executable, str(PROJECT / "deploy/mcpb/build.py"), "--output", str(folder), *options]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (bundle,) = folder.glob("*.mcpb")
    return bundle, json.loads((folder / "server.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Built once."""
    return build(tmp_path_factory.mktemp("mcpb"))


def test_the_registry_entry_is_valid(built: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """It names the bundle and its checksum, and a public gateway if there is one."""
    bundle, registered = built
    jsonschema.validate(registered, SERVER)
    (package,) = registered["packages"]
    assert package["fileSha256"] == sha256(bundle.read_bytes()).hexdigest()
    assert package["identifier"].endswith(bundle.name)
    options = ("--name", "io.github.me/x", "--url", "https://x.test/my.mcpb", "--public-url", "https://x.test/")
    again, mine = build(tmp_path, *options)
    jsonschema.validate(mine, SERVER)
    assert mine["packages"][0]["identifier"] == "https://x.test/my.mcpb"
    assert mine["remotes"] == [{"type": "streamable-http", "url": "https://x.test/mcp"}]
    assert again.read_bytes() == bundle.read_bytes()


@pytest.mark.skipif(not shutil.which("mcp-publisher"), reason="needs mcp-publisher, the tool of the MCP registry")
def test_the_publisher_accepts_the_entry(built: tuple[Path, dict[str, Any]]) -> None:
    """The registry's own tool validates it."""
    subprocess.run(["mcp-publisher", "validate"], cwd=built[0].parent, check=True, timeout=60)


@needs("@anthropic-ai/mcpb")
async def test_the_manifest_is_valid(built: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """By the published schema, and by the tool for bundles."""
    with ZipFile(built[0]) as bundle:
        bundle.extract("manifest.json", tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))
    version = manifest["manifest_version"]
    schema = MODULES / "@anthropic-ai/mcpb/schemas" / f"mcpb-manifest-v{version}.schema.json"
    jsonschema.validate(manifest, json.loads(schema.read_text(encoding="utf-8")))
    code, out, err = await run(str(BIN / "mcpb"), "validate", str(tmp_path / "manifest.json"))
    assert code == 0, (out, err)


async def test_the_bundle_serves(built: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """What is in it is enough: the command of the manifest, with Python in place of uv, answers MCP."""
    with ZipFile(built[0]) as bundle:
        bundle.extractall(tmp_path)
    server = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))["server"]
    assert (tmp_path / server["entry_point"]).is_file()
    engine = await ScriptedEngine().start()
    try:
        registry = tmp_path / "my-rcp.json"
        registry.write_text(json.dumps({"engines": [entry("docs", engine)]}))
        arguments = server["mcp_config"]["args"]
        assert arguments[:4] == ["run", "--directory", "${__dirname}", "rcp-gateway"]
        rest = [each.replace("${user_config.registry}", str(registry)) for each in arguments[4:]]
        program = f"import sys; sys.path[0] = {str(tmp_path)!r}; from app.__main__ import main; sys.exit(main())"
        async with calling([sys.executable, "-c", program, *rest]) as caller:
            hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
            caller.send({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
            assert (await caller.message())["result"]["serverInfo"]["name"] == "rcp-gateway"
            caller.send({"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
            assert "docs" in (await caller.message())["result"]["tools"][0]["description"]
            assert (await caller.end())[0] == 0
    finally:
        await engine.stop()
