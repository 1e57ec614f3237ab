"""Where wishes come from: reads `rcp.json` and `gateway.yaml`, merges the environment into them, and validates.

It decides what overrides what. Whatever is wrong is a SettingsError that names every fault; nothing else comes out.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from app.settings.environment import apply, fill_headers, read_overrides, stray_references
from app.settings.field_errors import SettingsError
from app.settings.file_syntax import read_json, read_text, read_yaml
from app.settings.file_watch import Watch
from app.settings.messages import faults_of
from app.settings.schema import GatewaySettings, Registry
from app.settings.section import without_annotations
from app.settings.tenants_file import Tenants, read_tenants


@dataclass(frozen=True, slots=True)
class LoadedRegistry:
    """The engines of one registry file, and 8 hex digits that tell it from every differently written one."""

    registry: Registry
    fingerprint: str

    def __repr__(self) -> str:
        return f"LoadedRegistry({self.fingerprint}: {', '.join(entry.id for entry in self.registry.engines)})"


class LoadedSettings(NamedTuple):
    """All that is wished of one gateway."""

    loaded: LoadedRegistry
    settings: GatewaySettings
    tenants: Tenants | None


@dataclass(frozen=True, slots=True)
class Files:
    """Where the wishes of a gateway are written."""

    registry: Path
    config: Path | None

    def load(self) -> LoadedSettings:
        """What they say now, the environment merged in. Raises SettingsError."""
        settings = load_settings(self.config, os.environ)
        return LoadedSettings(load_registry(self.registry, os.environ), settings, load_tenants(settings))

    def watch(self) -> Watch:
        """Whether they say something else than now. Raises SettingsError."""
        tenants = load_settings(self.config, os.environ).auth.tenants_file
        files = (self.registry, self.config, None if tenants is None else Path(tenants))
        return Watch(file for file in files if file is not None)


def load_settings(path: Path | None, environ: Mapping[str, str]) -> GatewaySettings:
    """The gateway's settings: defaults, then the YAML file (if any), then `RCP_GATEWAY__SECTION__KEY`.

    An empty file, or a section with nothing in it, means defaults. Raises SettingsError.
    """
    file = "environment" if path is None else str(path)
    document = {} if path is None else read_yaml(file, read_text(path))
    overrides = read_overrides(environ, GatewaySettings)
    faults = tuple(overrides.faults)
    if document is None:
        document = {}
    if isinstance(document, dict):
        document = {name: {} if section is None else section for name, section in document.items()}
        apply(overrides, document)
    try:
        settings = GatewaySettings.model_validate(document)
    except ValidationError as error:
        faults += faults_of(error, GatewaySettings, overrides.origins)
    if faults:
        raise SettingsError(file, faults)
    return settings


def load_tenants(settings: GatewaySettings) -> Tenants | None:
    """The tenants, if the settings tell callers apart. Raises SettingsError."""
    path = settings.auth.tenants_file
    return None if path is None else read_tenants(Path(path))


def load_registry(path: Path, environ: Mapping[str, str]) -> LoadedRegistry:
    """The engines of `rcp.json` (RCP §16.1) with `${ENV_NAME}` in header values replaced. Raises SettingsError."""
    file = str(path)
    written = read_json(file, read_text(path))
    document, missing = fill_headers(written, environ)
    faults = (*missing, *stray_references(written))
    try:
        registry = Registry.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        faults += faults_of(error, Registry)
    if faults:
        raise SettingsError(file, faults)
    return LoadedRegistry(registry, _fingerprint(written))


def _fingerprint(written: Any) -> str:
    """Taken before secrets are filled in, over what is written but not how: order, white space and annotations do not
    matter."""
    document = _plain(written)
    engines = sorted(document["engines"], key=lambda entry: str(entry["id"]))
    canonical = json.dumps({**document, "engines": engines}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]


def _plain(written: Any) -> Any:
    """The registry without annotations; a header's name may look like one and stays."""
    if isinstance(written, list):
        return [_plain(member) for member in written]
    if not isinstance(written, dict):
        return written
    return {key: held if key == "headers" else _plain(held) for key, held in without_annotations(written).items()}
