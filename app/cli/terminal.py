"""Output to the terminal: consoles for stdout and stderr, and escaping of untrusted text."""

import os
import re
import select
import sys
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from rich.console import Console

PIPED_WIDTH = 100
"""Columns of a table in a pipe, which has no width of its own, if COLUMNS is not set."""

# Control characters but tab and newline; marks that reorder, hide or tag text; halves of surrogate pairs.
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)

_TRAILING = re.compile(r" +$", re.MULTILINE)


def harmless(text: str) -> str:
    """`text` with `�` in place of characters that a terminal interprets or that hide or reorder text."""
    return _HARMFUL.sub("�", text)


def one_line(value: Any, most: int = 500) -> str:
    """An untrusted value as one harmless line of at most `most` characters."""
    text = " ".join(harmless(str(value)[: most * 4]).split())
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def harmless_json(text: str) -> str:
    """JSON text with harmful characters written as escapes, which does not change its value."""
    return _HARMFUL.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def answers() -> "Console":
    """The console for results: stdout."""
    return _console(stderr=False)


def asides() -> "Console":
    """The console for notes and progress: stderr."""
    return _console(stderr=True)


def _console(stderr: bool) -> "Console":
    from rich.console import Console

    console = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.file = cast(IO[str], Trimmed(console.file))
        console.width = _columns() or PIPED_WIDTH
    return console


def _columns() -> int:
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isascii() and text.isdigit() else 0


class Trimmed:
    """A stream without blanks at the ends of lines; everything else is passed on."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write whole lines."""
        return self._stream.write(_TRAILING.sub("", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __repr__(self) -> str:
        return f"Trimmed({self._stream!r})"


def abandoned() -> bool:
    """Whether the reader of stdout or stderr is gone: a closed pipe or terminal."""
    if not hasattr(select, "poll"):
        return False
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        try:
            poll.register(stream.fileno(), 0)
        except (AttributeError, OSError, ValueError):  # closed at the start, or not a file
            continue
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
