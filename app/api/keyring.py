"""The keys of all tenants, as digests: which tenant a key belongs to, if to any.

A caller's key is hashed and its digest compared, in constant time, with every digest that begins alike; what is looked
up by is the hash, of which a guess tells nothing. It refuses to know headers, and what a tenant may.
"""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from hmac import compare_digest
from math import inf
from typing import NamedTuple

from app.settings.tenants import TenantEntry, moment_of

_PREFIX = 2
"""Bytes of a digest by which keys are looked up: about one key for each, of tens of thousands."""


class Key(NamedTuple):
    """One key of one tenant."""

    tenant: str
    id: str
    digest: bytes
    expires: float
    """Seconds since the epoch."""

    def __repr__(self) -> str:
        return f"<Key {self.tenant}/{self.id}>"


_NOBODY = Key("", "", bytes(32), -inf)


class Keyring:
    """All keys that are declared at one time; a reload makes a new one."""

    __slots__ = ("_by_prefix", "_count")

    def __init__(self, tenants: Mapping[str, TenantEntry]) -> None:
        self._by_prefix: dict[bytes, tuple[Key, ...]] = {}
        self._count = 0
        for key in _keys(tenants):
            prefix = key.digest[:_PREFIX]
            self._by_prefix[prefix] = (*self._by_prefix.get(prefix, ()), key)
            self._count += 1

    def owner(self, token: bytes, now: float) -> Key | None:
        """The key that `token` is, None if it is none or has expired. `now` in seconds since the epoch."""
        digest = sha256(token).digest()
        found = _NOBODY
        for key in self._by_prefix.get(digest[:_PREFIX], (_NOBODY,)):
            if compare_digest(key.digest, digest):
                found = key
        return found if now < found.expires else None

    def holds(self, key: Key) -> bool:
        """Whether this very key is still declared, for the same tenant."""
        same = self._by_prefix.get(key.digest[:_PREFIX], ())
        return any(other[:2] == key[:2] and compare_digest(other.digest, key.digest) for other in same)

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<Keyring of {len(self)} keys>"


def _keys(tenants: Mapping[str, TenantEntry]) -> Iterator[Key]:
    for tenant, entry in tenants.items():
        for key in entry.keys:
            expires = inf if key.expires is None else moment_of(key.expires)
            yield Key(tenant, key.id, bytes.fromhex(key.sha256), expires)
