"""API keys: finds the tenant of a key by its SHA-256 digest.

The lookup compares the caller's digest with every declared digest, each in constant time, so that its duration reveals
nothing about the keys.
"""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from hmac import compare_digest
from math import inf
from typing import NamedTuple

from app.settings.tenants_file import TenantEntry, moment_of


class ApiKey(NamedTuple):
    """One key of one tenant."""

    tenant: str
    id: str
    digest: bytes
    expires: float
    """Seconds since the epoch."""

    def __repr__(self) -> str:
        return f"<ApiKey {self.tenant}/{self.id}>"


_NOBODY = ApiKey("", "", bytes(32), -inf)


class ApiKeys:
    """The keys of one version of the tenants file; a reload builds a new instance."""

    __slots__ = ("_declared", "_digests")

    def __init__(self, tenants: Mapping[str, TenantEntry]) -> None:
        self._digests = tuple((key.digest, key) for key in _keys(tenants))
        # (tenant, id, digest)
        self._declared = frozenset(key[:3] for _, key in self._digests)

    def owner(self, token: bytes, now: float) -> ApiKey | None:
        """The key whose secret is `token`; None if it is unknown or expired. `now` in seconds since the epoch.

        Takes about 60 ns per declared key.
        """
        digest = sha256(token).digest()
        found = _NOBODY
        for known, key in self._digests:
            # No early exit: the time must not depend on the position of the key.
            if compare_digest(known, digest):
                found = key
        return found if now < found.expires else None

    def holds(self, key: ApiKey) -> bool:
        """Whether this key is still declared for the same tenant, with the same secret."""
        # Without `expires`: a changed expiry must not end requests that began while the key was valid.
        return key[:3] in self._declared

    def __len__(self) -> int:
        return len(self._digests)

    def __repr__(self) -> str:
        return f"<ApiKeys of {len(self)} keys>"


def _keys(tenants: Mapping[str, TenantEntry]) -> Iterator[ApiKey]:
    for tenant, entry in tenants.items():
        for key in entry.keys:
            expires = inf if key.expires is None else moment_of(key.expires)
            yield ApiKey(tenant, key.id, bytes.fromhex(key.sha256), expires)
