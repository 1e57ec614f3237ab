"""What a child process writes: stdout split into lines under a size limit, the tail of stderr, and a limit on noise."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from app.protocol import envelope
from app.protocol.errors import ParseError

HEAD_BYTES: Final = 4096
"""Kept from the start of a line that is too long, to find whose answer it is."""

TAIL_BYTES: Final = 512
"""Kept from its end, for peers that write the id last."""

STDERR_TAIL_BYTES: Final = 8192
STDERR_LINE_BYTES: Final = 1000
"""Logged of one line of stderr; the rest of the line is left out."""

STDERR_LINES_PER_SECOND: Final = 20

NOBODY: Final = 0
"""The number of a message that answers no call; our calls are numbered from 1."""

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:,"]|[^\s"{}\[\]:,]+', re.DOTALL)
_NUMBER = re.compile(rb'"?(\d{1,18})"?')
_SCALAR = rb'(?:"(?:[^"\\]|\\.)*"|[-+.\w]+)'
_ID_LAST = re.compile(rb'"id"\s*:\s*"?(\d{1,18})"?\s*(?:,\s*"[^"\\]*"\s*:\s*' + _SCALAR + rb"\s*)*\}\s*\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class OversizedLine:
    """A line above the limit, its bytes gone. `number`: the call it answers, NOBODY for a notification, else None."""

    number: int | None
    head: bytes = field(default=b"", compare=False, repr=False)
    """How it began."""

    @property
    def id(self) -> envelope.RequestId:
        """The `id` of the message it began, if that was to be seen."""
        return envelope.recover_id({"id": id_in_head(self.head)})


class LineSplitter:
    """Chunks in, whole lines out (without the newline). Splits on LF only, so U+2028 inside a string is harmless.

    A line longer than `limit` bytes comes out once, as Oversized: as soon as its beginning shows which request it
    answers, else when it ends. Holds at most `limit` bytes and one chunk.
    """

    __slots__ = ("_head", "_held", "_limit", "_reported", "_tail")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = bytearray()
        self._head: bytes | None = None
        self._tail = b""
        self._reported = False

    def feed(self, chunk: bytes) -> list[bytes | bytearray | OversizedLine]:
        """The lines that `chunk` completes."""
        *pieces, rest = chunk.split(b"\n")
        lines: list[bytes | bytearray | OversizedLine] = []
        for piece in pieces:
            if not self._held and self._head is None and len(piece) <= self._limit:
                lines.append(piece)
            else:
                self._take(piece, lines)
                self._end_line(lines)
        if rest:
            self._take(rest, lines)
        return lines

    @property
    def discarding(self) -> bool:
        """Whether a line that is too long goes on."""
        return self._head is not None

    def rest(self) -> list[bytes | bytearray | OversizedLine]:
        """At the end of the stream: the line that was never ended, if there is one."""
        lines: list[bytes | bytearray | OversizedLine] = []
        if self._held or self._head is not None:
            self._end_line(lines)
        return lines

    def _take(self, piece: bytes, lines: list[bytes | bytearray | OversizedLine]) -> None:
        if self._head is None:
            self._held += piece
            if len(self._held) > self._limit:
                self._overflow(lines)
        else:
            self._tail = (self._tail + piece[-TAIL_BYTES:])[-TAIL_BYTES:]

    def _overflow(self, lines: list[bytes | bytearray | OversizedLine]) -> None:
        self._head, self._tail = bytes(self._held[:HEAD_BYTES]), bytes(self._held[-TAIL_BYTES:])
        self._held = bytearray()
        number = number_in_head(self._head)
        self._reported = number is not None
        if self._reported:
            lines.append(OversizedLine(number, self._head))

    def _end_line(self, lines: list[bytes | bytearray | OversizedLine]) -> None:
        if self._head is None:
            lines.append(self._held)
            self._held = bytearray()
        elif not self._reported:
            lines.append(OversizedLine(number_in_tail(self._tail), self._head))
        self._head, self._tail, self._reported = None, b"", False

    def __repr__(self) -> str:
        if self._head is not None:
            return f"<LineSplitter discarding a line that began with {self._head[:60]!r}>"
        return f"<LineSplitter holding {len(self._held)} of {self._limit} bytes>"


def number_in_head(head: bytes) -> int | None:
    """The top-level `id` that a JSON object beginning with `head` shows; NOBODY if it shows a `method`; else None."""
    for key, value in _members_of(head):
        if key == b'"method"':
            return NOBODY
        if key == b'"id"' and value:
            number = _NUMBER.fullmatch(value)
            return int(number[1]) if number else NOBODY
    return None


def id_in_head(head: bytes) -> Any:
    """The top-level `id`, whatever it is, that a JSON object beginning with `head` shows; None if it shows none."""
    for key, value in _members_of(head):
        if key == b'"id"' and value:
            try:
                return envelope.loads(value)
            except ParseError:
                return None
    return None


def _members_of(head: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(key, first token of its value) of the object that begins so; the value is empty where `head` ends before it."""
    depth = 0
    previous = b""
    tokens = _TOKEN.findall(head)
    for place, token in enumerate(tokens, 1):
        if token == b'"':  # a string that is cut off: what follows lies inside it
            return
        if depth == 1 and token == b":":
            value = tokens[place] if place < len(tokens) else b""
            yield previous, b"" if value == b'"' else value
        depth += (token in (b"{", b"[")) - (token in (b"}", b"]"))
        previous = token


def number_in_tail(tail: bytes) -> int | None:
    """The top-level `id` of a JSON object ending with `tail`, if nothing but scalars follow it."""
    found = _ID_LAST.search(tail)
    return int(found[1]) if found else None


class StderrTail:
    """The last 8 KB of a child's stderr, and its lines handed to `log`, at most 20 a second.

    What is dropped is said in one line: `flush` says it, and so does the first line of a later second. `clock` gives
    seconds. A line that is too long is logged by its beginning.
    """

    __slots__ = ("_clock", "_kept", "_line", "_log", "_logged", "_second", "dropped")

    def __init__(self, log: Callable[[str], None] | None, clock: Callable[[], float]) -> None:
        self._kept = bytearray()
        self._line = bytearray()
        self._log = log
        self._clock = clock
        self._second = 0.0
        self._logged = 0
        self.dropped = 0
        """Lines left out of the log since it was last said."""

    @property
    def text(self) -> str:
        """The last 8 KB as text; foreign, so it must be clipped before it goes anywhere."""
        return self._kept[-STDERR_TAIL_BYTES:].decode("utf-8", "replace")

    @property
    def last_line(self) -> str:
        """The last line that is not blank, or nothing."""
        lines = self.text.split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def feed(self, chunk: bytes) -> None:
        """Keep the end of `chunk`, log its lines as far as the rate allows."""
        self._kept += chunk[-STDERR_TAIL_BYTES:]
        if len(self._kept) > 2 * STDERR_TAIL_BYTES:
            del self._kept[:-STDERR_TAIL_BYTES]
        if self._log is not None:
            self._log_lines(chunk)

    def flush(self) -> None:
        """Log the line that was never ended, and how many were dropped."""
        if self._line.strip():
            self._emit(bytes(self._line))
        self._line.clear()
        self.report_dropped()

    def _log_lines(self, chunk: bytes) -> None:
        self._turn_second()
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            if self._logged >= STDERR_LINES_PER_SECOND:  # a flood is counted, not looked at
                start = chunk.rfind(b"\n") + 1
                self.dropped += chunk.count(b"\n", end)
                self._line.clear()
                break
            self._hold(chunk[start:end])
            if self._line.strip():
                self._emit(bytes(self._line))
            self._line.clear()
            start = end + 1
        self._hold(chunk[start:])

    def _hold(self, piece: bytes) -> None:
        self._line += piece[: max(0, STDERR_LINE_BYTES - len(self._line))]

    def _turn_second(self) -> None:
        now = self._clock()
        if now - self._second >= 1.0:
            self.report_dropped()
            self._second, self._logged = now, 0

    def _emit(self, line: bytes) -> None:
        self._logged += 1
        if self._log is not None:
            text = line.decode("utf-8", "replace").strip()
            self._log("".join(c if c.isprintable() else " " for c in text))

    def report_dropped(self) -> None:
        """Log how many lines were dropped since this was last said."""
        if self.dropped and self._log is not None:
            self._log(f"[{self.dropped} lines dropped]")
        self.dropped = 0

    def __repr__(self) -> str:
        return f"<StderrTail {len(self.text)} characters kept, {self.dropped} lines dropped, last {self.last_line!r}>"


BURST_BYTES: Final = 1_048_576
"""Read in one second without a pause."""

PAUSE_SECONDS: Final = 0.05
"""Pause after each further read in the same second; one read is about 64 KiB."""

MOST_BYTES: Final = 67_108_864
"""Without any answer in between; a process that writes more is killed. Reading that much takes about a minute."""

LINE_COST: Final = 100
"""Bytes added for each line, because the number of lines costs time."""


class OutputLimit:
    """Counts the bytes of one stream that answer nothing, and says when to pause reading."""

    __slots__ = ("_fresh", "_in_second", "_second", "total")

    def __init__(self) -> None:
        self.total = 0
        """Bytes since the last `reset`."""
        self._fresh = 0
        self._in_second = 0
        self._second = 0.0

    @property
    def exceeded(self) -> bool:
        """Whether the process must be killed."""
        return self.total > MOST_BYTES

    def add(self, size: int, lines: int = 0) -> None:
        """Add bytes, and the number of lines that they contain."""
        self.total += size
        self._fresh += size + lines * LINE_COST

    def reset(self) -> None:
        """Start again from 0, because an answer has arrived."""
        self.total = 0

    def pause(self, now: float) -> float:
        """Seconds to pause reading after what has arrived; 0 if it is little."""
        if now >= self._second + 1.0:
            self._second, self._in_second = now, 0
        self._in_second += self._fresh
        fresh, self._fresh = self._fresh, 0
        return PAUSE_SECONDS if fresh and self._in_second > BURST_BYTES else 0.0

    def __repr__(self) -> str:
        return f"<OutputLimit {self.total} bytes, {self._in_second} in the last second>"
