"""What foreign text may not do to a terminal."""

import json
import os
import sys

import pytest
from rich.padding import Padding

from app.cli.terminal import PIPED_WIDTH, abandoned, answers, harmless, harmless_json, one_line


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


@pytest.mark.parametrize(
    ("columns", "width"), [(None, PIPED_WIDTH), ("60", 60), ("wide", PIPED_WIDTH), ("0", PIPED_WIDTH)]
)
def test_a_pipe_is_as_wide_as_columns_says(monkeypatch: pytest.MonkeyPatch, columns: str | None, width: int) -> None:
    """COLUMNS is honoured where it is a number of columns."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert answers().width == width


def test_lines_in_a_file_end_with_their_last_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What fills a line on a screen is left out elsewhere; what indents it stays."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    answers().print(Padding("some text\n\nmore", (0, 0, 0, 3)))
    assert capsys.readouterr().out == "   some text\n\n   more\n"


def test_a_reader_that_has_left_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a word being written: the other end of the pipe is closed."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(sys, "stdout", None)
        assert not abandoned()
        os.close(reading)
        assert abandoned()
