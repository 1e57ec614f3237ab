"""Builds an MCP bundle (MCPB) of the gateway and its `server.json` for MCP registries: `make mcpb`.

The bundle contains the sources, and `uv`, which hosts of such bundles have, installs the dependencies on first use.
The same sources give the same bytes, so that the checksum in `server.json` can be reproduced.
"""

import argparse
import json
import sys
import tomllib
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

PROJECT = Path(__file__).parents[2]
NAME = "io.github.rcp-gateway/rcp-gateway"
"""Name in MCP registries. Whoever publishes it must own the namespace, so `--name` can change it."""

SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
SUMMARY = "Search many retrieval engines at once and get one ranked list of passages with sources."
"""At most 100 characters, which is what registries accept."""

PACKED = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip file can contain."""


def manifest(version: str, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The manifest of the bundle."""
    command = ["run", "--directory", "${__dirname}", "rcp-gateway", "mcp", "--registry", "${user_config.registry}"]
    return {
        "manifest_version": "0.4",
        "name": "rcp-gateway",
        "display_name": "RCP gateway",
        "version": version,
        "description": SUMMARY,
        "author": {"name": "the rcp-gateway maintainers"},
        "license": "MIT",
        "keywords": ["retrieval", "search", "rag", "rcp"],
        "server": {
            "type": "uv",
            "entry_point": "app/__main__.py",
            "mcp_config": {"command": "uv", "args": command},
        },
        "tools": [{"name": tool["name"], "description": tool["description"]} for tool in tools],
        # Descriptions name the engines of the registry file, which are known at run time only.
        "tools_generated": True,
        "compatibility": {"platforms": ["darwin", "linux"], "runtimes": {"python": ">=3.11"}},
        "user_config": {
            "registry": {
                "type": "file",
                "title": "Registry of engines",
                "description": "The file rcp.json that lists your retrieval engines",
                "required": True,
            }
        },
    }


def server_json(name: str, version: str, url: str, digest: str, public_url: str | None) -> dict[str, Any]:
    """The entry for MCP registries. `url`: where the bundle can be downloaded; `public_url`: of a public gateway."""
    entry: dict[str, Any] = {
        "$schema": SCHEMA,
        "name": name,
        "title": "RCP gateway",
        "description": SUMMARY,
        "version": version,
        "packages": [
            {"registryType": "mcpb", "identifier": url, "fileSha256": digest, "transport": {"type": "stdio"}},
        ],
    }
    if public_url is not None:
        entry["remotes"] = [{"type": "streamable-http", "url": f"{public_url.rstrip('/')}/mcp"}]
    return entry


def packed_files() -> Iterator[Path]:
    """What the bundle contains besides the manifest, relative to the project."""
    yield from map(Path, PACKED)
    for path in sorted((PROJECT / "app").rglob("*")):
        if path.is_file() and path.suffix in (".py", ".html", ".css", ".js"):
            yield path.relative_to(PROJECT)


def write_bundle(path: Path, described: dict[str, Any]) -> str:
    """Write the bundle and return its SHA-256."""
    contents = {"manifest.json": json.dumps(described, indent=2).encode()}
    contents |= {file.as_posix(): (PROJECT / file).read_bytes() for file in packed_files()}
    with ZipFile(path, "w", ZIP_DEFLATED) as bundle:
        for name, data in contents.items():
            entry = ZipInfo(name, EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = ZIP_DEFLATED
            bundle.writestr(entry, data)
    return sha256(path.read_bytes()).hexdigest()


def main() -> int:
    """Write both files and return the exit status."""
    sys.path.insert(0, str(PROJECT))
    from app.mcp.tool_definitions import tool_list

    parser = argparse.ArgumentParser(prog="make mcpb", description=__doc__)
    parser.add_argument("--output", type=Path, default=PROJECT / "dist-mcpb", help="folder for both files")
    parser.add_argument("--name", default=NAME, help="name in MCP registries, in a namespace that you own")
    parser.add_argument("--url", help="where you publish the bundle; default: a release of the project of that name")
    parser.add_argument("--public-url", help="address of a public gateway, which is listed as well")
    args = parser.parse_args()
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    args.output.mkdir(parents=True, exist_ok=True)
    bundle = args.output / f"rcp-gateway-{version}.mcpb"
    owner, _, project = args.name.removeprefix("io.github.").partition("/")
    release = f"https://github.com/{owner}/{project}/releases/download/v{version}/{bundle.name}"
    tools = tool_list("RCP gateway", "", "", (), feedback=False, structured=True).tools
    digest = write_bundle(bundle, manifest(version, tools))
    entry = server_json(args.name, version, args.url or release, digest, args.public_url)
    registry_file = args.output / "server.json"
    registry_file.write_text(json.dumps(entry, indent=2) + "\n", encoding="utf-8")
    print(f"{bundle}\n{registry_file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
