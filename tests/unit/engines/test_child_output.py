"""Lines cut from chunks under a bound, the owner of a line that is too long, and what is kept and logged of stderr."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engines.child_output import NOBODY, LineSplitter, OversizedLine, StderrTail, number_in_head, number_in_tail
from tests.support.stdio_engine import StillClock


def split(splitter: LineSplitter, *chunks: bytes) -> list[bytes | OversizedLine]:
    found = [line for chunk in chunks for line in splitter.feed(chunk)]
    return [line if isinstance(line, OversizedLine) else bytes(line) for line in found]


@given(st.binary(max_size=200), st.lists(st.integers(0, 200)))
def test_chunk_boundaries_do_not_matter(stream: bytes, cuts: list[int]) -> None:
    """However a stream is cut into chunks, the same lines come out."""
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    chunks = [stream[a:b] for a, b in pairwise(places)]
    splitter = LineSplitter(1000)
    *lines, rest = stream.split(b"\n")
    assert split(splitter, *chunks) == lines
    assert [bytes(line) for line in splitter.rest() if not isinstance(line, OversizedLine)] == ([rest] if rest else [])


@given(st.lists(st.integers(0, 60), max_size=12), st.integers(1, 30))
def test_a_line_above_the_limit_is_reported_once_and_its_neighbours_survive(lengths: list[int], step: int) -> None:
    """Each line over the limit comes out as one Oversized; the others come out whole, in order."""
    lines = [b"x" * length for length in lengths]
    stream = b"".join(line + b"\n" for line in lines)
    chunks = [stream[i : i + step] for i in range(0, len(stream), step)]
    expected = [line if len(line) <= 20 else OversizedLine(None) for line in lines]
    assert split(LineSplitter(20), *chunks) == expected


def test_only_line_feeds_separate() -> None:
    """Line separators of Unicode and lone carriage returns inside a line do not split it."""
    text = "a\u2028b\u2029c\u0085d\re".encode()
    assert split(LineSplitter(100), text + b"\n") == [text]


def test_an_oversized_line_is_reported_before_it_ends_when_its_head_tells() -> None:
    """With the id first, the call can fail long before the line is over."""
    splitter = LineSplitter(100)
    assert split(splitter, b'{"jsonrpc":"2.0","id":7,"result":{"text":"' + b"x" * 100) == [OversizedLine(7)]
    assert split(splitter, b"x" * 1000, b'"}}\n', b"next\n") == [b"next"]


def test_an_oversized_line_is_found_by_its_tail() -> None:
    """With the id last, the line is reported when it ends."""
    splitter = LineSplitter(100)
    assert split(splitter, b'{"result":{"text":"', b"x" * 100, b"x" * 1000) == []
    assert split(splitter, b'"},"id"', b':"8"}\r', b"\n") == [OversizedLine(8)]


def test_discarding_keeps_no_memory() -> None:
    """While the rest of a line is discarded, only its head and tail are held."""
    splitter = LineSplitter(1000)
    for _ in range(100):
        splitter.feed(b"x" * 10_000)
    held = sum(len(getattr(splitter, slot) or b"") for slot in ("_head", "_tail", "_held"))
    assert held < 5000
    assert "discarding" in repr(splitter)


def test_an_unended_line_is_given_at_the_end_of_the_stream() -> None:
    """The last line needs no newline."""
    splitter = LineSplitter(100)
    assert split(splitter, b"one\ntwo") == [b"one"]
    assert repr(splitter) == "<LineSplitter holding 3 of 100 bytes>"
    assert splitter.rest() == [b"two"]
    assert splitter.rest() == []


@pytest.mark.parametrize(
    ("head", "number"),
    [
        (b'{"jsonrpc": "2.0", "id": 7, "result": {', 7),
        (b'\xef\xbb\xbf {"id":"12","result":{"id":3', 12),
        (b'{"result":{"hits":[{"id":9}]},"id":4,', 4),
        (b'{"result":{"hits":[{"id":9', None),
        (b'{"result":"cut off, \\"id\\":5, {', None),
        (b'{"text":"\\"id\\":5","id":6}', 6),
        (b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"id":7', NOBODY),
        (b'{"id":"abc","result":', NOBODY),
        (b'{"id":null,"result":', NOBODY),
        (b"plain text about id : 7", None),
        (b"", None),
    ],
)
def test_the_owner_by_the_head(head: bytes, number: int | None) -> None:
    """Only a top-level id counts, whatever hits and strings contain."""
    assert number_in_head(head) == number


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{', 7),
        (b'{"method":"ping","id":"a\\u0062","params":{', "ab"),
        (b'{"id":1.5,"params":{', 1.5),
        (b'{"params":{"id":3},"id":"x",', "x"),
        (b'{"params":{"id":3', None),
        (b'{"id":{"id":3},"x":"', None),
        (b'{"id":"cut', None),
        (b'{"id":', None),
        (b'[{"id":7,', None),
        (b'{"id":true,"x', None),
        (b"", None),
    ],
)
def test_the_id_by_the_head(head: bytes, found: object) -> None:
    """The id of a message that is too long is what its head shows at the top, as it is, or nothing."""
    assert OversizedLine(None, head).id == found


@pytest.mark.parametrize(
    ("tail", "number"),
    [
        (b'x"}]},"id":7}', 7),
        (b'x"}]},"id": "7" , "jsonrpc" : "2.0"} \r', 7),
        (b'x","id":9}]}}', None),
        (b'\\"id\\":5"}', None),
        (b'"id":5,"result":{"a":1}}', None),
    ],
)
def test_the_owner_by_the_tail(tail: bytes, number: int | None) -> None:
    """An id counts if only scalars stand between it and the closing brace of the message."""
    assert number_in_tail(tail) == number


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner, max_size=3)))
def test_the_owner_is_never_mistaken(content: object) -> None:
    """Whatever the result holds, the id found is the message's own, or none."""
    for id_first in (True, False):
        result = {"result": {"id": 99, "inner": content}}
        message = {"id": 7, **result} if id_first else {**result, "id": 7}
        line = json.dumps(message).encode()
        assert number_in_head(line) == 7
        assert number_in_head(line[: len(line) // 2]) in (7, None)
        assert number_in_tail(line) in (7, None)
        assert number_in_tail(line[len(line) // 2 :]) in (7, None)


def test_stderr_keeps_its_end() -> None:
    """The last 8 KB are kept, also of a stream without newlines."""
    stderr = StderrTail(None, StillClock())
    for _ in range(64):
        stderr.feed(b"x" * 4096)
    stderr.feed("dernière\n\n".encode())
    assert len(stderr.text.encode()) == 8192
    assert stderr.last_line.endswith("xdernière")
    assert "8" in repr(stderr)


def test_stderr_lines_are_logged_whole_whatever_the_chunks() -> None:
    """Lines are put together from chunks, blank ones left out, control characters replaced."""
    logged: list[str] = []
    stderr = StderrTail(logged.append, StillClock())
    for chunk in (b"load", b"ing\n\n  \nred \x1b[31m", b"alert\r\nunfin", b"ished"):
        stderr.feed(chunk)
    assert logged == ["loading", "red  [31malert"]
    stderr.flush()
    assert logged[2:] == ["unfinished"]


def test_stderr_log_is_rate_limited_and_says_so() -> None:
    """Twenty lines a second, then one line tells how many were dropped."""
    logged: list[str] = []
    clock = StillClock()
    stderr = StderrTail(logged.append, clock)
    stderr.feed(b"".join(b"line %d\n" % i for i in range(500)) + b"half a line")
    assert logged == [f"line {i}" for i in range(20)]
    assert stderr.dropped == 480
    clock.now += 1.0
    stderr.feed(b" and its end\n")
    assert logged[20:] == ["[480 lines dropped]", "half a line and its end"]
    stderr.report_dropped()
    assert len(logged) == 22


def test_a_long_stderr_line_is_logged_by_its_beginning() -> None:
    """A line of 256 KB costs the log a thousand characters."""
    logged: list[str] = []
    stderr = StderrTail(logged.append, StillClock())
    for _ in range(64):
        stderr.feed(b"y" * 4096)
    stderr.feed(b"\nnext\n")
    assert logged == ["y" * 1000, "next"]
