"""A head that was read before is known again, and nothing else is taken for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engines.connection import Connection
from app.engines.familiar import MAX_MISSES, Familiar
from app.engines.waiter import Waiter
from tests.support.raw_peer import http_answer


def learned(answer: bytes, length: int) -> Familiar:
    """What has read this answer."""
    familiar = Familiar()
    familiar.learn(answer, length)
    return familiar


@pytest.mark.parametrize("size", [1, 5, 9, 10, 11, 99, 100, 4096, 65_536])
def test_the_same_head_with_another_length(size: int) -> None:
    """The body is what follows; only where the number of digits leaves a doubt is it left to the parser."""
    familiar = learned(http_answer(b"hello", headers=[("Server", "5"), ("X", "y")]), 5)
    body = familiar.body(http_answer(bytes(size), headers=[("Server", "5"), ("X", "y")]))
    assert body == bytes(size) or (body is None and size in (9, 10, 99, 100))


@pytest.mark.parametrize(
    "answer",
    [
        http_answer(b"hello", 503),
        http_answer(b"hello", headers=[("Server", "b")]),
        http_answer(b"hello", headers=[("Server", "a"), ("X", "y")]),
        http_answer(b"hello", headers=[("Server", "a")])[:-1],
        http_answer(b"hello", headers=[("Server", "a")]) + b"!",
        http_answer(b"hello", headers=[("Server", "a")]).replace(b": 5", b": 05"),
        http_answer(b"hello", headers=[("Server", "a")]).replace(b": 5", b": +"),
        http_answer(b"hello", headers=[("Server", "a")]).replace(b": 5", b": 4"),
        b"",
        b"H",
    ],
)
def test_anything_else_is_the_parsers(answer: bytes) -> None:
    """Another status, field or length, a piece of an answer, and an answer with something behind it."""
    familiar = learned(http_answer(b"hello", headers=[("Server", "a")]), 5)
    assert familiar.body(answer) is None


def test_a_length_that_is_not_found_is_not_learned() -> None:
    """A head whose length is written in another way is never known again."""
    for head in (b"HTTP/1.1 200 OK\r\nContent-Length: 005\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"):
        familiar = learned(head + b"hello", 5)
        assert familiar.body(head + b"hello") is None
        assert repr(familiar) == "<Familiar with nothing, 1 misses>"


def test_a_peer_that_never_repeats_itself_is_left_alone() -> None:
    """After so many heads in a row that were all different none is learned any more; one that comes back is known."""
    familiar = Familiar()
    for number in range(MAX_MISSES + 1):
        familiar.learn(http_answer(b"hello", headers=[("X-Request-Id", f"{number}")]), 5)
    assert familiar.body(http_answer(b"hello", headers=[("X-Request-Id", f"{MAX_MISSES}")])) is None
    assert familiar.body(http_answer(b"hello", headers=[("X-Request-Id", f"{MAX_MISSES - 1}")])) == b"hello"
    assert "0 misses" in repr(familiar)


class Socket:
    """The transport of the event loop, as far as a connection uses it."""

    def write(self, data: bytes) -> None: ...

    def abort(self) -> None: ...


def told(connection: Connection, waiter: Waiter) -> tuple[object, ...]:
    """All that a connection says of an answer."""
    body = bytes(waiter.result()) if waiter.done() and waiter.exception() is None else None
    fault = waiter.exception()
    head = (connection.status, connection.retry_after) if body is not None else None
    return body, fault and fault.message, head, connection.closed


ANSWERS = st.builds(
    lambda size, status, headers, surplus, cut: (http_answer(b"x" * size, status, headers=headers) + surplus)[:cut],
    st.sampled_from([0, 1, 8, 9, 10, 95, 100, 400]),
    st.sampled_from([200, 200, 200, 503]),
    st.sampled_from([[], [], [("Retry-After", "1")], [("Connection", "close")], [("content-length", "3")]]),
    st.sampled_from([b"", b"", b"", b"H", http_answer(b"again")]),
    st.sampled_from([None, None, None, -1, 20]),
)


@given(st.lists(ANSWERS, min_size=1, max_size=6))
async def test_a_connection_that_remembers_tells_the_same(answers: list[bytes]) -> None:
    """Whatever came before, an answer means what it means to a connection that has never read one."""
    remembering = Connection(1000, lambda lost: None)
    remembering.connection_made(Socket())  # type: ignore[arg-type]
    for answer in answers:
        fresh = Connection(1000, lambda lost: None)
        fresh.connection_made(Socket())  # type: ignore[arg-type]
        waiters = remembering.ask(b"?"), fresh.ask(b"?")
        for connection in (remembering, fresh):
            connection.data_received(answer)
        assert told(remembering, waiters[0]) == told(fresh, waiters[1])
        if remembering.closed or not waiters[0].done():
            break
