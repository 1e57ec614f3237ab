"""A log that nobody can read any more costs lines, never a request."""

import os
import socket
from io import StringIO

from app.telemetry.log_writer import LogWriter


def test_lines_come_out_as_they_are() -> None:
    """What is written is there at once."""
    out = StringIO()
    assert LogWriter(out).write("one\n") == 4
    assert out.getvalue() == "one\n"


def test_a_pipe_without_a_reader_loses_lines_and_raises_nothing() -> None:
    """A broken pipe is counted, not raised."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        log_writer = LogWriter(stream)
        os.close(reading)
        log_writer.write("gone\n")
        assert log_writer.lost == 1


def test_a_full_pipe_does_not_block_and_says_later_what_was_lost() -> None:
    """Lines that find the pipe full are lost; the first that goes through again says how many there were."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream, os.fdopen(reading, "rb", buffering=0) as reader:
        log_writer = LogWriter(stream)
        written = 0
        while not log_writer.lost:
            log_writer.write("x" * 4095 + "\n")
            written += 1
        reader.read(1 << 20)
        log_writer.write("after\n")
        assert reader.read(4096) == b'{"event": "log_lines_lost", "level": "warning", "lines": 1}\nafter\n'
        assert log_writer.lost == 0


def test_a_line_that_goes_through_in_part_is_finished_before_the_next() -> None:
    """What comes out is whole lines, whatever the reader does: none is glued to another."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream, os.fdopen(reading, "rb", buffering=0) as reader:
        log_writer = LogWriter(stream)
        long = "y" * 200_000 + "\n"
        log_writer.write(long)  # a pipe holds 64 KiB
        log_writer.write("lost while the pipe is full\n")
        assert log_writer.lost == 1
        out = b""
        for line in ("after\n", "after\n", "after\n", "after\n"):
            out += reader.read(1 << 20)
            log_writer.write(line)
        log_writer.flush()
        out += reader.read(1 << 20)
    lines = out.decode().splitlines(keepends=True)
    assert lines[0] == long
    assert lines[-1] == "after\n"
    assert all(line == "after\n" or '"log_lines_lost"' in line for line in lines[1:])


def test_a_closed_stream_is_no_error() -> None:
    """After the stream was closed, lines are lost quietly."""
    out = StringIO()
    log_writer = LogWriter(out)
    out.close()
    log_writer.write("late\n")
    assert log_writer.lost == 1


def test_a_socket_whose_reader_stalls_does_not_block() -> None:
    """A log that goes to a socket, as under systemd, loses lines instead of stopping the process."""
    ours, theirs = socket.socketpair()
    with ours, theirs, os.fdopen(os.dup(ours.fileno()), "w") as stream:
        log_writer = LogWriter(stream)
        for _ in range(10_000):
            log_writer.write("x" * 1023 + "\n")
        assert log_writer.lost > 0
