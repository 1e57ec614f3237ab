"""Whole answers are sent in one call where the server takes them."""

from app.api.caller import ANSWER_AT_ONCE
from app.api.responses import not_found, send_at_once
from tests.support.fake_gateway import Exchange


async def test_unknown_path_is_404_with_a_body() -> None:
    """The answer of last resort is a 404 that is JSON-RPC."""
    answer = await Exchange(path="/nowhere").run(not_found)
    assert answer.status == 404
    assert (answer.json["error"]["code"], answer.json["id"]) == (-32015, None)
    assert answer.header("x-request-id") is None


def test_a_server_that_takes_it_is_given_the_whole() -> None:
    """It is given header lines and body; whether it took them is what counts. Without the extension nothing is sent."""
    given = []
    for taken in (True, False):

        def answer_at_once(lines: bytes, body: bytes, taken: bool = taken) -> bool:
            given.append((lines, body))
            return taken

        assert send_at_once({"extensions": {ANSWER_AT_ONCE: answer_at_once}}, b"{}", "r-1") is taken
    assert given == [(b"x-request-id: r-1\r\ncontent-type: application/json\r\n", b"{}")] * 2
    assert not send_at_once({}, b"{}", "r-1")
