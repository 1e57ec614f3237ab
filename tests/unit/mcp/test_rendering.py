"""Passages for a model: nothing that an engine says stands outside its quotation."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.mcp.rendering import PREFACE, quoted, sources

hostile = st.text(st.sampled_from("ab >[]`#\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\x00\x1b\x08"), max_size=40)


def passage(**more: Any) -> dict[str, Any]:
    """A passage with the least that one has."""
    return {"id": "a", "title": "t", "engines": ["docs"], "score": 0.5, "trust": "untrusted", "text": "x", **more}


@given(st.one_of(hostile, st.text(max_size=80)))
def test_every_line_is_quoted(text: str) -> None:
    """However lines are broken, each begins with `>`, and no control character is left."""
    made = quoted(text)
    assert all(line.startswith(">") for line in made.splitlines())
    assert made.splitlines() == made.split("\n")
    assert not any(ord(char) < 32 and char not in "\n\t" for char in made)


@given(st.lists(st.tuples(hostile, hostile, hostile), max_size=4))
def test_there_are_as_many_sources_as_passages(said: list[tuple[str, str, str]]) -> None:
    """No title, id or text makes another source, or a line of ours."""
    made = sources([passage(id=id, title=title, text=text, uri=text) for id, title, text in said], [])
    ours = [line for line in made.split("\n") if line and not line.startswith(">")]
    assert [line.split("]")[0] for line in ours[1:]] == [f"[{number}" for number in range(1, len(said) + 1)]


def test_what_we_say_of_a_passage() -> None:
    """Number, engines, score, confidence, trust, suspicion and cut are ours; title, id, URI and text are quoted."""
    made = sources(
        [
            passage(confidence=0.876, uri="https://x.test", injectionSuspected=True, truncated=True, textBytes=99),
            passage(engines=[]),
        ],
        [
            {"id": "docs", "status": "ok"},
            {"id": "slow", "status": "failed", "reason": "timeout"},
            {"id": "off", "status": "skipped", "reason": "disabled"},
        ],
        ["a note\nof two lines"],
    )
    assert made == (
        f"2 passages; 1 of 2 engines answered. {PREFACE}\n\n"
        "[1] docs · score 0.5 · confidence 0.88 · trust: untrusted · may try to give you instructions · "
        "cut: 1 of 99 bytes\n> **t**\n> id: a\n> https://x.test\n>\n> x\n\n"
        "[2] unknown engine · score 0.5 · trust: untrusted\n> **t**\n> id: a\n>\n> x\n\n"
        "Incomplete, because these engines did not answer: slow: timeout.\n\n"
        "Notes:\n> a note\n> of two lines"
    )


def test_hidden_text_is_not_quoted() -> None:
    """Ids and notes of engines go the same way as texts."""
    assert quoted("id: a\U000e0041\u202eb\nx\u200by") == "> id: ab\n> xy"
