"""Which headers hold a credential, and that everything odd is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.auth.credentials import MAX_LENGTH, Credential, MalformedCredential, credential_of


def test_no_header_no_credential() -> None:
    """Other headers are passed over."""
    assert credential_of([(b"cookie", b"Bearer x"), (b"proxy-authorization", b"Bearer x")]) is None


def test_both_forms() -> None:
    """A bearer token may be a JSON Web Token, a key in X-API-Key is none."""
    bearer = credential_of([(b"authorization", b"Bearer aa.bb.cc")])
    plain = credential_of([(b"x-api-key", b"aa.bb.cc")])
    assert bearer == Credential(b"aa.bb.cc", bearer=True)
    assert plain == Credential(b"aa.bb.cc", bearer=False)
    assert bearer.may_be_jwt
    assert not plain.may_be_jwt
    assert repr(bearer) == "<Credential of 8 bytes>"


@pytest.mark.parametrize("value", [b"aa", b"a.b", b"a.b.c.d", b"a+b.c.d", b"..", b"a..c"])
def test_what_has_no_tokens_form(value: bytes) -> None:
    """Three parts of URL-safe letters and nothing else may be a token."""
    assert not Credential(value, bearer=True).may_be_jwt


@given(st.lists(st.tuples(st.sampled_from([b"authorization", b"x-api-key", b"x"]), st.binary(max_size=40)), max_size=4))
def test_whatever_bytes_come(headers: list[tuple[bytes, bytes]]) -> None:
    """Any bytes are one credential, none, or unreadable; nothing that is raised repeats them."""
    found = shown = None
    try:
        found = credential_of(headers)
    except MalformedCredential as fault:
        shown = str(fault)
    assert found is None or found.token.isascii()
    if shown is not None:
        sent = [value.decode("latin-1") for name, value in headers if name != b"x" and len(value) > 12]
        assert not [value for value in sent if value in shown]


def test_a_long_one_is_not_looked_at() -> None:
    """Beyond its bound a credential is unreadable."""
    assert credential_of([(b"x-api-key", b"x" * MAX_LENGTH)])
    with pytest.raises(MalformedCredential):
        credential_of([(b"x-api-key", b"x" * (MAX_LENGTH + 1))])
