"""Documents and the hits made of them."""

import pytest

from app.demo.demo_document import DemoDocument, Found, words_of_name

DOCUMENT = DemoDocument(
    "a.b", "a b", "Some text.", {"title": "a.b()", "uri": "https://x/a"}, {"module": "a", "kind": "class"}
)


def test_a_hit_has_what_the_protocol_asks_for() -> None:
    """Id, score, confidence, text, unit, citation and meta, and nothing else."""
    assert Found(DOCUMENT, 1.5, 0.25).hit(include_text=True) == {
        "id": "a.b",
        "score": 1.5,
        "confidence": 0.25,
        "text": "Some text.",
        "unit": "document",
        "citation": {"title": "a.b()", "uri": "https://x/a"},
        "meta": {"module": "a", "kind": "class"},
    }


def test_text_can_be_left_out() -> None:
    """`includeText: false` costs the text alone."""
    with_text, without = (Found(DOCUMENT, 1.5, 0.25).hit(include_text=wanted) for wanted in (True, False))
    assert with_text.keys() - without.keys() == {"text"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("os.path", ["os", "path"]),
        ("json.JSONDecoder", ["json", "JSONDecoder", "JSON", "Decoder"]),
        ("date_time_string", ["date", "time", "string"]),
        ("urllib.parse.parse_qsl", ["urllib", "parse", "parse", "qsl"]),
        ("SO8859", ["SO8859", "SO", "8859"]),
        ("scikit-learn", ["scikit", "learn"]),
    ],
)
def test_a_name_is_found_by_its_parts(name: str, words: list[str]) -> None:
    """Dots, underscores, hyphens and capitals part the words; the whole is kept beside them."""
    assert words_of_name(name).split() == words
