"""How answers are read: strictly, and with the departure in words."""

from typing import Any

import pytest

from app.conformance.http_peer import frames
from app.conformance.reply import ServerReply, brief, is_integer, is_number, parsed, same
from app.conformance.verdict import Departure


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no answer"),
        (b"<html>", "no JSON"),
        (b"\xff", "not UTF-8"),
        (b"[NaN]", "NaN"),
        (b"[-Infinity]", "Infinity"),
        (b"[]", "no response object"),
        (b'{"id":1,"result":{}}', "jsonrpc null"),
        (b'{"jsonrpc":"2.0","id":1}', "both or neither"),
        (b'{"jsonrpc":"2.0","id":1,"result":{},"error":{}}', "both or neither"),
        (b'{"jsonrpc":"2.0","result":{}}', "no 'id'"),
    ],
)
def test_what_is_no_response_is_told(body: bytes, words: str) -> None:
    """Each way in which an answer is no response has words of its own."""
    with pytest.raises(Departure, match=words):
        ServerReply(body).response()


def test_a_strange_status_is_told() -> None:
    """What is no JSON is often a page of somebody else; its status tells whose."""
    with pytest.raises(Departure, match=r"no JSON.*\(HTTP 404\)"):
        ServerReply(b"<html>Not Found", 404).response()


@pytest.mark.parametrize("error", ['"no"', '{"code":"-1","message":"m"}', '{"code":-1}', "null"])
def test_an_error_has_a_code_and_a_message(error: str) -> None:
    """An integer and a string, else the error itself is at fault."""
    with pytest.raises(Departure, match="needs an integer"):
        ServerReply(f'{{"jsonrpc":"2.0","id":1,"error":{error}}}'.encode()).error("it")


def test_results_and_errors_are_not_taken_for_each_other() -> None:
    """Whoever wants one and gets the other is told what it was."""
    result, error = (
        ServerReply(b'{"jsonrpc":"2.0","id":1,"result":{}}'),
        ServerReply(b'{"jsonrpc":"2.0","id":1,"error":{"code":-32010,"message":"down"}}'),
    )
    with pytest.raises(Departure, match="it was answered with a result"):
        result.error("it")
    with pytest.raises(Departure, match='it was refused: -32010 "down"'):
        error.result("it")
    with pytest.raises(Departure, match="no object"):
        ServerReply(b'{"jsonrpc":"2.0","id":1,"result":[]}').result("it")


@pytest.mark.parametrize(("one", "other"), [(1, "1"), (1, True), (1, 1.5), ("", None), ([], {})])
def test_values_of_two_types_differ(one: Any, other: Any) -> None:
    """Equal means equal in type, too."""
    assert not same(one, other)
    assert same(one, one)


def test_numbers() -> None:
    """Booleans are no numbers, and what is too large to be one is none either."""
    assert is_number(1)
    assert is_number(1.5)
    assert not is_number(True)
    assert not is_number(parsed(b"1e400"))
    assert is_integer(2.0)
    assert not is_integer(2.5)
    assert not is_integer(True)


def test_a_foreign_value_is_cut() -> None:
    """Whatever it is, one short line of ASCII comes out."""
    assert brief("x" * 500) == '"' + "x" * 116 + "..."
    assert brief("é\n") == '"\\u00e9\\n"'


def test_frames_of_a_stream() -> None:
    """Comments and other fields are left out, lines of one event joined, both kinds of line ends taken."""
    content = b": hello\n\ndata: 1\n\nevent: x\r\ndata:2\r\n\r\ndata: [\ndata: 3]\n\n\n"
    assert frames(content) == [b"1", b"2", b"[\n3]"]
