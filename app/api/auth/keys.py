"""The keys of all tenants, as digests: which tenant a key belongs to, if to any.

A caller's key is hashed and its digest compared with every digest there is, each in constant time and all of them
whichever fits, so that how long it takes tells nothing. It refuses to know headers, and what a tenant may.
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
        return f"<Key {self.tenant}/{self.id}>"


_NOBODY = ApiKey("", "", bytes(32), -inf)


class ApiKeys:
    """All keys that are declared at one time; a reload makes a new one."""

    __slots__ = ("_declared", "_digests")

    def __init__(self, tenants: Mapping[str, TenantEntry]) -> None:
        self._digests = tuple((key.digest, key) for key in _keys(tenants))
        self._declared = frozenset(key[:3] for _, key in self._digests)

    def owner(self, token: bytes, now: float) -> ApiKey | None:
        """The key that `token` is, None if it is none or has expired. `now` in seconds since the epoch.

        Takes some 60 ns for each key that is declared.
        """
        digest = sha256(token).digest()
        found = _NOBODY
        for known, key in self._digests:
            if compare_digest(known, digest):
                found = key
        return found if now < found.expires else None

    def holds(self, key: ApiKey) -> bool:
        """Whether this very key is still declared, for the same tenant."""
        return key[:3] in self._declared

    def __len__(self) -> int:
        return len(self._digests)

    def __repr__(self) -> str:
        return f"<Keyring of {len(self)} keys>"


def _keys(tenants: Mapping[str, TenantEntry]) -> Iterator[ApiKey]:
    for tenant, entry in tenants.items():
        for key in entry.keys:
            expires = inf if key.expires is None else moment_of(key.expires)
            yield ApiKey(tenant, key.id, bytes.fromhex(key.sha256), expires)
