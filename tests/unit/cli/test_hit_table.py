"""How hits and notes look."""

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from app.cli.hit_table import render_hits, render_notes


def _screen(**how: Any) -> Console:
    return Console(file=StringIO(), width=100, **how)


def _shown(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def _hits(*hits: Any) -> str:
    console = _screen()
    render_hits({"hits": list(hits)}, console)
    return _shown(console)


def test_a_hit_shows_rank_score_engines_title_and_snippet() -> None:
    """One line of facts, and the text below it."""
    shown = _hits(
        {
            "id": "d1",
            "score": 0.98765,
            "text": "Return a\n   future aggregating results.",
            "citation": {"title": "asyncio.gather"},
            "meta": {"engine": "docs", "engines": [{"id": "docs", "rank": 1}, {"id": "code", "rank": 3}]},
        },
        {"id": 7, "score": 1},
    )
    assert shown.splitlines() == [
        "1. 0.9877  docs, code  asyncio.gather".ljust(1),
        "   Return a future aggregating results.".ljust(100),
        "2. 1.0000  ?  7",
    ]


@pytest.mark.parametrize(
    ("engines", "names"),
    [(["a", "b"], "a, b"), ({"a": {"rank": 1}}, "a"), ([{"engine": "a"}, 7, {}], "a"), (None, "?"), ("a", "?")],
)
def test_contributors_are_read_whatever_their_form(engines: Any, names: str) -> None:
    """Contributors may be listed by name, as objects or as keys."""
    assert _hits({"id": "x", "score": 0, "meta": {"engines": engines}}).split("  ")[1] == names


@pytest.mark.parametrize("result", [{}, {"hits": []}, {"hits": None}, {"hits": [1, None]}])
def test_no_hits_are_said(result: dict[str, Any]) -> None:
    """An empty answer says so."""
    console = _screen()
    render_hits(result, console)
    assert _shown(console) == "no hits\n"


def test_content_blocks_are_a_text_too() -> None:
    """A hit without `text` shows the text in its content."""
    shown = _hits({"id": 1, "score": 1, "content": [{"type": "text", "text": "from"}, {"type": "image"}, "blocks"]})
    assert "from blocks" in shown


def test_long_texts_are_cut() -> None:
    """A snippet does not fill the screen."""
    assert len(_hits({"id": 1, "score": 1, "text": "word " * 5000})) < 600


def test_hits_are_never_obeyed() -> None:
    """Neither escape sequences nor rich's markup nor its emoji names nor its links in a hit have an effect."""
    evil = "\x1b[2J[bold]x[/bold] [link=http://evil]y[/link] :smile: [/]"
    console = _screen(force_terminal=True, color_system=None, legacy_windows=False)
    hit = {"id": evil, "score": 1, "text": evil, "citation": {"title": evil}, "meta": {"engine": evil}}
    render_hits({"hits": [hit]}, console)
    render_notes({"usage": {"notes": [evil]}}, console)
    shown = _shown(console)
    assert "\x1b[2J" not in shown
    assert shown.count("[bold]x[/bold]") == 4
    assert ":smile:" in shown
    assert "\x1b]8" not in shown


def test_malformed_hits_do_not_disturb() -> None:
    """Whatever types the members have, something is shown."""
    shown = _hits({"score": "high", "text": 7, "citation": [], "meta": 1}, {"id": None, "score": None, "content": 7})
    assert len(shown.splitlines()) == 2


def test_notes_and_failed_engines_are_told() -> None:
    """Each note and each engine left out has a line, except on purpose; one names the engines that failed."""
    console = _screen()
    engines = [
        {"id": "docs", "status": "ok", "hits": 3},
        {"id": "code", "status": "failed", "reason": "timeout"},
        {"id": "vec", "status": "failed"},
        {"id": "off", "status": "skipped", "reason": "disabled"},
        {"id": "other", "status": "skipped", "reason": "not_selected"},
        {"id": "new", "status": "skipped", "reason": "unreached", "detail": "cannot connect"},
        {"id": "plain", "status": "skipped", "reason": "filter", "detail": "filter field 'a' is not advertised"},
        {"id": "self", "status": "skipped", "reason": "loop", "detail": "it asked us"},
    ]
    render_notes(
        {
            "usage": {"notes": ["code: timeout", "self: skipped: it asked us"]},
            "_meta": {"x-gateway": {"engines": engines}},
        },
        console,
    )
    assert _shown(console).splitlines() == [
        "note: code: timeout",
        "note: self: skipped: it asked us",
        "note: new: skipped: unreached: cannot connect",
        "note: plain: skipped: filter: filter field 'a' is not advertised",
        "failed engines: code (timeout), vec (failed), new (unreached)",
    ]


@pytest.mark.parametrize("result", [{}, {"usage": {}, "_meta": {}}, {"usage": 1, "_meta": {"x-gateway": 2}}])
def test_without_notes_nothing_is_told(result: dict[str, Any]) -> None:
    """An answer without notes leaves stderr alone."""
    console = _screen()
    render_notes(result, console)
    assert _shown(console) == ""


@pytest.mark.parametrize(
    ("k", "more", "told"), [(500, {"nextCursor": "c"}, True), (500, {}, False), (1, {"nextCursor": "c"}, False)]
)
def test_a_bound_on_k_is_told(k: int, more: dict[str, str], told: bool) -> None:
    """Fewer hits than were asked for, though there are more, is the gateway's bound and not the corpus' end."""
    console = _screen()
    render_notes({"hits": [{"id": 1}], **more}, console, k)
    assert ("500 hits were requested, but this gateway returns at most 1" in _shown(console)) == told
