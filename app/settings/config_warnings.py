"""Warnings about a valid configuration that most likely does something else than intended.

Shown by `rcp-gateway check`, and logged at the start and after a reload. A warning never stops the gateway.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit

from app.settings.certificate import certificate_expiry
from app.settings.environment import PREFIX, unexpanded_variables
from app.settings.field_errors import FieldError, SettingsError
from app.settings.file_syntax import locate, read_text
from app.settings.schema import EngineEntry, GatewaySettings
from app.settings.sources import LoadedRegistry
from app.settings.tenants_file import ANONYMOUS, TenantEntry, Tenants, moment_of

EXPIRES_SOON_DAYS = 21
"""The alert RcpGatewayCertificateExpires uses the same limit."""

_RAISE = "give one a weight above 0"


def config_warnings(
    loaded: LoadedRegistry,
    settings: GatewaySettings,
    tenants: Tenants | None,
    now: float,
    environ: Mapping[str, str] = os.environ,
    engines: Sequence[EngineEntry] | None = None,
) -> list[FieldError]:
    """Every warning about registry, settings and tenants; `now` in seconds since the epoch. Reads files for lines.

    `engines`: those of the registry and of engine sources, where there are sources.
    """
    found = [*loaded.warnings, *_weight_warnings(loaded), *_literal_variables(settings, environ)]
    found += _certificate_warnings(settings, now)
    if tenants is not None:
        known = loaded.registry.engines if engines is None else engines
        of_tenants = list(_tenant_warnings(tenants, known, now, keys="keys" in settings.auth.mode))
        # The engines of a `url` are not known before its first answer.
        if all(source.url is None for source in settings.registry.sources):
            of_tenants = [*tenants.unknown_engines(entry.id for entry in known), *of_tenants]
        with suppress(SettingsError):  # the file is gone meanwhile: warn without lines
            of_tenants = list(locate(of_tenants, read_text(Path(settings.auth.tenants_file or ""))))
        found += of_tenants
    return found


def _weight_warnings(loaded: LoadedRegistry) -> Iterator[FieldError]:
    weights = [entry.weight for entry in loaded.registry.engines if entry.enabled]
    if weights and not any(weights):
        yield FieldError(
            "engines", "every enabled engine has weight 0, so all hits score 0", "give one a weight above 0"
        )


def _certificate_warnings(settings: GatewaySettings, now: float) -> Iterator[FieldError]:
    if settings.server.tls is None:
        return
    try:
        left = certificate_expiry(settings.server.tls.cert_file) - now
    except (OSError, ValueError):  # the preflight check reports an unusable file
        return
    if left < EXPIRES_SOON_DAYS * 86_400:
        when = "has expired" if left <= 0 else f"expires within {int(left // 86_400) + 1} days"
        yield FieldError("server.tls.cert_file", f"the certificate {when}", "write a renewed one to the same files")


def _literal_variables(settings: GatewaySettings, environ: Mapping[str, str]) -> Iterator[FieldError]:
    """Settings of the file that look like variables. A shell has expanded those of the environment."""
    overridden = {name.upper() for name in environ}
    for section in settings.model_fields_set:
        for key, value in getattr(settings, section).model_dump(exclude_unset=True).items():
            name = f"{PREFIX}{section}__{key}".upper()
            if name not in overridden:
                yield from unexpanded_variables(value, (section, key), f"set it with the environment variable {name}")


def _tenant_warnings(
    tenants: Tenants, engines: Sequence[EngineEntry], now: float, *, keys: bool
) -> Iterator[FieldError]:
    for name, tenant in tenants.by_id.items():
        at = f"tenants.{name}"
        yield from _expired_keys(at, tenant, now)
        seen = [entry for entry in engines if entry.enabled and _matches(tenant, entry.id)]
        if not tenant.engines:
            yield FieldError(at, "has no engines, so every query of this tenant fails", "list them under 'engines'")
        elif not seen and any(_matches(tenant, entry.id) for entry in engines):
            yield FieldError(f"{at}.engines", "names only disabled engines, so every query of this tenant fails")
        if seen and not any(tenant.weights.get(entry.id, entry.weight) for entry in seen):
            yield FieldError(at, "all its engines have weight 0, so all hits score 0", _RAISE)
        if keys and not tenant.keys and name != ANONYMOUS:
            yield FieldError(at, "has no keys, so nobody can call as this tenant", f"run rcp-gateway key new {name}")


def _expired_keys(at: str, tenant: TenantEntry, now: float) -> Iterator[FieldError]:
    for index, key in enumerate(tenant.keys):
        if key.expires is not None and (moment := moment_of(key.expires)) <= now:
            when = f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M} UTC"
            message = f"key '{key.id}' expired on {when} and is refused"
            yield FieldError(f"{at}.keys[{index}].expires", message, "remove it, or issue a new key")


def _matches(tenant: TenantEntry, engine: str) -> bool:
    return any(fnmatchcase(engine, pattern) for pattern in tenant.engines)


def duplicate_addresses(entries: Iterable[EngineEntry]) -> list[tuple[str, str]]:
    """Pairs of enabled engines that share a URL or a command. Fusion counts the hits of such an engine twice."""
    seen: dict[object, str] = {}
    pairs: dict[tuple[str, str], None] = {}
    for entry in entries:
        if entry.enabled and entry.shadow is None:  # shadow engines are not fused
            for place in (*map(_same_address, entry.urls), *([tuple(entry.command)] if entry.command else [])):
                first = seen.setdefault(place, entry.id)
                if first != entry.id:
                    pairs[first, entry.id] = None
    return list(pairs)


def _same_address(url: str) -> tuple[object, ...]:
    """A key that is equal for URLs of the same address, however they are written."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme.lower() == "https" else 80)
    return parts.scheme.lower(), (parts.hostname or "").rstrip("."), port, parts.path.rstrip("/"), parts.query
