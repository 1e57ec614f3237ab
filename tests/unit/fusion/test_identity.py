"""Which hits are one document."""

from typing import Any

import pytest

from app.fusion.identity import body_text, identify, normalized_uri, public_id


def _cited(uri: Any, key: Any = 1) -> dict[str, Any]:
    return {"id": key, "score": 1, "citation": {"uri": uri}}


def test_ids_are_stringified() -> None:
    """JSON numbers and strings become the string a person would write."""
    hits = [{"id": value} for value in (1, "1", 1.0, 2.5, 10**18, "é")]
    assert identify(hits, "id", None) == ["1", "1", "1.0", "2.5", "1000000000000000000", "é"]
    assert identify(hits[:3], "id", "docs") == ["docs:1", "docs:1", "docs:1.0"]


def test_the_public_id_keeps_its_json_type() -> None:
    """Only a namespace makes a string of a number."""
    assert public_id({"id": 1}, None) == 1
    assert public_id({"id": 1}, "docs") == "docs:1"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://A/x/", "https://a/x#f"),
        ("https://a:443/x", "https://a/x"),
        ("http://a:80/x", "http://a/x"),
        ("https://a/x?utm_source=m&b=1&UTM_Campaign=z", "https://a/x?b=1"),
        ("https://a/x?utm_source=m", "https://a/x"),
        ("https://a/", "https://a"),
        (" https://a/x ", "https://a/x"),
        ("HTTPS://[2001:DB8::1]:443/x", "https://[2001:db8::1]/x"),
        ("https://u@A/x", "https://u@a/x"),
        ("file:///a/b#l7", "file:///a/b"),
    ],
)
def test_uris_of_one_document(one: str, other: str) -> None:
    """Host case, default port, trailing slash, fragment, utm_* and http against https change nothing."""
    assert normalized_uri(one) == normalized_uri(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://a/x", "https://a/X"),
        ("https://a:8443/x", "https://a/x"),
        ("https://a:80/x", "https://a/x"),
        ("https://a/x?b=1", "https://a/x?b=2"),
        ("https://a/x?b=1&c=2", "https://a/x?c=2&b=1"),
        ("https://a/x", "https://b/x"),
        ("ftp://a/x", "https://a/x"),
        ("https://u@a/x", "https://a/x"),
    ],
)
def test_uris_of_different_documents(one: str, other: str) -> None:
    """Path case, other ports, parameters and their order, hosts and schemes tell documents apart."""
    assert normalized_uri(one) != normalized_uri(other)


@pytest.mark.parametrize("odd", ["http://[::1", "https://a:port/x", "http://a:99999/"])
def test_what_is_no_uri_stays_as_it_is(odd: str) -> None:
    """A malformed uri is compared literally."""
    assert normalized_uri(odd) == odd


def test_uri_identity_falls_back_to_the_id() -> None:
    """Without a usable `citation.uri` the id decides, and never meets a uri."""
    hits = [_cited("https://a/x"), _cited(""), _cited(7), {"id": 2}, {"id": 3, "citation": "no object"}]
    assert identify(hits, "uri", "ns") == ["uri:https://a/x", "id:ns:1", "id:ns:1", "id:ns:2", "id:ns:3"]


def test_content_identity_is_that_of_the_normalised_text() -> None:
    """Case, white space and compatible characters change nothing; another text is another document."""
    texts = ("Straße  ﬁx", "STRASSE\n fix ", "strasse fix!")
    one, same, other = identify([{"id": 1, "text": text} for text in texts], "content", None)
    assert one == same != other
    assert one.startswith("content:")


def test_content_identity_falls_back_to_the_id() -> None:
    """A hit without text is identified by its id."""
    assert identify([{"id": 1, "text": " "}, {"id": 2}, {"id": 3, "text": 4}], "content", None) == [
        "id:1",
        "id:2",
        "id:3",
    ]


def test_the_text_of_content_blocks_counts() -> None:
    """Where there is no `text`, text blocks and bare strings stand for it; other blocks say nothing."""
    blocks = ["a", {"type": "text", "text": "b"}, {"type": "image", "data": "…"}, None, 7]
    assert body_text({"content": blocks}) == "a\nb"
    assert body_text({"text": "t", "content": blocks}) == "t"
    assert body_text({"content": "a"}) == ""
    assert identify([{"id": 1, "content": ["x"]}], "content", None) == identify(
        [{"id": 2, "text": "X"}], "content", None
    )


def test_half_a_surrogate_is_no_obstacle() -> None:
    """Text that cannot be encoded is hashed all the same."""
    assert identify([{"id": 1, "text": "\ud800"}], "content", None)[0].startswith("content:")
