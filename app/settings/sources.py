"""Loads `rcp.json`, `gateway.yaml` and the tenants file: reads, merges the environment, and validates.

Every function raises SettingsError, with all the faults of a file at once, and nothing else.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from app.settings.environment import apply, fill_headers, literal_variables, read_overrides, stray_references
from app.settings.field_errors import FieldError, SettingsError, dotted, faults_of
from app.settings.fields import without_annotations
from app.settings.file_syntax import locate, read_json, read_text, read_yaml
from app.settings.file_watch import Watch
from app.settings.schema import GatewaySettings, Registry
from app.settings.tenants_file import Tenants, read_tenants


@dataclass(frozen=True, slots=True)
class LoadedRegistry:
    """The engines of one registry file, and a fingerprint of its content (8 hex digits)."""

    registry: Registry
    fingerprint: str
    warnings: tuple[FieldError, ...] = ()
    """Texts of the file that look like variables but are not replaced, found before secrets were filled in."""

    def __repr__(self) -> str:
        return f"LoadedRegistry({self.fingerprint}: {', '.join(entry.id for entry in self.registry.engines)})"


class LoadedSettings(NamedTuple):
    """The whole configuration of one gateway."""

    loaded: LoadedRegistry
    settings: GatewaySettings
    tenants: Tenants | None


@dataclass(frozen=True, slots=True)
class Files:
    """The configuration files of a gateway."""

    registry: Path
    config: Path | None

    def load(self) -> LoadedSettings:
        """Read the files and merge the environment. Raises SettingsError."""
        settings = load_settings(self.config, os.environ)
        return LoadedSettings(load_registry(self.registry, os.environ), settings, load_tenants(settings))

    def watch(self) -> Watch:
        """A watch for changes to the files, the tenants file included. Raises SettingsError."""
        tenants = load_settings(self.config, os.environ).auth.tenants_file
        files = (self.registry, self.config, None if tenants is None else Path(tenants))
        return Watch(file for file in files if file is not None)


def load_settings(path: Path | None, environ: Mapping[str, str]) -> GatewaySettings:
    """The gateway's settings: defaults, then the YAML file (if any), then `RCP_GATEWAY__SECTION__KEY`.

    An empty file, or a section with nothing in it, means defaults. Raises SettingsError.
    """
    file = "environment" if path is None else str(path)
    text = "" if path is None else read_text(path)
    document = read_yaml(file, text)
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
        overridden = {dotted(keys) for keys in overrides.origins}
        of_file = [fault for fault in faults if fault.path not in overridden]
        raise SettingsError(file, (*locate(of_file, text), *(fault for fault in faults if fault.path in overridden)))
    return settings


def error_in(file: Path | None, faults: Iterable[FieldError]) -> SettingsError:
    """A SettingsError for faults found after loading, with their lines in `file` (None: there is no settings file)."""
    if file is None:
        return SettingsError("settings", tuple(faults))
    try:
        return SettingsError(str(file), locate(faults, read_text(file)))
    except SettingsError:  # the file is gone meanwhile: report without lines
        return SettingsError(str(file), tuple(faults))


def load_tenants(settings: GatewaySettings) -> Tenants | None:
    """The tenants, or None if the settings name no tenants file. Raises SettingsError."""
    path = settings.auth.tenants_file
    return None if path is None else read_tenants(Path(path))


def load_registry(path: Path, environ: Mapping[str, str]) -> LoadedRegistry:
    """The engines of `rcp.json` (RCP §16.1) with `${ENV_NAME}` in header values replaced. Raises SettingsError."""
    file = str(path)
    text = read_text(path)
    written = read_json(file, text)
    document, missing = fill_headers(written, environ)
    faults = (*missing, *stray_references(written))
    try:
        registry = Registry.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        faults += faults_of(error, Registry)
    if faults:
        raise SettingsError(file, locate(faults, text))
    return LoadedRegistry(registry, _fingerprint(written), locate(literal_variables(written), text))


def _fingerprint(written: Any) -> str:
    """Hash of the registry before secrets are filled in. Order of engines, white space and annotations do not count."""
    document = _plain(written)
    engines = sorted(document["engines"], key=lambda entry: str(entry["id"]))
    canonical = json.dumps({**document, "engines": engines}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]


def _plain(written: Any) -> Any:
    """The registry without annotations. Names of headers stay, although one may look like an annotation (`x-…`)."""
    if isinstance(written, list):
        return [_plain(member) for member in written]
    if not isinstance(written, dict):
        return written
    return {key: held if key == "headers" else _plain(held) for key, held in without_annotations(written).items()}
