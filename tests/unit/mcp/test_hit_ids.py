"""Self-contained ids of hits: what goes in comes out, they stay short, and nothing else is taken for one."""

from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.mcp.hit_ids import MAX_ID, MAX_QUERY_BYTES, PREFIX, URI, HitReference, decode, encode

words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)


@given(words, words, words)
def test_what_goes_in_comes_out(engine: str, hit_id: str, query: str) -> None:
    """Engine, id and query of any characters, also as the URI of a resource."""
    written = encode(engine, hit_id, query, {"mode": "dense", "k": 3})
    expected = HitReference(engine, hit_id, query, {"mode": "dense"})
    assert decode(written) == decode(URI + written) == expected
    assert expected.params == {"mode": "dense", "query": query, "x-gateway": {"engines": [engine]}}
    assert written.isascii()
    assert set("/+=&? ").isdisjoint(written)


def test_ids_are_bounded() -> None:
    """Of a long query only the beginning is kept; a hit whose own id is long keeps that."""
    written = encode("docs", "a", "é" * 5000, {})
    reference = decode(written)
    assert len(written) <= MAX_ID
    assert reference is not None
    assert reference.query == "é" * (MAX_QUERY_BYTES // 2)
    assert encode("docs", "x" * MAX_ID, "q", {}) == "x" * MAX_ID


@pytest.mark.parametrize(
    "payload",
    [
        b"{}",
        b"[]",
        b'["a","b"]',
        b'["a","b",3]',
        b'["","b","c"]',
        b'["a","b","c",{"k":1}]',
        b'["a","b","c",1]',
        b"\xff",
    ],
)
def test_other_values_are_none(payload: bytes) -> None:
    """Nothing but the four members that `encode` writes; an id cannot carry other params."""
    assert decode(PREFIX + urlsafe_b64encode(payload).decode().rstrip("=")) is None


@pytest.mark.parametrize("written", ["", "a", PREFIX, PREFIX + "*", PREFIX + "A", PREFIX + "é", PREFIX + "A" * MAX_ID])
def test_other_strings_are_none(written: str) -> None:
    """Ids of engines, and what only begins like ours."""
    assert decode(written) is None
