"""Callers that send slowly, read slowly, send too much or never stop: heard out or cut off, never kept for ever."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway_process import gateway_process
from tests.support.listening_gateway import asking, listening, question
from tests.support.log_lines import own_log
from tests.support.running_gateway import PATIENCE, entry, until
from tests.support.scripted_engine import hang, hit, hits

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


def retrieve(message_id: int = 1) -> bytes:
    """A whole request."""
    body = json.dumps(question(None, message_id=message_id)).encode()
    return b"POST /rcp HTTP/1.1\r\nhost: g\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


async def test_a_half_closed_caller_is_answered(engines: Any) -> None:
    """Who shuts its side down after its requests gets all answers, and then the connection is closed."""
    async with listening([entry("e", await engines())]) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(retrieve(1) + retrieve(2))
        writer.write_eof()
        async with asyncio.timeout(PATIENCE):
            answers = await reader.read()
        writer.close()
    assert answers.count(b"HTTP/1.1 200") == 2
    assert answers.index(b'"id":1,') < answers.index(b'"id":2,')


async def test_a_half_closed_caller_is_waited_for(engines: Any, tmp_path: Path) -> None:
    """It is answered also if that takes long: what asks whether it is still there is an interim answer (100)."""
    engine = await engines()
    release = asyncio.Event()

    async def slow(_: Any) -> Any:
        await release.wait()
        return {"hits": hits("late")}

    engine.answers["retrieve"] = slow
    async with gateway_process(tmp_path, [entry("e", engine, timeoutMs=60_000)]) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(retrieve())
        writer.write_eof()
        async with asyncio.timeout(PATIENCE):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            release.set()
            answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"late"' in answer


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_a_caller_that_is_gone_is_not_worked_for(engines: Any, tmp_path: Path, accept: str) -> None:
    """Who closes its connection instead cancels its request, a plain one and a stream."""
    engine, quick = await engines(), await engines()
    engine.answers["retrieve"] = hang
    entries = [entry("e", engine, timeoutMs=60_000), entry("q", quick)]
    settings = {"retrieve": {"deadline_ms": 60_000}}
    async with gateway_process(tmp_path, entries, settings) as gateway:
        async with asking(gateway.port, question(), accept=accept) as reader:
            if accept == "text/event-stream":
                await (await reader.head()).frame()
            await until(lambda: len(engine.requests()) == 1)
        async with asyncio.timeout(PATIENCE):
            while not [line for line in gateway.log if line.get("outcome") == "cancelled"]:
                await asyncio.sleep(0.05)
    assert "Traceback" not in gateway.text


async def test_white_space_around_header_values_is_not_part_of_them(engines: Any) -> None:
    """Host, content coding and all others are read without it (RFC 9110 5.5)."""
    async with listening([entry("e", await engines())], {"server": {"allowed_hosts": ["g"]}}) as (_, port):
        lines = b"host: g \t\r\ncontent-encoding: identity \r\nx-request-id:  abc \t\r\nconnection: close \r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /rcp HTTP/1.1\r\n%bcontent-length: %d \r\n\r\n%b" % (lines, len(PING), PING))
        async with asyncio.timeout(PATIENCE):
            answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"x-request-id: abc\r\n" in answer


async def test_nobody_is_redirected(engines: Any) -> None:
    """A path with a slash too many is 404: a redirect would lead to whatever stands in the Host header."""
    async with listening([entry("e", await engines())]) as (_, port):
        for target in (b"/metrics/", b"/livez/", b"/admin/overview/"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET %b HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n" % target)
            answer = await reader.read()
            writer.close()
            assert answer.startswith(b"HTTP/1.1 404"), target
            assert b"evil" not in answer
