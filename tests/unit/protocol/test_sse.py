"""Who asks for events, and what a frame is."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol import envelope, sse


@pytest.mark.parametrize(
    "header",
    [
        b"text/event-stream",
        b"Text/Event-Stream",
        b" text/event-stream ",
        b"application/json, text/event-stream",
        b"text/event-stream,application/json",
        b"application/json;q=0.9, text/event-stream;q=0.1",
        b"text/event-stream; charset=utf-8",
        b"text/event-stream;q=1",
        b"text/event-stream;q=1.000",
        b"text/event-stream ; Q=0.001",
        b"text/event-stream;q=.5",
        b'text/event-stream;profile="a,b;q=0"',
        b"application/json;q=0, text/event-stream",
        b"text/event-stream;q=0, text/event-stream;q=1",
        b",,text/event-stream,,",
    ],
)
def test_who_asks_for_events(header: bytes) -> None:
    """The media type is named, in any case, anywhere among others, with a weight above 0 or none."""
    assert sse.accepted(header)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"*/*",
        b"text/*",
        b"application/json",
        b"text/event-stream;q=0",
        b"text/event-stream; Q=0.000",
        b"text/event-stream;q=0.",
        b"text/event-stream;q=",
        b"text/event-stream;q=2",
        b"text/event-stream;q=-1",
        b"text/event-stream;q=nan",
        b"text/event-streams",
        b"xtext/event-stream",
        b"text/event-stream+json",
        b'application/json;note="text/event-stream"',
        b'application/json;note=", text/event-stream"',
        b'application/json;note="\\", text/event-stream"',
        b'application/json;note="never closed, text/event-stream',
        b"\xff\xfe",
    ],
)
def test_who_does_not(header: bytes) -> None:
    """A range that would take anything, another type, a weight of 0 or none at all: JSON will do."""
    assert not sse.accepted(header)


@pytest.mark.parametrize("unit", [b'"', b'\\"', b'"\\', b",", b";", b'text/event-stream;"', b'"\\",'])
def test_hostile_header_takes_no_time(unit: bytes) -> None:
    """The longest header that a server lets through is read in a moment, whatever it is made of."""
    header = b'text/event-stream;q=0;x="' + unit * (65_536 // len(unit))
    started = time.process_time()
    sse.accepted(header)
    assert time.process_time() - started < 1.0


@given(st.binary(max_size=200))
def test_any_header_is_read(header: bytes) -> None:
    """No header breaks the endpoint."""
    assert sse.accepted(header) in (True, False)


anything = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(anything)
def test_frame_is_one_line_and_a_blank_one(said: object) -> None:
    """Whatever a message says, line breaks of every kind included, its frame is one `data:` line and a blank line."""
    framed = sse.frame(envelope.dumps({"said": said}))
    line, blank, rest = framed.split(b"\n")
    assert line.startswith(b"data: ")
    assert b"\r" not in line
    assert (blank, rest) == (b"", b"")
    assert json.loads(line.removeprefix(b"data: ")) == {"said": said}


def test_comment_says_nothing() -> None:
    """A comment is a line that begins with a colon, and a blank one."""
    assert sse.COMMENT == b": keep-alive\n\n"
