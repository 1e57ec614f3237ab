"""The tenants file: each tenant's keys, visible engines, roles, weights and limits.

Keys are stored as SHA-256 digests, so that the file reveals no credentials.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from app.settings.auth import Role
from app.settings.field_errors import FieldError, SettingsError, faults_of, shown
from app.settings.fields import MisplacedKey, Section, check_unique, on_or_off
from app.settings.file_syntax import locate, read_text, read_yaml
from app.settings.mcp import McpEntry

ANONYMOUS = "anonymous"
"""Id of the tenant for callers without credentials, if it is declared."""


def _tenant_id(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", text):
        raise ValueError("must start with a letter or digit and contain only letters, digits and . _ -")
    return text


def _digest(text: str) -> str:
    digest = text.strip().lower()
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise ValueError(
            "must be the SHA-256 of the key, 64 hexadecimal digits: rcp-gateway key new TENANT creates a key, "
            "rcp-gateway key digest prints the digest of an existing one"
        )
    return digest


def _moment(text: str) -> str:
    moment_of(text)
    return text


def moment_of(text: str) -> float:
    """Seconds since the epoch of `2027-01-31` (start of that day, UTC) or `2027-01-31T12:00:00Z`.

    Raises ValueError for anything else, including a time without an offset.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("must be a date (2027-01-31) or a time with an offset (2027-01-31T12:00:00Z)") from None
    if moment.tzinfo is None:
        if len(text) > 10:
            raise ValueError("a time needs an offset: 2027-01-31T12:00:00Z")
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()


TenantId = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_tenant_id)]
Pattern = Annotated[str, Field(min_length=1, max_length=128)]
Weight = Annotated[float, Field(ge=0, le=1e6)]


class KeyEntry(Section):
    """One key of a tenant."""

    id: TenantId
    """Name of the key in logs."""
    sha256: Annotated[str, AfterValidator(_digest)] = Field(repr=False)
    """SHA-256 of the key, 64 hexadecimal digits. `rcp-gateway key` prints it."""
    expires: Annotated[str, AfterValidator(_moment)] | None = None
    """Time from which the key is refused."""


class LimitsEntry(Section):
    """Limits of a tenant. Absent keys are not limited."""

    rps: float | None = Field(default=None, gt=0, le=1e6)
    """Requests per second. Each member of a batch counts."""
    burst: int | None = Field(default=None, ge=1, le=1_000_000)
    """Maximum requests in any `burst / rps` seconds. Default: `rps`, rounded up."""
    concurrent: int | None = Field(default=None, ge=1, le=100_000)
    """Maximum concurrent requests per process."""
    hits_per_day: int | None = Field(default=None, ge=1)
    """Maximum hits returned within 24 hours. They are reserved before a request is answered."""

    @model_validator(mode="after")
    def _burst_needs_rps(self) -> "LimitsEntry":
        if self.burst is not None and self.rps is None:
            raise MisplacedKey("needs 'rps'", "burst")
        return self

    @property
    def none(self) -> bool:
        """Whether there is no limit at all."""
        return self.rps is None and self.concurrent is None and self.hits_per_day is None


class BlendEntry(Section):
    """Default fusion of a tenant. Absent keys are taken from the section `fusion` of gateway.yaml."""

    method: Literal["rrf", "weighted", "convex"] | None = None
    """Overrides `fusion.method`."""
    rrf_k: int | None = Field(default=None, ge=1, le=100_000)
    """Overrides `fusion.rrf_k`."""
    confidence_weight: float | None = Field(default=None, ge=0, le=1)
    """Overrides `fusion.confidence_weight`."""
    silent: Literal["scores", "ranks"] | None = None
    """Overrides `fusion.silent`."""


class SelectEntry(Section):
    """Engine selection of a tenant. Absent keys are taken from the section `select` of gateway.yaml."""

    mode: Annotated[Literal["off", "report", "on"], BeforeValidator(on_or_off)] | None = None
    """Overrides `select.mode`."""


class CacheEntry(Section):
    """Answer cache of a tenant. Absent keys are taken from the section `cache` of gateway.yaml."""

    enabled: bool | None = None
    """Overrides `cache.enabled`."""
    ttl_seconds: float | None = Field(default=None, ge=0, le=86_400)
    """Shorter lifetime of this tenant's answers than `cache.ttl_seconds`."""
    refresh: bool = False
    """Whether requests may replace a cached answer (`x-gateway.cache: refresh`)."""


class TenantEntry(Section):
    """One tenant."""

    keys: list[KeyEntry] = Field(default_factory=list)
    """Keys of the tenant. With several, a key can be rotated without interruption."""
    engines: list[Pattern] = Field(default_factory=list)
    """Visible engines: ids, or patterns with `*`, `?` and `[...]`. Default: none."""
    roles: list[Role] = Field(default=["read"])
    """Permissions: `read`, `write` (indexes), `feedback`, `admin`."""
    weights: dict[Pattern, Weight] = Field(default_factory=dict)
    """Weights of engines for this tenant, by engine id."""
    fusion: BlendEntry = Field(default_factory=BlendEntry)
    select: SelectEntry = Field(default_factory=SelectEntry)
    cache: CacheEntry = Field(default_factory=CacheEntry)
    mcp: McpEntry = Field(default_factory=McpEntry)
    limits: LimitsEntry = Field(default_factory=LimitsEntry)

    @model_validator(mode="after")
    def _keys_differ(self) -> "TenantEntry":
        check_unique((key.id for key in self.keys), "keys", "id")
        return self


class TenantsFile(Section):
    """`config/tenants.yaml`."""

    tenants: dict[TenantId, TenantEntry]

    @model_validator(mode="after")
    def _a_key_is_one_tenants(self) -> "TenantsFile":
        owners: dict[str, str] = {}
        for tenant, index, key in _keys(self.tenants):
            if tenant == ANONYMOUS:
                raise MisplacedKey("the tenant 'anonymous' cannot have keys", "tenants", tenant, "keys")
            if key.sha256 in owners:
                raise MisplacedKey(
                    f"is also a key of '{owners[key.sha256]}'", "tenants", tenant, "keys", index, "sha256"
                )
            owners[key.sha256] = tenant
        return self


@dataclass(frozen=True, slots=True)
class Tenants:
    """All tenants by id."""

    by_id: Mapping[str, TenantEntry]

    def unknown_engines(self, engines: Iterable[str]) -> list[FieldError]:
        """A warning for each engine that a tenant names and that is not among `engines`, the ids of the registry."""
        ids = list(engines)
        found: list[FieldError] = []
        for tenant, entry in self.by_id.items():
            for index, pattern in enumerate(entry.engines):
                if not any(fnmatchcase(engine, pattern) for engine in ids):
                    message = f"no engine is called '{shown(pattern)}'"
                    found.append(FieldError(f"tenants.{tenant}.engines[{index}]", message))
            for name in entry.weights:
                if name not in ids:
                    found.append(FieldError(f"tenants.{tenant}.weights", f"no engine is called '{shown(name)}'"))
        return found

    def __repr__(self) -> str:
        return f"Tenants({', '.join(f'{name}: {len(entry.keys)} keys' for name, entry in self.by_id.items())})"


def read_tenants(path: Path) -> Tenants:
    """Read a tenants file in YAML or JSON. Raises SettingsError."""
    text = read_text(path)
    return tenants_in(str(path), read_yaml(str(path), text), text)


def tenants_in(file: str, document: Any, text: str = "") -> Tenants:
    """The tenants of a parsed document. `file` and the lines of `text` are for messages. Raises SettingsError."""
    try:
        return Tenants(TenantsFile.model_validate({} if document is None else document).tenants)
    except ValidationError as error:
        raise SettingsError(file, locate(faults_of(error, TenantsFile), text)) from None


def _keys(tenants: Mapping[str, TenantEntry]) -> Iterator[tuple[str, int, KeyEntry]]:
    for tenant, entry in tenants.items():
        for index, key in enumerate(entry.keys):
            yield tenant, index, key
