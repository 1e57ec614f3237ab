"""The terminal: where answers and asides go, and what foreign text may not do to it.

It decides how text is made harmless. It refuses to know what is being shown.
"""

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

PIPED_WIDTH = 160
"""Columns when nobody is looking; a pipe has no width of its own."""

# Control characters but tab and newline; marks that reorder, hide or tag text; halves of surrogate pairs.
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)


def harmless(text: str) -> str:
    """`text` without anything that a terminal would obey instead of showing; a `�` stands where it was."""
    return _HARMFUL.sub("�", text)


def one_line(value: Any, most: int = 500) -> str:
    """A foreign value as one harmless line of at most `most` characters."""
    text = " ".join(harmless(str(value)[: most * 4]).split())
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def harmless_json(text: str) -> str:
    """JSON text whose harmful characters are written as escapes, which changes nothing of what it says."""
    return _HARMFUL.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def answers() -> "Console":
    """The console for what was asked for: stdout."""
    return _console(stderr=False)


def asides() -> "Console":
    """The console for everything else: stderr."""
    return _console(stderr=True)


def _console(stderr: bool) -> "Console":
    from rich.console import Console

    console = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    return console
