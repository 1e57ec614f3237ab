"""Whose key it is."""

from app.api.keyring import Keyring
from app.settings.tenants import TenantEntry, moment_of, tenants_in
from tests.support.tenancy import digest, tenant


def entries(**tenants: object) -> dict[str, TenantEntry]:
    """Tenants as they are declared."""
    return dict(tenants_in("t", {"tenants": tenants}).by_id)


def test_a_key_is_its_tenants() -> None:
    """Each key is found, no other is, and none is shown."""
    names = [f"key-number-{number}" for number in range(300)]
    keyring = Keyring(entries(**{f"t{number}": tenant(keys=(name,)) for number, name in enumerate(names)}))
    for number, name in enumerate(names):
        key = keyring.owner(name.encode(), 0.0)
        assert key is not None
        assert key.tenant == f"t{number}"
        assert repr(key) == f"<Key t{number}/k0>"
    assert keyring.owner(b"another", 0.0) is None
    assert keyring.owner(digest(names[0]).encode(), 0.0) is None
    assert repr(keyring) == "<Keyring of 300 keys>"


def test_digests_that_begin_alike_are_told_apart() -> None:
    """Two keys whose digests share what they are looked up by are two keys."""
    first: dict[str, str] = {}
    pair: tuple[str, str] | None = None
    for number in range(5000):
        name = f"key-{number}"
        start = digest(name)[:4]
        if start in first:
            pair = first[start], name
            break
        first[start] = name
    assert pair is not None
    keyring = Keyring(entries(a=tenant(keys=(pair[0],)), b=tenant(keys=(pair[1],))))
    assert [keyring.owner(name.encode(), 0.0).tenant for name in pair] == ["a", "b"]  # type: ignore[union-attr]


def test_a_key_ends_when_it_expires() -> None:
    """Up to its moment it opens, from then on not."""
    declared = tenant(keys=("some-key",))
    declared["keys"][0]["expires"] = "2027-01-31T12:00:00+02:00"
    keyring = Keyring(entries(a=declared))
    moment = moment_of("2027-01-31T10:00:00Z")
    assert keyring.owner(b"some-key", moment - 0.1) is not None
    assert keyring.owner(b"some-key", moment) is None


def test_what_is_still_declared() -> None:
    """A key is held as long as tenant, name and digest are the same."""
    key = Keyring(entries(a=tenant(keys=("one",)))).owner(b"one", 0.0)
    assert key is not None
    for tenants, held in (
        (entries(a=tenant("new", keys=("one",))), True),
        (entries(a=tenant(keys=("two",))), False),
        (entries(b=tenant(keys=("one",))), False),
        (entries(a=tenant(keys=("zero", "one"))), False),
        ({}, False),
    ):
        assert Keyring(tenants).holds(key) is held
