"""Callers that send slowly, read slowly, send too much or never stop: heard out or cut off, never kept for ever."""

import asyncio
import json
import socket
from typing import Any

import pytest

from tests.support.listening_gateway import asking, listening, question
from tests.support.log_lines import own_log
from tests.support.running_gateway import PATIENCE, entry, until
from tests.support.scripted_engine import hit

PING = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
HASTY = {"server": {"message_timeout_seconds": 0.3, "send_timeout_seconds": 0.5}}


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /rcp HTTP/1.1\r\nhos",
        b"POST /rcp HTTP/1.1\r\nhost: g\r\ncontent-length: 100\r\n\r\n{",
        b"POST /rcp HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n",
    ],
    ids=["head", "body", "chunks"],
)
async def test_a_request_without_end_is_cut_off(engines: Any, sent: bytes) -> None:
    """A request that does not come to its end in time is answered 408, also after others on its connection."""
    async with listening([entry("e", await engines())], HASTY) as (state, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /rcp HTTP/1.1\r\nhost: g\r\ncontent-length: %d\r\n\r\n%b" % (len(PING), PING) + sent)
        async with asyncio.timeout(PATIENCE):
            answers = await reader.read()
        assert answers.startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1 408 Request Timeout" in answers
        assert json.loads(answers.rpartition(b"\r\n\r\n")[2])["error"]["code"] == -32600
        assert state.admission.in_flight == 0
        writer.close()


async def test_a_connection_that_says_nothing_is_closed(engines: Any) -> None:
    """Who connects and never asks is not kept for longer than an idle connection is."""
    settings = {"server": {"message_timeout_seconds": 0.2, "keep_alive_seconds": 1}}
    async with listening([entry("e", await engines())], settings) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(PATIENCE):
            assert await reader.read() == b""
        writer.close()


async def test_who_does_not_read_its_answers_is_cut_off(engines: Any) -> None:
    """A caller that asks again and again and reads nothing costs a bounded buffer, and that not for long."""
    engine = await engines(results=[hit(n, text="x" * 50_000) for n in range(20)])
    body = json.dumps(question(None, k=20)).encode()
    request = b"POST /rcp HTTP/1.1\r\nhost: g\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    async with (
        listening([entry("e", engine)], HASTY, send_buffer=4096) as (state, port),
        asking(port, question(None, k=20), receive_buffer=4096, limit=1024) as reader,
    ):
        reader.writer.write(request * 20)
        await until(lambda: cut(state, "unread") == 1)
        assert len(engine.requests()) <= 3
        await until(lambda: state.admission.in_flight == 0)


def cut(state: Any, reason: str) -> float | None:
    """How many connections were cut for this reason."""
    value: float | None = state.metrics.registry.get_sample_value(
        "rcp_gateway_connections_cut_total", {"reason": reason}
    )
    return value


async def test_a_slow_reader_of_a_stream_leaves_no_error_in_the_log(engines: Any) -> None:
    """A stream that is given up is one warning; the server does not complain of an answer without an end."""
    engine = await engines(results=[hit(n, text="x" * 100_000) for n in range(50)])
    settings = {"server": {"send_timeout_seconds": 0.3}}
    with own_log() as log:
        async with (
            listening([entry("e", engine)], settings, send_buffer=4096) as (state, port),
            asking(port, question(k=50), receive_buffer=4096, limit=1024) as reader,
        ):
            await reader.head()
            await until(lambda: any(line["event"] == "slow_caller" for line in log.lines))
            await until(lambda: state.admission.in_flight == 0)
            await reader.until_closed()
        assert not [line for line in log.lines if line["level"] == "error"]


def blocking_caller(port: int, head: bytes, body: bytes, pieces: int) -> tuple[bytes, bool]:
    """(its answer, whether it could send all) of a caller that reads only once it has sent everything."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as sock:
        sent = True
        try:
            sock.sendall(head)
            for _ in range(pieces):
                sock.sendall(body)
        except ConnectionError:
            sent = False
        answer = b""
        try:
            while piece := sock.recv(65_536):
                answer += piece
        except ConnectionError:
            pass
        return answer, sent


CHUNK = b"10000\r\n" + b"x" * 65_536 + b"\r\n"


@pytest.mark.parametrize(
    ("target", "headers", "status", "code"),
    [
        (b"POST /rcp", b"transfer-encoding: chunked\r\n", 413, -32013),
        (b"POST /rcp", b"content-length: 20000000\r\n", 413, -32013),
        (b"POST /nowhere", b"transfer-encoding: chunked\r\n", 404, -32015),
        (b"PUT /rcp", b"content-length: 20000000\r\n", 405, -32600),
        (b"POST /rcp", b"content-encoding: gzip\r\ntransfer-encoding: chunked\r\n", 415, -32600),
    ],
    ids=["413 chunked", "413 announced", "404", "405", "415"],
)
async def test_who_sends_first_and_reads_later_finds_its_answer(
    engines: Any, target: bytes, headers: bytes, status: int, code: int
) -> None:
    """A refused caller that goes on sending for twenty megabytes can do so, and then read why (B68)."""
    async with listening([entry("e", await engines())]) as (_, port):
        head = target + b" HTTP/1.1\r\nhost: g\r\n" + headers + b"\r\n"
        body = CHUNK if b"chunked" in headers else b"x" * 65_536
        answer, sent = await asyncio.to_thread(blocking_caller, port, head, body, 300)
    assert sent
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == code


async def test_who_never_stops_sending_is_cut_off(engines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is thrown away of a refused body is bounded, in bytes and in time."""
    monkeypatch.setattr("app.server.http_protocol.MAX_DISCARDED_BYTES", 1_000_000)
    async with listening([entry("e", await engines())]) as (_, port):
        head = b"POST /rcp HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n"
        _, sent = await asyncio.to_thread(blocking_caller, port, head, CHUNK, 2000)
        assert not sent
    monkeypatch.setattr("app.server.buffered_transport.LINGER_SECONDS", 0.1)
    async with listening([entry("e", await engines())]) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /rcp HTTP/1.1\r\nhost: g\r\ncontent-length: 2000000\r\n\r\n")
        async with asyncio.timeout(PATIENCE):
            assert b"413" in await reader.read()
            while True:
                writer.write(b"x")
                try:
                    await writer.drain()
                except ConnectionError:
                    break
                await asyncio.sleep(0.05)
        writer.close()


async def test_http_1_0_gets_a_plain_answer(engines: Any) -> None:
    """A caller of HTTP/1.0 knows no chunks: it gets one body with its length even if it takes events."""
    async with listening([entry("e", await engines())]) as (_, port):
        body = json.dumps(question()).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /rcp HTTP/1.0\r\naccept: text/event-stream\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        answer = await reader.read()
        writer.close()
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert json.loads(rest)["result"]["hits"]


async def test_who_talks_no_http_can_read_why_not(engines: Any) -> None:
    """Bytes that are no HTTP are answered 400, also if more of them are on their way."""
    async with listening([entry("e", await engines())]) as (_, port):
        answer, _ = await asyncio.to_thread(blocking_caller, port, b"\x16\x03\x01 no HTTP\r\n\r\n", b"x" * 65_536, 20)
    assert answer.startswith(b"HTTP/1.1 400 ")
