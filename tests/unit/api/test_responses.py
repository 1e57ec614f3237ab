"""Whole answers on their way out: in one go where the server takes it, and never past who stands in between."""

from typing import Any

from app.api.responses import at_once, not_found
from tests.support.fake_gateway import Exchange


async def test_unknown_path_is_404_with_a_body() -> None:
    """The answer of last resort is a 404 that is JSON-RPC."""
    answer = await Exchange(path="/nowhere").run(not_found)
    assert answer.status == 404
    assert (answer.json["error"]["code"], answer.json["id"]) == (-32015, None)
    assert answer.header("x-request-id") is None


class Server:
    """Takes a whole answer, or not."""

    def __init__(self, *, taken: bool) -> None:
        self.taken = taken
        self.told: list[tuple[bytes, bytes]] = []

    async def send(self, event: Any) -> None:
        """ASGI's."""

    def answer_at_once(self, lines: bytes, body: bytes) -> bool:
        self.told.append((lines, body))
        return self.taken


def test_a_server_that_takes_it_is_given_the_whole() -> None:
    """It is told our header lines and the body; whether it took them is what counts."""
    for taken in (True, False):
        server = Server(taken=taken)
        assert at_once(server.send, b"{}", "r-1") is taken
        assert server.told == [(b"x-request-id: r-1\r\ncontent-type: application/json\r\n", b"{}")]


async def test_who_stands_between_sees_every_event() -> None:
    """A middleware that adds headers wraps ASGI's send, and is not passed by."""
    server = Server(taken=True)

    async def between(event: Any) -> None:
        await server.send(event)

    assert not at_once(between, b"{}", "r-1")
    assert server.told == []
