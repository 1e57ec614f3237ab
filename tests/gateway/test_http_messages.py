"""One request is one request: however its bytes are split over reads, whatever it offers, whatever comes before it."""

import asyncio
from itertools import combinations
from typing import Any

import pytest

from app.server.http_protocol import ARRIVAL, MAX_PIPELINED
from app.server.request_parser import MAX_HEAD_BYTES
from tests.support.http_connection import Answer, HttpConnection, echo

INNER = b"POST /inner HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
"""A request that stands in the body of another one, and must never be served."""


def message(*lines: bytes, body: bytes = b"", target: bytes = b"/a", start: bytes = b"POST %b HTTP/1.1") -> bytes:
    """A request with these header lines; its length is announced if there is a body and no coding."""
    head = [start % target, b"Host: g", *lines]
    if body and not any(line.lower().startswith(b"transfer-encoding") for line in lines):
        head.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def chunked(*pieces: bytes, trailer: bytes = b"") -> bytes:
    """A body in chunks."""
    return b"".join(b"%x;e=f\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n" + trailer + b"\r\n"


def asked(body: bytes = b"", *, path: str = "/a", method: str = "POST", host: str = "g", query: str = "") -> Answer:
    """What the application answers to a request that was read rightly."""
    return 200, {"method": method, "path": path, "query": query, "host": host, "body": body.decode()}


OFFERS = [
    (b"Connection: Upgrade", b"Upgrade: websocket"),
    (b"Connection: UpGrade", b"UpGrade: x"),
    (b"connection: keep-alive, UPGRADE, HTTP2-Settings", b"upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__"),
    (b"UPGRADE:h2c", b"X: y", b"CONNECTION:upgrade"),
]

REQUESTS: dict[str, tuple[bytes, Answer]] = {
    "get": (message(start=b"GET %b HTTP/1.1", target=b"/g?q=1"), asked(method="GET", path="/g", query="q=1")),
    "probe": (message(start=b"GET %b HTTP/1.1", target=b"/livez"), (200, {"status": "alive"})),
    "post": (message(body=INNER), asked(INNER)),
    "empty": (message(b"Content-Length: 0"), asked()),
    "chunks": (message(b"Transfer-Encoding: chunked", body=chunked(b"ab", INNER)), asked(b"ab" + INNER)),
    "trailers": (
        message(b"Transfer-Encoding: chunked", body=chunked(b"ab", trailer=b"Host: evil\r\nX: y\r\n")),
        asked(b"ab"),
    ),
    "absolute": (message(body=b"{}", target=b"http://h:81/b%20c"), asked(b"{}", path="/b c", host="h:81")),
    "white space": (
        message(b"X: y \t", b"Content-Length:  2 ").replace(b"Host: g", b"Host:\t g ") + b"{}",
        asked(b"{}"),
    ),
    "blank lines before it": (b"\r\n\r\n" + message(body=b"{}"), asked(b"{}")),
    **{f"offer {n}": (message(*lines, body=INNER), asked(INNER)) for n, lines in enumerate(OFFERS)},
    **{
        f"offer {n} with chunks": (
            message(*lines, b"Transfer-Encoding: chunked", body=chunked(INNER, trailer=b"T: u\r\n")),
            asked(INNER),
        )
        for n, lines in enumerate(OFFERS)
    },
    "offer without a body": (message(*OFFERS[0], start=b"GET %b HTTP/1.1"), asked(method="GET")),
    "offer of a probe": (
        message(*OFFERS[1], start=b"GET %b HTTP/1.1", target=b"/livez"),
        (200, {"status": "alive"}),
    ),
}

UNREADABLE = {
    "connect": message(start=b"CONNECT %b HTTP/1.1", target=b"g:80"),
    "connect with an offer": message(*OFFERS[0], start=b"CONNECT %b HTTP/1.1", target=b"g:80", body=INNER),
    "two lengths": message(b"Content-Length: 2", b"Content-Length: 2") + INNER,
    "two lengths and an offer": message(*OFFERS[0], b"Content-Length: 2", b"Content-Length: 3") + INNER,
    "a negative length": message(b"Content-Length: -1") + INNER,
    "length and coding": message(*OFFERS[0], b"Content-Length: 2", b"Transfer-Encoding: chunked") + chunked(INNER),
    "an unknown coding": message(b"Transfer-Encoding: x", body=INNER),
    "an unknown coding and an offer": message(*OFFERS[0], b"Transfer-Encoding: x", body=INNER),
    "chunks of HTTP/1.0": message(b"Transfer-Encoding: chunked", body=chunked(INNER), start=b"POST %b HTTP/1.0"),
    "a bad chunk after an offer": message(*OFFERS[0], b"Transfer-Encoding: chunked", body=b"zz\r\n" + INNER),
    "a folded line": message(b"X: a\r\n b"),
    "a bare line feed": message(b"X: a\nUpgrade: x"),
    "garbage": b"\x00\x01\x02" + INNER,
    "another scheme": message(target=b"ftp://h/a"),
    "credentials in the target": message(target=b"http://u@h/a"),
    "no host": message().replace(b"Host: g\r\n", b""),
    "two hosts": message(b"host: other"),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}

COMPACT = b"POST / HTTP/1.1\r\nHost:g\r\nConnection:upgrade\r\nUpgrade:x\r\nContent-Length:49\r\n\r\n"


@pytest.mark.parametrize("name", REQUESTS)
async def test_every_split_in_two_reads(name: str) -> None:
    """A request is the same wherever it is split, and so is the one behind it."""
    request, answer = REQUESTS[name]
    following, second = REQUESTS["post"]
    sent = request + following
    for place in range(1, len(sent)):
        connection = await HttpConnection().receive(sent[:place], sent[place:])
        assert connection.end() == [answer, second], sent[:place]


async def test_every_split_in_three_reads() -> None:
    """The same for all pairs of places in a small request that offers to upgrade."""
    body = INNER[:49]
    sent = COMPACT + body
    for first, second in combinations(range(1, len(COMPACT) + 2), 2):
        connection = await HttpConnection().receive(sent[:first], sent[first:second], sent[second:])
        assert connection.end() == [asked(body, path="/")], (first, second)


async def test_byte_by_byte() -> None:
    """All requests on one connection, in reads of one byte."""
    sent = b"".join(request for request, _ in REQUESTS.values())
    connection = await HttpConnection().receive(*[sent[place : place + 1] for place in range(len(sent))])
    assert connection.end() == [answer for _, answer in REQUESTS.values()]


@pytest.mark.parametrize("first", REQUESTS)
async def test_every_pair_in_one_read(first: str) -> None:
    """Pipelined requests are answered in order, each with its own body."""
    for second in REQUESTS:
        pair = [REQUESTS[first], REQUESTS[second], REQUESTS["post"]]
        connection = await HttpConnection().receive(b"".join(request for request, _ in pair))
        assert connection.end() == [answer for _, answer in pair], second


@pytest.mark.parametrize("name", UNREADABLE)
async def test_unreadable_input_ends_the_connection(name: str) -> None:
    """What cannot be read is 400 after the answers before it; nothing behind it is served, in however many reads."""
    first, answer = REQUESTS["offer 1"]
    for before, answers in ((b"", []), (first, [answer])):
        sent = before + UNREADABLE[name] + INNER
        for place in range(len(before), len(sent), 7):
            connection = await HttpConnection().receive(*filter(None, (sent[:place], sent[place:])))
            *good, (status, body) = connection.end()
            assert good == answers, place
            assert (status, body["error"]["code"], body["id"]) == (400, -32600, None)
            assert b"connection: close" in connection.transport.written
            assert connection.transport.closed


async def test_nothing_is_read_after_the_last_request() -> None:
    """`Connection: close` and HTTP/1.0 end the input, also if they offer to upgrade."""
    for lines in ((b"Connection: close",), (b"Connection: close, upgrade", b"Upgrade: x")):
        connection = await HttpConnection().receive(message(*lines, body=b"{}") + INNER)
        assert connection.end() == [asked(b"{}")]
        assert connection.transport.closed
    connection = await HttpConnection().receive(message(*OFFERS[0], body=b"{}", start=b"POST %b HTTP/1.0") + INNER)
    assert connection.end() == [asked(b"{}")]


async def test_no_100_is_sent_to_http_1_0() -> None:
    """`Expect: 100-continue` is answered 100 in HTTP/1.1 and only if the body is still to come."""
    for start, body, interim in (
        (b"POST %b HTTP/1.1", b"", [(100, None)]),
        (b"POST %b HTTP/1.1", b"{}", []),
        (b"POST %b HTTP/1.0", b"", []),
    ):
        head = message(b"Expect: 100-continue ", b"Content-Length: 2", start=start)
        connection = await HttpConnection().receive(head + body)
        assert connection.answers[:1] == (interim or ([asked(b"{}")] if body else []))
        if not body:
            await connection.receive(b"{}")
        assert connection.end() == [*interim, asked(b"{}")]


@pytest.mark.parametrize("reads", [1, 2, 100])
async def test_the_bound_of_a_head_is_exact(reads: int) -> None:
    """A head of 65,536 bytes is read, one byte more is refused, in one header or many and in any number of reads."""
    for lines in (1, 60):
        filler = (MAX_HEAD_BYTES - 200) // lines
        for excess, status in ((0, 200), (1, 400)):
            headers = [b"X: " + b"y" * (filler - 5) for _ in range(lines)]
            counted = sum(len(line) + 2 for line in headers) + len(b"/" + b"Host: g\r\n")
            target = b"/" + b"a" * (MAX_HEAD_BYTES - counted + excess)
            sent = message(*headers, start=b"GET %b HTTP/1.1", target=target)
            size = -(-len(sent) // reads)
            connection = await HttpConnection().receive(
                *[sent[place : place + size] for place in range(0, len(sent), size)]
            )
            assert connection.end()[0][0] == status, (lines, excess)


async def test_white_space_is_bounded_as_well() -> None:
    """What the parser skips counts towards the bound too."""
    connection = await HttpConnection().receive(message(b"X:" + b" " * 200_000 + b"y"))
    assert connection.end()[0][0] == 400


async def test_the_time_of_arrival_is_that_of_the_first_byte() -> None:
    """A request carries when it began to arrive; one behind it in the same read has the time of that read."""
    times: list[float] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        times.append(scope["extensions"][ARRIVAL]["time"])
        await echo(scope, receive, send)

    connection = HttpConnection(app)
    loop = asyncio.get_running_loop()
    first = loop.time()
    connection.protocol.data_received(b"P")
    began = loop.time()
    await asyncio.sleep(0.01)
    later = loop.time()
    await connection.receive(message(body=b"{}")[1:] + INNER)
    connection.end()
    assert first <= times[0] <= began
    assert later <= times[1]


async def test_many_pipelined_requests_pause_reading() -> None:
    """Of a caller that sends on and on without an answer only so many requests are read."""
    release = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()
        await echo(scope, receive, send)

    connection = HttpConnection(app)
    for _ in range(MAX_PIPELINED + 1):
        assert not connection.transport.paused
        connection.protocol.data_received(message(body=b"{}"))
    assert connection.transport.paused
    release.set()
    await connection.receive()
    assert connection.end() == [asked(b"{}")] * (MAX_PIPELINED + 1)
    assert not connection.transport.paused


@pytest.mark.parametrize("name", ["probe", "post", "chunks"])
async def test_an_answer_is_one_write(name: str) -> None:
    """Head and body leave together, so that the caller is woken once."""
    request, answer = REQUESTS[name]
    connection = await HttpConnection().receive(request)
    assert connection.transport.writes == 1
    assert connection.end() == [answer]


async def test_a_connection_is_closed_with_the_last_answer() -> None:
    """A 400 to pipelined garbage waits for the answer before it, however long that takes."""
    release = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()
        await echo(scope, receive, send)

    connection = HttpConnection(app)
    connection.protocol.data_received(message(body=b"{}") + UNREADABLE["garbage"])
    await asyncio.sleep(0)
    assert connection.transport.written == b""
    assert not connection.transport.closed
    release.set()
    await connection.receive()
    assert [status for status, _ in connection.end()] == [200, 400]
    assert connection.transport.closed
