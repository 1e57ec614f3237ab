"""One connection, driven callback by callback: where an answer ends, and what may follow it."""

import asyncio
import ssl
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engines.http.connection import MAX_HEAD_BYTES, Connection
from app.engines.transport import ConnectionLost
from app.protocol.errors import ConnectFailed, LegError, ProtocolViolation, ResponseTooLarge, TlsFailed
from app.resilience import yield_limiter
from app.resilience.byte_budget import HELD, ByteBudget
from tests.support.raw_peer import chunked_answer, http_answer
from tests.support.virtual_time import turns


class Socket:
    """The transport of the event loop, as far as a connection uses it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.aborted = False
        self.reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
async def wire() -> tuple[Connection, Socket]:
    return _connected()


def _connected(limit: int = 1000) -> tuple[Connection, Socket]:
    sock: Any = Socket()
    connection = Connection(limit, lambda lost: None)
    connection.connection_made(sock)
    return connection, sock


def _fault_of(pending: asyncio.Future[Any]) -> LegError:
    fault = pending.exception()
    assert isinstance(fault, LegError)
    return fault


Wire = tuple[Connection, Socket]

FRAMED = {
    "length": http_answer(b"hello"),
    "chunked": chunked_answer(b"he", b"llo"),
    "interim": b"HTTP/1.1 100 Continue\r\n\r\n" + http_answer(b"hello"),
    "trailer": chunked_answer(b"hello")[:-2] + b"X: y\r\n\r\n",
}


async def test_a_long_answer_waits_for_the_next_turn(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a turn of the loop has lasted long enough no more is read in it; a whole answer has nothing to wait for."""
    now = iter(range(1000))
    monkeypatch.setattr(yield_limiter, "perf_counter", lambda: float(next(now)))
    connection, sock = wire
    answer = http_answer(b"x" * 100)
    pending = connection.ask(b"question")
    connection.data_received(answer[:80])
    assert sock.reading  # the first piece of a turn
    connection.data_received(answer[80:90])
    assert not sock.reading
    await turns(2)
    assert sock.reading
    connection.data_received(answer[90:])
    assert sock.reading
    assert pending.result() == b"x" * 100


async def test_a_connection_without_an_answer_to_come_keeps_no_body(wire: Wire) -> None:
    """An idle connection does not hold the megabytes that came over it; what was held is the request's."""
    connection, sock = wire
    budget = ByteBudget(50)
    first, second = budget.try_enter(), budget.try_enter()
    assert first is not None
    assert second is not None
    first.take(10)
    before = HELD.set(second)
    pending = connection.ask(b"question")
    HELD.reset(before)
    answer = http_answer(b"x" * 100)
    connection.data_received(answer[:-20])
    assert not sock.reading  # 90 of 50 are held, and another request is older
    first.release()
    assert sock.reading
    connection.data_received(answer[-20:])
    assert pending.result() == b"x" * 100
    assert (second.held, connection._body) == (100, None)


async def test_request_is_one_write(wire: Wire) -> None:
    """Head and body go out together."""
    connection, sock = wire
    connection.ask(b"POST / HTTP/1.1\r\n\r\nbody")
    assert sock.written == [b"POST / HTTP/1.1\r\n\r\nbody"]


@pytest.mark.parametrize("framing", FRAMED)
async def test_cut_at_every_boundary(wire: Wire, framing: str) -> None:
    """An answer cut in two at any byte is the same answer, and the connection stays good."""
    connection, sock = wire
    raw = FRAMED[framing]
    for cut in range(1, len(raw)):
        pending = connection.ask(b"?")
        connection.data_received(raw[:cut])
        assert not pending.done()
        connection.data_received(raw[cut:])
        assert (bytes(pending.result()), connection.status) == (b"hello", 200)
    assert not sock.aborted


@given(st.sampled_from(sorted(FRAMED)), st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_cut_anywhere_and_anyhow(framing: str, sizes: list[int]) -> None:
    """The same for pieces of any sizes."""

    async def story() -> None:
        connection, _ = _connected()
        raw, turn = FRAMED[framing], 0
        pending = connection.ask(b"?")
        while raw:
            size = sizes[turn % len(sizes)]
            connection.data_received(raw[:size])
            raw, turn = raw[size:], turn + 1
        assert bytes(pending.result()) == b"hello"

    asyncio.run(story())


@pytest.mark.parametrize("surplus", [b"H", b"HTTP/1.1 200 OK\r\n", http_answer(b"again"), b"\x00"])
async def test_surplus_behind_an_answer(wire: Wire, surplus: bytes) -> None:
    """An answer with something behind it counts, but its connection is not used again."""
    connection, sock = wire
    pending = connection.ask(b"?")
    connection.data_received(http_answer(b"hello") + surplus)
    assert pending.result() == b"hello"
    assert sock.aborted
    assert connection.closed


async def test_bytes_nobody_asked_for(wire: Wire) -> None:
    """An idle connection that says something is closed."""
    connection, sock = wire
    pending = connection.ask(b"?")
    connection.data_received(http_answer(b"hello"))
    connection.data_received(http_answer(b"hello", 408))
    assert pending.result() == b"hello"
    assert sock.aborted


@pytest.mark.parametrize("header", [("Connection", "close"), ("connection", "foo, Close")])
async def test_connection_close_is_heeded(wire: Wire, header: tuple[str, str]) -> None:
    """An answer that announces the close is the last on its connection."""
    connection, sock = wire
    pending = connection.ask(b"?")
    connection.data_received(http_answer(b"hello", headers=[header]))
    assert pending.result() == b"hello"
    assert sock.aborted


async def test_body_up_to_the_close(wire: Wire) -> None:
    """Without a length, the end of the stream is the end of the body."""
    connection, _ = wire
    pending = connection.ask(b"?")
    connection.data_received(http_answer(b"hel", length=False))
    connection.data_received(b"lo")
    assert not pending.done()
    connection.eof_received()
    assert bytes(pending.result()) == b"hello"


async def test_reset_is_no_end_of_a_body(wire: Wire) -> None:
    """A connection that breaks does not end a body; only an orderly close does."""
    connection, _ = wire
    pending = connection.ask(b"?")
    connection.data_received(http_answer(b"hel", length=False))
    connection.connection_lost(ConnectionResetError())
    assert "broke off" in str(_fault_of(pending))


@pytest.mark.parametrize("lost", [None, ConnectionResetError()])
async def test_severed_before_the_first_byte(wire: Wire, lost: Exception | None) -> None:
    """A peer that goes away without a byte is Severed, which is what a retry looks for."""
    connection, _ = wire
    pending = connection.ask(b"?")
    connection.connection_lost(lost)
    assert type(_fault_of(pending)) is ConnectionLost


async def test_first_byte_counts_per_question(wire: Wire) -> None:
    """What came for the last question says nothing about this one."""
    connection, _ = wire
    first = connection.ask(b"?")
    connection.data_received(http_answer(b"hello"))
    second = connection.ask(b"?")
    connection.connection_lost(None)
    assert first.result() == b"hello"
    assert type(_fault_of(second)) is ConnectionLost


async def test_broken_in_the_middle(wire: Wire) -> None:
    """A peer that goes away after some byte has violated the protocol, and that is all."""
    connection, _ = wire
    pending = connection.ask(b"?")
    connection.data_received(b"H")
    connection.eof_received()
    assert type(_fault_of(pending)) is ProtocolViolation


async def test_tls_alert_instead_of_an_answer(wire: Wire) -> None:
    """A TLS error on an open connection is class tls."""
    connection, _ = wire
    pending = connection.ask(b"?")
    connection.connection_lost(ssl.SSLError(1, "alert"))
    assert type(_fault_of(pending)) is TlsFailed


async def test_question_to_a_closed_connection() -> None:
    """Asking over a connection that has closed meanwhile sends nothing and is Severed, or what it was failed with."""
    connection, sock = _connected()
    connection.eof_received()
    assert type(_fault_of(connection.ask(b"?"))) is ConnectionLost
    connection.fail(ConnectFailed("closed"))
    assert type(_fault_of(connection.ask(b"?"))) is ConnectFailed
    assert not sock.written


async def test_late_bytes_after_giving_up(wire: Wire) -> None:
    """Whoever gave up is not troubled by an answer that arrives before the socket is gone."""
    connection, _ = wire
    pending = connection.ask(b"?")
    pending.cancel()
    connection.data_received(http_answer(b"hello"))
    connection.connection_lost(None)
    assert pending.cancelled()


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_HEAD_BYTES,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * (MAX_HEAD_BYTES // 2) + b"Content-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 5000,
        chunked_answer(b"hello")[:-2] + b"X: " + b"x" * 2 * MAX_HEAD_BYTES,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 2 * MAX_HEAD_BYTES,
    ],
    ids=["one field", "many fields", "interim answers", "trailer", "chunk extension"],
)
async def test_endless_everything_but_body(wire: Wire, raw: bytes) -> None:
    """Heads, interim answers, trailers and chunk extensions are bounded, whatever pieces they come in."""
    connection, sock = wire
    pending = connection.ask(b"?")
    for start in range(0, len(raw), 8192):
        if not sock.aborted:
            connection.data_received(raw[start : start + 8192])
    assert "head of the answer is longer" in str(_fault_of(pending))
    assert sock.aborted


@pytest.mark.parametrize("announced", [True, False])
async def test_too_large(announced: bool) -> None:
    """A body above the cap closes the connection, when announced and when it just goes on."""
    connection, sock = _connected(limit=10)
    pending = connection.ask(b"?")
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n" if announced else http_answer(bytes(11), length=False)
    connection.data_received(raw)
    assert type(_fault_of(pending)) is ResponseTooLarge
    assert sock.aborted


@pytest.mark.parametrize("coding", ["gzip", "gzip, chunked", "identity"])
async def test_other_transfer_encodings(wire: Wire, coding: str) -> None:
    """A transfer encoding other than chunked alone is refused."""
    connection, _ = wire
    pending = connection.ask(b"?")
    connection.data_received(http_answer(b"hello", headers=[("Transfer-Encoding", coding)], length=False))
    assert "transfer encoding" in str(_fault_of(pending))


async def test_loss_is_reported_once() -> None:
    """The owner hears once that the socket is gone."""
    lost: list[Connection] = []
    connection = Connection(10, lost.append)
    sock: Any = Socket()
    connection.connection_made(sock)
    connection.eof_received()
    connection.connection_lost(None)
    assert lost == [connection]


async def test_state_is_readable(wire: Wire) -> None:
    """An incident shows what a connection is doing."""
    connection, _ = wire
    assert repr(connection) == "<Connection idle, last HTTP -, epoch 0>"
    connection.ask(b"?")
    assert repr(connection) == "<Connection busy, last HTTP -, epoch 0>"
    connection.data_received(http_answer(b"no", 503, headers=[("Retry-After", "3"), ("Connection", "close")]))
    assert repr(connection) == "<Connection closed, last HTTP 503, epoch 0>"
    assert connection.retry_after == b"3"
