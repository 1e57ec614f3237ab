"""Content blocks: what a query may be made of, and which modalities it has."""

from typing import Any

import pytest

from app.protocol.content import MAX_BLOCKS, read_block, read_contents, read_query
from app.protocol.errors import InvalidParams

IMAGE = {"type": "image", "mimeType": "image/png", "data": "aGk="}
TEXT = {"type": "text", "text": "attention"}


@pytest.mark.parametrize(
    ("query", "modalities"),
    [
        ("attention", {"text"}),
        ("注意 🙂 \x00", {"text"}),
        (TEXT, {"text"}),
        ({**TEXT, "data": None, "uri": None, "x-lang": "en"}, {"text"}),
        (IMAGE, {"image"}),
        ({"type": "image", "mimeType": "image/png", "uri": "https://example.org/3.png"}, {"image"}),
        ({"type": "audio", "mimeType": "audio/wav", "data": "aGk=", "text": "a caption"}, {"audio"}),
        ({"type": "blob", "mimeType": "application/pdf", "uri": "file:///a.pdf"}, {"multimodal"}),
        (["attention", TEXT, IMAGE], {"text", "image"}),
        ([TEXT] * MAX_BLOCKS, {"text"}),
    ],
)
def test_query_has_the_modalities_of_its_blocks(query: Any, modalities: set[str]) -> None:
    """A string is text, and each block adds the modality of its type."""
    assert read_query(query) == modalities


@pytest.mark.parametrize(
    ("query", "field"),
    [
        (None, "query"),
        ("", "query"),
        (" \n\t", "query"),
        (7, "query"),
        (True, "query"),
        ([], "query"),
        (["x"] * (MAX_BLOCKS + 1), "query"),
        (["x", ""], "query[1]"),
        (["x", None], "query[1]"),
        ([["x"]], "query[0]"),
        ({}, "query.type"),
        ({"text": "x"}, "query.type"),
        ({"type": "video", "mimeType": "video/mp4", "data": "aGk="}, "query.type"),
        ({"type": "Text", "text": "x"}, "query.type"),
        ({"type": ["text"], "text": "x"}, "query.type"),
        ({"type": "text"}, "query.text"),
        ({"type": "text", "text": ""}, "query.text"),
        ({"type": "text", "text": "  "}, "query.text"),
        ({"type": "text", "text": 1}, "query.text"),
        ({"type": "text", "data": "aGk="}, "query.text"),
        ({"type": "image", "data": "aGk="}, "query.mimeType"),
        ({"type": "image", "mimeType": "", "data": "aGk="}, "query.mimeType"),
        ({"type": "image", "mimeType": 1, "data": "aGk="}, "query.mimeType"),
        ({"type": "image", "mimeType": "image/png"}, "query.data"),
        ({"type": "image", "mimeType": "image/png", "data": 1}, "query.data"),
        ({"type": "image", "mimeType": "image/png", "uri": ""}, "query.uri"),
        ({**IMAGE, "uri": "https://example.org/3.png"}, "query.uri"),
        ([TEXT, {**IMAGE, "mimeType": None}], "query[1].mimeType"),
    ],
)
def test_malformed_query_names_its_place(query: Any, field: str) -> None:
    """A query that is no string and no well-formed block is -32602 with the path of the fault."""
    with pytest.raises(InvalidParams) as caught:
        read_query(query)
    assert caught.value.data == {"field": field}
    assert f"'{field}'" in caught.value.message


def test_missing_query_says_what_is_required() -> None:
    """Without a query the message says that one is required and of which kinds it may be."""
    with pytest.raises(InvalidParams, match="'query' is required: a non-empty string, a content block, or an array"):
        read_query(None)


def test_contents_are_strings_and_blocks() -> None:
    """Inputs and passages may be empty strings, and no passages at all; the modalities are those of all of them."""
    assert read_contents([], "inputs") == frozenset()
    assert read_contents(["", "x"], "inputs") == {"text"}
    assert read_contents([IMAGE, TEXT], "inputs") == {"image", "text"}
    assert read_contents([IMAGE, ""], "inputs") == {"image", "text"}
    assert read_contents([IMAGE], "inputs") == {"image"}
    for value, field in (("x", "inputs"), ({"0": "x"}, "inputs"), (["x", 7], "inputs[1]"), ([{}], "inputs[0].type")):
        with pytest.raises(InvalidParams) as caught:
            read_contents(value, "inputs")
        assert caught.value.data == {"field": field}


def test_block_is_read_anywhere() -> None:
    """A block is read at any path, for the methods whose inputs are blocks too."""
    assert read_block("x", "inputs[3]") == "text"
    with pytest.raises(InvalidParams, match=r"'inputs\[3\]\.mimeType' is required in a block of type audio"):
        read_block({"type": "audio", "data": "aGk="}, "inputs[3]")
