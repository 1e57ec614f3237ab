"""One tenant as the federation knows it: which engines it sees, what it may, and how it wants answers blended.

Made from the tenants file when that is read, handed along with every message. It refuses to know keys, tokens and HTTP.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import blake2b
from types import MappingProxyType

from app.federation.capabilities import EVERY_EXTENSION
from app.protocol.errors import Unauthorized
from app.protocol.method_names import UNGATED, gate_of
from app.settings.schema import FusionSettings
from app.settings.tenants_file import LimitsEntry, TenantEntry

ADMIN = "admin"

_ROLES = MappingProxyType(
    {"index/add": "write", "index/delete": "write", "memory/build": "write", "feedback": "feedback"}
)
"""Methods that need another role than `read`."""


_CAPABILITY_ROLES = MappingProxyType({"index": "write", EVERY_EXTENSION: "write", "feedback": "feedback"})
"""Capabilities all of whose methods need another role than `read`."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant."""

    id: str
    engines: tuple[str, ...] = ()
    """Patterns of the ids it sees; an engine that none of them matches does not exist for it."""
    roles: frozenset[str] = frozenset({"read"})
    weights: Mapping[str, float] = field(default_factory=dict)
    """Engine id -> weight, where it differs from the registry's."""
    fusion: FusionSettings | None = None
    """Its default blend; None: the gateway's."""
    limits: LimitsEntry = field(default_factory=LimitsEntry)
    scope: str = ""
    """Names what it is given to keep for later: the tenant, and the engines it saw then."""

    def sees(self, engine_id: str) -> bool:
        """Whether the engine exists for this tenant."""
        return any(fnmatchcase(engine_id, pattern) for pattern in self.engines)

    def may_use(self, capability: str) -> bool:
        """Whether anything that the capability offers is allowed to this tenant."""
        kind = EVERY_EXTENSION if capability.startswith("x-") else capability
        return _CAPABILITY_ROLES.get(kind, "read") in self.roles

    def check(self, method: str) -> None:
        """Raises Unauthorized (-32012) if the tenant lacks the role that the method needs (RCP §15)."""
        role = role_of(method)
        if role is not None and role not in self.roles:
            raise Unauthorized(f"'{method[:100]}' needs the role '{role}', which this caller does not have")


def role_of(method: str) -> str | None:
    """The role that a method needs; None if none does, or if it is no method of RCP.

    A vendor's method may change anything, so it needs `write`.
    """
    if method in UNGATED or gate_of(method) is None:
        return None
    return _ROLES.get(method, "write" if method.startswith("x-") else "read")


def tenant_of(tenant_id: str, entry: TenantEntry, blend: FusionSettings) -> Tenant:
    """The tenant that an entry of the tenants file declares; `blend` is the gateway's own."""
    settings = entry.fusion.model_dump(exclude_none=True)
    engines = tuple(sorted(set(entry.engines)))
    return Tenant(
        id=tenant_id,
        engines=engines,
        roles=frozenset(entry.roles),
        weights=dict(entry.weights),
        fusion=blend.model_copy(update=settings) if settings else None,
        limits=entry.limits,
        scope=f"{tenant_id}:{blake2b(repr(engines).encode(), digest_size=6).hexdigest()}:",
    )
