"""Requests with two readings, or that cost more than they look: on raw sockets, byte by byte.

Whatever comes, one of two things holds: it is answered once and the connection goes on in step, or it is refused and
the connection ends. What is behind it is never taken for a request of its own.
"""

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from tests.support.listening_gateway import listening
from tests.support.log_lines import own_log
from tests.support.running_gateway import PATIENCE, Json, entry, running
from tests.support.scripted_engine import Http
from tests.support.tenancy import tenant

SMUGGLED = b'{"jsonrpc":"2.0","id":"smuggled","method":"ping","params":{}}'
INNER = b"POST /rcp HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n%b" % (len(SMUGGLED), SMUGGLED)
"""What an attacker hides in a body: a whole request."""


def ping(id: Any = 1) -> bytes:
    """A well-formed message."""
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": "ping", "params": {}}).encode()


def request(body: bytes, *lines: bytes, length: bool = True, target: bytes = b"/rcp") -> bytes:
    """One request with these header lines."""
    head = [b"POST %b HTTP/1.1" % target, b"Host: g", *lines]
    if length:
        head.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def last(id: Any = "after") -> bytes:
    """A request after which the connection is to end."""
    return request(ping(id), b"Connection: close")


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """The port of a gateway without engines, served as in production; it must not have logged an error."""
    with own_log() as log:
        async with listening([]) as (_, port):
            yield port
    assert "Traceback" not in log.text
    assert not [line for line in log.lines if line["level"] == "error"]


async def responses_to(port: int, *pieces: bytes) -> bytes:
    """Everything that is answered to these bytes until the gateway ends the connection, which it must."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
        answered = b""
        with suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE):
                while piece := await reader.read(65_536):
                    answered += piece
        return answered
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def statuses(answered: bytes) -> list[int]:
    """The statuses of all answers in what was responses_to."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answered)]


CHUNKED = b"3d\r\n" + SMUGGLED + b"\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(request(b"0\r\n\r\n" + INNER, b"Transfer-Encoding: chunked"), id="length and chunks"),
        pytest.param(
            b"POST /rcp HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n" + CHUNKED,
            id="chunks and length",
        ),
        pytest.param(request(ping() + INNER, b"Content-Length: %d" % len(ping())), id="two lengths that differ"),
        pytest.param(request(ping(), b"Content-Length: %d" % len(ping())), id="two lengths that agree"),
        pytest.param(request(ping(), b"Content-Length: 5, 5", length=False), id="a list of lengths"),
        pytest.param(request(ping(), b"Content-Length: +%d" % len(ping()), length=False), id="a signed length"),
        pytest.param(request(ping(), b"Content-Length: -1", length=False), id="a negative length"),
        pytest.param(request(ping(), b"Content-Length: 0x3e", length=False), id="a length in hex"),
        pytest.param(request(ping(), b"Content-Length: " + b"9" * 40, length=False), id="a length beyond 64 bits"),
        pytest.param(request(ping(), b"Content-Length: 6 2", length=False), id="a length with a space"),
        pytest.param(request(ping(), b"Content-Length : %d" % len(ping()), length=False), id="a space before colon"),
        pytest.param(request(CHUNKED, b"Transfer-Encoding: xchunked", length=False), id="an unknown coding"),
        pytest.param(request(CHUNKED, b"Transfer-Encoding: identity", length=False), id="identity"),
        pytest.param(request(CHUNKED, b"Transfer-Encoding: chunked, gzip", length=False), id="chunked not last"),
        pytest.param(request(b"zz\r\n" + INNER, b"Transfer-Encoding: chunked", length=False), id="a size that is none"),
        pytest.param(
            request(b"-1\r\n" + INNER, b"Transfer-Encoding: chunked", length=False), id="a negative chunk size"
        ),
        pytest.param(
            request(b"f" * 17 + b"\r\n" + INNER, b"Transfer-Encoding: chunked", length=False), id="a size of 68 bits"
        ),
        pytest.param(
            request(b"3d\r\n" + SMUGGLED + b"X\r\n0\r\n\r\n", b"Transfer-Encoding: chunked", length=False),
            id="a chunk longer than it says",
        ),
        pytest.param(
            request(b"3d\n" + SMUGGLED + b"\n0\n\n", b"Transfer-Encoding: chunked", length=False), id="bare line feeds"
        ),
        pytest.param(request(ping(), b"X: a\r\n b"), id="a folded header"),
        pytest.param(request(ping(), b"X: a\x00b"), id="a zero byte in a header"),
        pytest.param(request(ping(), b"X: a\rb: c"), id="a bare carriage return"),
        pytest.param(request(ping(), b"X y: a"), id="a space in a name"),
        pytest.param(request(ping(), b": a"), id="a header without a name"),
        pytest.param(request(ping(), b"Host: other"), id="two hosts"),
        pytest.param(request(ping(), b"HOST: g"), id="one host twice"),
        pytest.param(request(ping()).replace(b"Host: g", b"Hos: g"), id="no host"),
        pytest.param(b"POST /rcp HTTP/2.0\r\nHost: g\r\n\r\n", id="a version that is none"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="HTTP/2 by prior knowledge"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="a TLS handshake"),
        pytest.param(b"POST /rcp\r\n\r\n", id="HTTP/0.9"),
        pytest.param(b"G\xffT /rcp HTTP/1.1\r\n\r\n", id="a method that is none"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n', id="JSON lines"),
    ],
)
async def test_what_can_be_read_in_two_ways_is_refused(port: int, sent: bytes) -> None:
    """Conflicting lengths and codings, and what is no HTTP, end the connection; what hides is never served."""
    answered = await responses_to(port, sent, last())
    assert b"smuggled" not in answered
    assert b'"after"' not in answered
    assert statuses(answered) in ([400], [])


@pytest.mark.parametrize("target", [b"/rcp", b"/rcp/ping", b"/nonsense", b"/livez", b"/engines/x/rcp"])
async def test_every_body_belongs_to_its_request(port: int, target: bytes) -> None:
    """Whatever is refused unread, the next request on the connection is the one that comes next, or none is served."""
    for body in (b"", b"x", b"nonsense " * 9, ping(), ping() + b"\r\n\r\n", INNER, b"x" * 5000 + INNER, b"[" * 500):
        for lines in ((), (b"Content-Encoding: gzip",), (b"Expect: 100-continue",)):
            answered = await responses_to(port, request(body, *lines, target=target) + last())
            assert b"smuggled" not in answered
            final = [status for status in statuses(answered) if status != 100]
            assert len(final) == (2 if b'"id":"after"' in answered else 1), (body, lines)


async def test_a_chunked_body_is_read_to_its_end(port: int) -> None:
    """Chunks, extensions and trailers are one body; what follows is the next request."""
    chunks = b"".join(b"1;a=b\r\n%c\r\n" % byte for byte in ping(1)) + b"0\r\nX-Trailer: 1\r\n\r\n"
    sent = request(chunks, b"Transfer-Encoding: chunked", length=False) + last()
    answered = await responses_to(port, sent)
    assert statuses(answered) == [200, 200]
    assert answered.index(b'"id":1,') < answered.index(b'"id":"after"')


async def test_a_chunked_trailer_sets_no_header() -> None:
    """What stands in trailers is no credential, coding, length or host: a proxy in front may not have looked at it."""
    key = "a-good-key.0123"
    async with listening([], tenants={"red": tenant("*", keys=(key,))}) as (_, port):
        good = b"X-API-Key: " + key.encode()
        for trailer in (good, b"Authorization: Bearer " + key.encode(), b"Content-Encoding: x"):
            chunks = b"%x\r\n%b\r\n0\r\n%b\r\n\r\n" % (len(ping()), ping(), trailer)
            sent = request(chunks, b"Transfer-Encoding: chunked", b"Connection: close", length=False)
            assert statuses(await responses_to(port, sent)) == [401], trailer
            known = request(chunks, b"Transfer-Encoding: chunked", good, b"Connection: close", length=False)
            assert statuses(await responses_to(port, known)) == [200], trailer


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"POST /" + b"a" * 100_000 + b" HTTP/1.1\r\n", id="target"),
        pytest.param(b"POST /rcp HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n", id="value"),
        pytest.param(b"POST /rcp HTTP/1.1\r\n" + b"a" * 100_000 + b": x\r\n", id="name"),
        pytest.param(b"POST /rcp HTTP/1.1\r\n" + b"X: y\r\n" * 20_000, id="many"),
        pytest.param(b"A" * 100_000, id="method"),
    ],
)
async def test_a_head_has_a_bound(port: int, head: bytes) -> None:
    """A head that does not end within 64 KiB is refused, and nothing of it is kept."""
    pieces = [head[start : start + 16_384] for start in range(0, len(head), 16_384)]
    answered = await responses_to(port, *pieces)
    assert statuses(answered) in ([400], [])
    assert answered == b"" or b"connection: close" in answered


async def test_endless_trailers_have_a_bound(port: int) -> None:
    """After the last chunk some 64 KiB of trailers are read, and no more."""
    head = request(b"0\r\n", b"Transfer-Encoding: chunked", length=False)
    answered = await responses_to(port, head, *[b"X: " + b"y" * 8000 + b"\r\n"] * 90)
    assert 200 not in statuses(answered)


async def test_compressed_bodies_are_never_opened(port: int) -> None:
    """A Content-Encoding is 415 with a JSON-RPC error, whatever the body is: nothing is inflated, no bomb goes off."""
    bomb = gzip.compress(b" " * 200_000)
    for coding in ("gzip", "GZIP", " deflate ", "br", "zstd", "x-unknown", "gzip, identity", "identity, gzip"):
        answered = await responses_to(port, request(bomb, f"Content-Encoding: {coding}".encode(), b"Connection: close"))
        assert statuses(answered) == [415], coding
        assert b'"code":-32600' in answered


async def test_a_transfer_coding_is_no_way_around(port: int) -> None:
    """A body that was compressed for the way is 415 as well, and not taken for what its chunks hold."""
    for coding in (b"gzip, chunked", b"GZIP,chunked", b"deflate, chunked"):
        lines = (b"Transfer-Encoding: %b" % coding, b"Connection: close")
        answered = await responses_to(port, request(CHUNKED, *lines, length=False))
        assert statuses(answered) == [415], coding
        assert b"smuggled" not in answered
    good = request(CHUNKED, b"transfer-encoding: Chunked", b"Connection: close", length=False)
    assert statuses(await responses_to(port, good)) == [200]


async def test_two_content_encodings_are_no_identity(port: int) -> None:
    """A second header does not make a compressed body a plain one."""
    for lines in ((b"Content-Encoding: gzip", b"Content-Encoding: identity"), (b"Content-Encoding: gzip",) * 2):
        answered = await responses_to(port, request(gzip.compress(ping()), b"Connection: close", *lines))
        assert statuses(answered) == [415], lines


@pytest.mark.parametrize("length", [2049, 10**6, 10**18])
async def test_a_body_is_bounded_before_it_comes(length: int) -> None:
    """A body announced as too long is 413 before a byte of it was sent, and the connection is not kept."""
    async with listening([], {"server": {"max_body_bytes": 2048}}) as (_, port):
        answered = await responses_to(port, request(b"", b"Content-Length: %d" % length, length=False))
    assert statuses(answered) == [413]


async def test_only_post_is_spoken_at_the_endpoint(port: int) -> None:
    """Any other method is 405, also OPTIONS where no web page is listed; TRACE repeats nothing."""
    for method in (b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE", b"PATCH"):
        head = b" /rcp HTTP/1.1\r\nHost: g\r\nOrigin: https://x\r\nX-Secret: SECRET\r\nConnection: close\r\n\r\n"
        answered = await responses_to(port, method + head)
        assert statuses(answered) == [405], method
        assert b"SECRET" not in answered
        assert b"access-control" not in answered.lower()


async def test_a_proxy_is_what_the_gateway_is_not(port: int) -> None:
    """CONNECT opens nothing, and a request for another host is answered here or refused, never passed on."""
    connect = await responses_to(port, b"CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: g\r\n\r\n")
    assert not {200, 101} & set(statuses(connect))
    absolute = await responses_to(port, request(ping(), b"Connection: close", target=b"http://169.254.169.254/rcp"))
    assert statuses(absolute) == [200]
    assert b'"result":{}' in absolute


@pytest.mark.parametrize("value", [b"h2c", b"websocket", b"TLS/1.0"])
async def test_nobody_is_upgraded(port: int, value: bytes) -> None:
    """An offer to speak something else is passed over, and the request answered as it is (RFC 9110 7.8)."""
    lines = (b"Connection: Upgrade, HTTP2-Settings, close", b"Upgrade: " + value, b"HTTP2-Settings: AAMAAABkAAQAAP__")
    answered = await responses_to(port, request(ping(), *lines))
    assert statuses(answered) == [200]


async def test_answers_cannot_be_split(port: int) -> None:
    """What a caller sends comes back in no header but as a request id of harmless letters."""
    for sent in (b"a\tb", b"a;b", b"%0d%0aSet-Cookie:x", b"a" * 500, b"\xff"):
        answered = await responses_to(port, request(ping(), b"X-Request-ID: " + sent, b"Connection: close"))
        assert statuses(answered) == [200]
        assert sent not in answered.partition(b"\r\n\r\n")[0]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("client", ["http", "httpx"])
async def test_redirects_are_not_followed(engines: Any, status: int, client: str) -> None:
    """An engine that points elsewhere has failed, with a note that says so; nobody is asked in its place (B94)."""
    elsewhere, engine = await engines(), await engines()
    for location in (elsewhere.url, "http://169.254.169.254/latest/meta-data/", "file:///etc/passwd", "//other/"):
        engine.answers["retrieve"] = Http(status, b"", {"Location": location})
        async with running([entry("e", engine, client=client, retries=0, headers={"X-Key": "k"})]) as gateway:
            error: Json = await gateway.error("retrieve", {"query": "q"})
        assert error["code"] == -32010
        assert "a redirect, which is not followed" in json.dumps(error)
        assert location not in json.dumps(error)
    assert elsewhere.connections == 0


async def test_nobody_fetches_what_a_caller_or_an_engine_names(engines: Any) -> None:
    """An address in a request's content, a hit's citation or content is text: nobody connects to it (RCP 15)."""
    named, engine = await engines(), await engines()
    hit = {"id": 1, "score": 1.0, "text": "t", "citation": {"uri": named.url, "source": named.url}}
    hit["content"] = [{"type": "image", "uri": named.url, "mimeType": "image/png"}]
    engine.answers["retrieve"] = {"hits": [hit]}
    async with running([entry("e", engine)]) as gateway:
        assert (await gateway.retrieve())["hits"]
        await gateway.call("retrieve", {"query": [{"type": "image", "uri": named.url, "mimeType": "image/png"}]})
        await gateway.call("feedback", {"signals": [{"hitId": named.url, "used": True}]})
    assert named.connections == 0
