"""The token of a snapshot: what goes in comes out, and nothing else is taken for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.federation.snapshot_tokens import MAX_TOKEN, PREFIX, token_of, versions_in
from app.protocol.errors import InvalidParams

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(TEXTS, TEXTS, min_size=1, max_size=8))
def test_what_goes_in_comes_out(versions: dict[str, str]) -> None:
    """Any versions survive the way through a token that can stand in a URL."""
    token = token_of(versions)
    assert token is not None
    assert token.isascii()
    assert not set(token) & set("+/=?&# ")
    assert versions_in(token) == versions


@given(st.permutations([("a", "1"), ("b", "2"), ("c", "3")]))
def test_equal_versions_make_equal_tokens(pairs: list[tuple[str, str]]) -> None:
    """The order in which engines are named does not show."""
    assert token_of(dict(pairs)) == token_of({"a": "1", "b": "2", "c": "3"})


def test_there_is_a_bound() -> None:
    """Nothing to say makes no token, and too much neither; a longer one is not even looked at."""
    assert token_of({}) is None
    assert token_of({"a": "v" * MAX_TOKEN}) is None
    with pytest.raises(InvalidParams):
        versions_in(PREFIX + "A" * MAX_TOKEN)


@pytest.mark.parametrize("version", ["", "v1", "2024-01-01", "fed", "Fed1.e30", "fed2.abc"])
def test_an_engines_own_version_is_no_token(version: str) -> None:
    """What does not begin like a token is some engine's own."""
    assert versions_in(version) is None


@given(st.text(max_size=40))
def test_made_up_tokens_are_refused_or_real(body: str) -> None:
    """Whatever is made up is refused with the field, unless it is exactly what would have been given out."""
    try:
        versions = versions_in(PREFIX + body)
    except InvalidParams as error:
        field = error.data["field"]
    else:
        assert versions is not None
        assert token_of(versions) == PREFIX + body
        return
    assert field == "indexVersion"


def test_an_altered_token_is_refused_or_another() -> None:
    """No single changed character is taken for the same snapshot."""
    versions = {"docs": "v1", "code": "r2"}
    token = token_of(versions)
    assert token is not None
    for place in range(len(PREFIX), len(token)):
        altered = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        try:
            found = versions_in(altered)
        except InvalidParams:
            continue
        assert found != versions
