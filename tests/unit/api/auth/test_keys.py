"""Whose key it is."""

from hmac import compare_digest

import pytest

from app.api.auth import keys as keyring
from app.api.auth.keys import ApiKeys
from app.settings.tenants_file import TenantEntry, moment_of, tenants_in
from tests.support.tenancy import digest, tenant


def entries(**tenants: object) -> dict[str, TenantEntry]:
    """Tenants as they are declared."""
    return dict(tenants_in("t", {"tenants": tenants}).by_id)


def test_a_key_is_its_tenants() -> None:
    """Each key is found, no other is, and none is shown."""
    names = [f"key-number-{number}" for number in range(300)]
    ring = ApiKeys(entries(**{f"t{number}": tenant(keys=(name,)) for number, name in enumerate(names)}))
    for number, name in enumerate(names):
        key = ring.owner(name.encode(), 0.0)
        assert key is not None
        assert key.tenant == f"t{number}"
        assert repr(key) == f"<ApiKey t{number}/k0>"
    assert ring.owner(b"another", 0.0) is None
    assert ring.owner(digest(names[0]).encode(), 0.0) is None
    assert repr(ring) == "<ApiKeys of 300 keys>"


def test_every_digest_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the key is the first, the last or none: each digest there is is compared once, in constant time."""
    compared: list[bytes] = []

    def counting(known: bytes, digest: bytes) -> bool:
        compared.append(known)
        return compare_digest(known, digest)

    monkeypatch.setattr(keyring, "compare_digest", counting)
    names = ("first", "middle", "last")
    ring = ApiKeys(entries(**{name: tenant(keys=(name,)) for name in names}))
    for name in (*names, "nobody"):
        compared.clear()
        found = ring.owner(name.encode(), 0.0)
        assert (found.tenant if found else "nobody") == name
        assert [known.hex() for known in compared] == [digest(each) for each in names]


def test_a_key_ends_when_it_expires() -> None:
    """Up to its moment it opens, from then on not."""
    declared = tenant(keys=("some-key",))
    declared["keys"][0]["expires"] = "2027-01-31T12:00:00+02:00"
    ring = ApiKeys(entries(a=declared))
    moment = moment_of("2027-01-31T10:00:00Z")
    assert ring.owner(b"some-key", moment - 0.1) is not None
    assert ring.owner(b"some-key", moment) is None


def test_what_is_still_declared() -> None:
    """A key is held as long as tenant, name and digest are the same."""
    key = ApiKeys(entries(a=tenant(keys=("one",)))).owner(b"one", 0.0)
    assert key is not None
    for tenants, held in (
        (entries(a=tenant("new", keys=("one",))), True),
        (entries(a=tenant(keys=("two",))), False),
        (entries(b=tenant(keys=("one",))), False),
        (entries(a=tenant(keys=("zero", "one"))), False),
        ({}, False),
    ):
        assert ApiKeys(tenants).holds(key) is held
