"""The tenants file: what may stand there, and what is told about what may not."""

from pathlib import Path
from typing import Any

import pytest

from app.settings.field_errors import SettingsError
from app.settings.tenants_file import moment_of, read_tenants, tenants_in
from tests.support.tenancy import digest, tenant

EXAMPLE = Path(__file__).parents[3] / "config" / "tenants.example.yaml"


def faults(**tenants: Any) -> str:
    """What is told about these tenants."""
    with pytest.raises(SettingsError) as error:
        tenants_in("t.yaml", {"tenants": tenants})
    return str(error.value)


def test_the_example_is_sound() -> None:
    """The file that is shipped can be read, and does not show its digests in an incident."""
    tenants = read_tenants(EXAMPLE)
    assert repr(tenants) == "Tenants(search-team: 2 keys, operations: 1 keys)"
    assert "5b1d7c0d" not in repr(tenants.by_id)


def test_defaults_give_nothing_away() -> None:
    """A tenant that is merely named sees no engine, reads, and is not limited."""
    entry = tenants_in("t", {"tenants": {"a": {}}}).by_id["a"]
    assert (entry.engines, entry.keys, entry.roles, entry.limits.none) == ([], [], ["read"], True)
    assert tenants_in("t", {"tenants": {}}).by_id == {}


@pytest.mark.parametrize(
    ("tenants", "told"),
    [
        ({"a": {"engine": []}}, "tenants.a.engine: unknown key; did you mean 'engines'?"),
        ({"a": {"roles": ["writes"]}}, "tenants.a.roles[0]: expected"),
        ({"a": {"limits": {"burst": 3}}}, "tenants.a.limits.burst: needs 'rps'"),
        ({"a": {"limits": {"rps": "5s"}}}, "tenants.a.limits.rps: expected a number"),
        ({"a": {"weights": {"e": -1}}}, "tenants.a.weights.e: must be at least 0"),
        ({"a": {"fusion": {"method": "best"}}}, "tenants.a.fusion.method: expected"),
        ({"a b": {}}, "must start with a letter or digit"),
        ({"a": {"keys": [{"id": "k"}]}}, "tenants.a.keys[0].sha256: is missing"),
        ({"a": {"keys": [{"id": "k", "sha256": "Bearer abc"}]}}, "must be the SHA-256 of the key"),
        ({"a": {"keys": [{"id": "k", "sha256": digest("x"), "expires": "soon"}]}}, "must be a date (2027-01-31)"),
        ({"a": {"keys": [{"id": "k", "sha256": digest("x"), "expires": "2027-01-31T10:00"}]}}, "needs an offset"),
        ({"a": tenant(keys=("x", "x"))}, "tenants.a.keys[1].sha256: is also a key of 'a'"),
        ({"a": tenant(keys=("x",)), "b": tenant(keys=("x",))}, "tenants.b.keys[0].sha256: is also a key of 'a'"),
        ({"anonymous": tenant(keys=("x",))}, "tenants.anonymous.keys: the tenant 'anonymous' cannot have keys"),
    ],
)
def test_faults_name_their_place(tenants: dict[str, Any], told: str) -> None:
    """Each fault says where and what instead, and repeats no digest."""
    message = faults(**tenants)
    assert told in message
    assert digest("x") not in message


def test_names_of_keys_differ() -> None:
    """The log could not tell two of one name apart."""
    keys = [{"id": "k", "sha256": digest(name)} for name in ("x", "y")]
    assert "tenants.a.keys[1].id: 'k' is already the id of keys[0]" in faults(a={"keys": keys})


def test_a_key_pasted_as_it_is_stays_unsaid() -> None:
    """Whoever pastes a key where its digest belongs is told so, without the key."""
    secret = "rcpgw_SECRETSECRETSECRET"
    for key in ({"id": "k", "sha256": secret}, {"id": "k", "sha256": 5}, secret, {"id": "k", "key": secret}):
        assert "SECRETSECRET" not in faults(a={"keys": [key]})


def test_digests_come_with_spaces_and_capitals() -> None:
    """A line break at the end of a digest, as a block of YAML has it, and capitals change nothing."""
    written = tenants_in("t", {"tenants": {"a": {"keys": [{"id": "k", "sha256": digest("x").upper() + "\n"}]}}})
    assert written.by_id["a"].keys[0].sha256 == digest("x")


def test_a_file_that_is_none(tmp_path: Path) -> None:
    """A missing file is told with its near names; an empty one lacks its one key."""
    (tmp_path / "tenants.yaml").write_text("")
    with pytest.raises(SettingsError, match="there is no such file; did you mean"):
        read_tenants(tmp_path / "tenant.yaml")
    with pytest.raises(SettingsError, match="tenants: is missing"):
        read_tenants(tmp_path / "tenants.yaml")


def test_what_the_registry_does_not_have() -> None:
    """Patterns without a match and weights of nobody are told; they are no faults, for registries change."""
    tenants = tenants_in(
        "t", {"tenants": {"a": {"engines": ["docs", "cod*", "x*"], "weights": {"doc": 1.0, "code": 2.0}}}}
    )
    assert [str(one) for one in tenants.unknown_engines(["docs", "code"])] == [
        "tenants.a.engines[2]: no engine is called 'x*'",
        "tenants.a.weights: no engine is called 'doc'",
    ]


def test_moments() -> None:
    """A date begins in UTC; a time has its offset."""
    assert moment_of("1970-01-02") == 86_400.0
    assert moment_of("1970-01-01T02:00:00+01:00") == 3600.0
