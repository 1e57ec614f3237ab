"""What foreign text may not do to a terminal."""

import json

import pytest

from app.commands.terminal import harmless, harmless_json, one_line


@pytest.mark.parametrize(
    "evil", ["\x1b[31m", "\x9b2J", "\r", "\x07", "\x08", "\u202e", "\u2066", "\ud800", "\U000e0041"]
)
def test_control_characters_are_replaced(evil: str) -> None:
    """Escape sequences lose their first character, marks that reorder text and half characters vanish."""
    cleaned = harmless(f"a{evil}b")
    assert evil[0] not in cleaned
    assert cleaned.startswith("a�")
    assert cleaned.endswith("b")


@pytest.mark.parametrize("text", ["naïve 日本語 🙂", "می\u200cخواهم", "👩\u200d💻", "tab\tand\nline"])
def test_writing_stays_as_it_is(text: str) -> None:
    """Every script is left alone, joiners included."""
    assert harmless(text) == text


def test_one_line_is_one_line() -> None:
    """White space is folded and length is bounded."""
    assert one_line(" a\n\n b\tc ") == "a b c"
    assert one_line("x" * 600, 10) == "x" * 9 + "…"
    assert one_line(7) == "7"


def test_json_stays_the_same_json() -> None:
    """Harmful characters inside JSON become escapes and mean the same."""
    value = {"a": "\x9b\u202e\U000e0041\ud800日本語"}
    text = harmless_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == value
    assert harmless(text) == text
    assert "日本語" in text
