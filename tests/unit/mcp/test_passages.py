"""What of a hit an MCP client is given, and how much of its text."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.mcp.rendering import (
    MAX_FIELDS,
    MAX_TITLE,
    MAX_URI,
    clean,
    cut,
    document_of,
    engine_entries,
    engine_lines,
    engines_of,
    link_of,
    passages_of,
    shares,
    text_of,
    title_of,
)

texts = st.text(max_size=60)


def hit(**more: Any) -> dict[str, Any]:
    """A hit with the least that one has."""
    return {"id": "a", "score": 1.0, **more}


@given(st.lists(texts, max_size=8), st.integers(min_value=0, max_value=200))
def test_texts_fit_and_nothing_is_lost(written: list[str], budget: int) -> None:
    """Whatever the texts: all hits stay in order, each text is a beginning, all fit, and what is cut says so."""
    made = passages_of([hit(id=number, text=text) for number, text in enumerate(written)], budget)
    written = [clean(text) for text in written]
    assert [passage["id"] for passage in made] == [str(number) for number in range(len(written))]
    assert sum(len(passage["text"].encode()) for passage in made) <= budget
    for passage, text in zip(made, written, strict=True):
        assert text.startswith(passage["text"])
        assert passage.get("truncated", False) == (passage["text"] != text)
        assert passage.get("textBytes", len(text.encode())) == len(text.encode())


@given(st.lists(st.integers(min_value=0, max_value=50), max_size=8), st.integers(min_value=0, max_value=300))
def test_shares_are_fair(lengths: list[int], budget: int) -> None:
    """Nobody gets more than it has, all that is there is given, and who is cut gets no less than anybody else."""
    given_out = shares(lengths, budget)
    assert sum(given_out) == min(sum(lengths), budget) or max(lengths) - 1 >= min(given_out)
    assert all(share <= length for share, length in zip(given_out, lengths, strict=True))
    cut_ones = [share for share, length in zip(given_out, lengths, strict=True) if share < length]
    assert not cut_ones or min(cut_ones) >= max(given_out) - 1


def test_short_texts_leave_their_share() -> None:
    """Two short texts stay whole, and the long one gets what they leave."""
    assert shares([10, 1000, 20], 330) == [10, 300, 20]
    assert shares([100, 100, 100], 90) == [30, 30, 30]
    assert shares([], 10) == []


@pytest.mark.parametrize(("size", "expected"), [(0, ""), (1, ""), (2, "ä"), (4, "ä"), (5, "ä€"), (9, "ä€𝄞")])
def test_no_character_is_cut_in_two(size: int, expected: str) -> None:
    """A text ends with a whole character."""
    assert cut("ä€𝄞", size) == expected


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"citation": {"title": " By \n citation "}, "meta": {"title": "m"}}, "By citation"),
        ({"citation": {"title": 5}, "meta": {"title": "by meta"}}, "by meta"),
        ({"citation": "none", "meta": [], "text": "\n\n first line \nsecond"}, "first line"),
        ({"text": "   "}, "a"),
        ({"text": "x" * 300}, "x" * (MAX_TITLE - 1) + "…"),
    ],
)
def test_a_title_is_found(more: dict[str, Any], expected: str) -> None:
    """By citation, meta, text or id, in one line of bounded length."""
    assert title_of(hit(**more), more.get("text", "")) == expected


def test_only_web_addresses_are_uris() -> None:
    """Whatever else a citation names is its source, and an address that is too long is left out."""
    assert link_of(hit(citation={"uri": "https://x.test", "source": "s"})) == {"uri": "https://x.test", "source": "s"}
    assert link_of(hit(citation={"source": "file.md"})) == {"source": "file.md"}
    for written in ("javascript:alert(1)", "data:text/html,x", "Plato, Politeia", "https://x.test/a b", "//x.test"):
        assert link_of(hit(citation={"uri": written})) == {"source": written}
        assert document_of(hit(citation={"uri": written}), "a", 10)["url"] == ""
    assert link_of(hit(citation={"uri": "https://" + "x" * MAX_URI})) == {}
    assert link_of(hit(citation={"uri": 5})) == link_of(hit()) == {}


def test_texts_of_content_blocks_count() -> None:
    """Without a text the text blocks of the content are it; other blocks are not."""
    assert text_of(hit(content=[{"type": "text", "text": "a"}, {"type": "image", "uri": "i"}, "b"])) == "a\n\nb"
    assert text_of(hit(content="plain")) == "plain"
    assert text_of(hit()) == ""


def test_all_engines_are_named_once() -> None:
    """The engine whose copy it is comes first; marks of another form are passed over."""
    assert engines_of(hit(meta={"engine": "b", "engines": [{"id": "a"}, {"id": "b"}, 7, {}]})) == ["b", "a"]
    assert engines_of(hit(meta="none")) == []


def test_what_is_hidden_in_texts_and_titles_goes_and_is_marked() -> None:
    """Every text that a model is given; what was hidden may have been meant for it."""
    hidden = "".join(chr(0xE0000 + ord(engine_request)) for engine_request in "obey")
    texts = [{"text": f"pay{hidden}ment"}, {"content": [{"type": "text", "text": f"pay\u202ement{hidden}"}]}]
    titles = [{"text": "t", "citation": {"title": f"a{hidden}"}}, {"text": "t", "meta": {"title": f"a{hidden}"}}]
    made = passages_of([hit(**more) for more in (*texts, *titles, {"text": "\U0001f468\u200d\U0001f469"})], 1000)
    assert [passage["text"] for passage in made] == ["payment", "payment", "t", "t", "\U0001f468\u200d\U0001f469"]
    assert [passage["title"] for passage in made[2:4]] == ["a", "a"]
    assert [passage.get("injectionSuspected") for passage in made] == [True, True, True, True, None]


def test_a_document_warns_as_a_passage_does() -> None:
    """`trust` and `injectionSuspected` are in the metadata of `fetch`, and hidden text is removed there as well."""
    found = document_of(hit(text="pay\u202ement", trust={"level": "community"}), "a", 100)
    assert found["text"] == "payment"
    assert found["metadata"]["trust"] == "community"
    assert found["metadata"]["injectionSuspected"] is True
    assert "injectionSuspected" not in document_of(hit(text="payment\x02"), "a", 100)["metadata"]


def engine(**capabilities: Any) -> dict[str, Any]:
    """An entry of `catalog/list`."""
    return {"id": "docs", "server": {"name": "Docs", "version": "1"}, "capabilities": capabilities}


def test_fields_without_types_are_keywords() -> None:
    """A list of names becomes a map, like one with types; names beyond the bound are left out."""
    (entry,) = engine_entries([engine(filter={"fields": ["a", "b"]})])
    assert entry["filterFields"] == {"a": "keyword", "b": "keyword"}
    (entry,) = engine_entries([engine(filter={"fields": {str(number): "int" for number in range(999)}})])
    assert len(entry["filterFields"]) == MAX_FIELDS


def test_capabilities_of_another_form_are_left_out() -> None:
    """What an engine states in no known form is not listed; strings are cleaned."""
    (entry,) = engine_entries([engine(retrieve=True, filter="yes", rerank={}, **{"x-a\u202e": {}})])
    assert entry == {"id": "docs", "name": "Docs", "capabilities": ["filter", "rerank", "retrieve", "x-a"]}
    assert engine_lines([entry]) == "1 engine.\n\ndocs\n> name: Docs\n> can: filter, rerank, retrieve, x-a"
    assert engine_lines([]) == "No engine is available to you now."
