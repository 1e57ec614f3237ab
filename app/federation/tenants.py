"""A tenant: which engines it sees, what it may do, and its fusion settings and limits.

Made from the tenants file when that is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import blake2b
from types import MappingProxyType
from typing import Literal

from app.federation.capabilities import EVERY_EXTENSION
from app.protocol.errors import Unauthorized
from app.protocol.method_names import UNGATED, gate_of
from app.settings.mcp import McpEntry
from app.settings.schema import FusionSettings
from app.settings.tenants_file import CacheEntry, LimitsEntry, TenantEntry

ADMIN = "admin"

_ROLES = MappingProxyType(
    {"index/add": "write", "index/delete": "write", "memory/build": "write", "feedback": "feedback"}
)
"""Methods that need a role other than `read`."""


_CAPABILITY_ROLES = MappingProxyType({"index": "write", EVERY_EXTENSION: "write", "feedback": "feedback"})
"""Capabilities all of whose methods need a role other than `read`."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant."""

    id: str
    engines: tuple[str, ...] = ()
    """Glob patterns of the engine ids it sees; other engines are invisible to it."""
    roles: frozenset[str] = frozenset({"read"})
    weights: Mapping[str, float] = field(default_factory=dict)
    """Engine id -> weight, where it differs from the registry's."""
    fusion: FusionSettings | None = None
    """Its default fusion settings; None: the gateway's."""
    select_mode: Literal["off", "report", "on"] | None = None
    """Its mode of engine selection; None: the gateway's."""
    cache: CacheEntry = field(default_factory=CacheEntry)
    """Its answer cache, where it differs from the gateway's."""
    limits: LimitsEntry = field(default_factory=LimitsEntry)
    mcp: McpEntry = field(default_factory=McpEntry)
    """How the gateway presents itself to its MCP clients, where it differs from the settings."""
    scope: str = ""
    """Key prefix of what is stored for it: the tenant, and a digest of its engines at that time."""

    def sees(self, engine_id: str) -> bool:
        """Whether this engine is visible to the tenant."""
        # Case-sensitive on every platform, unlike `fnmatch`.
        return any(fnmatchcase(engine_id, pattern) for pattern in self.engines)

    def may_use(self, capability: str) -> bool:
        """Whether the tenant may use anything of this capability."""
        kind = EVERY_EXTENSION if capability.startswith("x-") else capability
        return _CAPABILITY_ROLES.get(kind, "read") in self.roles

    def check(self, method: str) -> None:
        """Raises Unauthorized (-32012) if the tenant lacks the role that the method needs (RCP §15)."""
        role = role_of(method)
        if role is not None and role not in self.roles:
            raise Unauthorized(f"'{method[:100]}' needs the role '{role}', which this caller does not have")


def role_of(method: str) -> str | None:
    """The role that a method needs; None if it needs none or is unknown.

    A vendor method may change data, so it needs `write`.
    """
    # Unknown methods are refused later with -32004, which must not depend on roles.
    if method in UNGATED or gate_of(method) is None:
        return None
    return _ROLES.get(method, "write" if method.startswith("x-") else "read")


def tenant_of(tenant_id: str, entry: TenantEntry, blend: FusionSettings) -> Tenant:
    """The tenant of an entry of the tenants file; `blend`: the gateway's fusion settings."""
    settings = entry.fusion.model_dump(exclude_none=True)
    # Sorted, so that the scope does not change with the order in the file.
    engines = tuple(sorted(set(entry.engines)))
    return Tenant(
        id=tenant_id,
        engines=engines,
        roles=frozenset(entry.roles),
        weights=dict(entry.weights),
        fusion=blend.model_copy(update=settings) if settings else None,
        select_mode=entry.select.mode,
        cache=entry.cache,
        limits=entry.limits,
        mcp=entry.mcp,
        scope=f"{tenant_id}:{blake2b(repr(engines).encode(), digest_size=6).hexdigest()}:",
    )
