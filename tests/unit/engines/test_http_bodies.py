"""Bodies in every framing and compression, whole and byte by byte, and their cap: for every HTTP client."""

import gzip
import json
import zlib
from contextlib import suppress

import pytest

from app.protocol.errors import (
    ProtocolViolation,
    ResponseTooLarge,
)
from tests.support.raw_peer import (
    Line,
    RawRequest,
    chunked_answer,
    http_answer,
    rpc_answer,
)
from tests.support.running_gateway import until
from tests.support.transport_kinds import Listen, Reach


def _framed(framing: str, request: RawRequest) -> bytes:
    content = json.dumps(rpc_answer(request.id, request.message["params"])).encode()
    return {
        "length": http_answer(content),
        "chunked": chunked_answer(content[:5], content[5:7], content[7:]),
        "close": http_answer(content, headers=[("Connection", "close")], length=False),
        "http/1.0": http_answer(content, length=False).replace(b"HTTP/1.1", b"HTTP/1.0"),
        "interim": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
        + http_answer(content),
        "trailers": chunked_answer(content)[:-2] + b"X-Sum: 1\r\n\r\n",
        "gzip": http_answer(gzip.compress(content), headers=[("Content-Encoding", "gzip")]),
        "x-gzip": http_answer(gzip.compress(content), headers=[("Content-Encoding", "X-GZip")]),
        "deflate": http_answer(zlib.compress(content), headers=[("Content-Encoding", "deflate")]),
        "raw deflate": http_answer(zlib.compress(content, wbits=-15), headers=[("Content-Encoding", "deflate")]),
        "chunked gzip": chunked_answer(*_bytewise(gzip.compress(content)), headers=[("Content-Encoding", "gzip")]),
    }[framing]


def _bytewise(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


FRAMINGS = (
    "length", "chunked", "close", "http/1.0", "interim", "trailers", "gzip", "x-gzip", "deflate", "raw deflate",
    "chunked gzip",
)  # fmt: skip


@pytest.mark.parametrize("framing", FRAMINGS)
async def test_body_in_every_framing(listen: Listen, reach: Reach, framing: str) -> None:
    """Bodies by length, in chunks, up to the close, after interim answers and compressed are read, time and again."""

    async def script(line: Line) -> None:
        while request := await line.request():
            line.send(_framed(framing, request))
            if framing in ("close", "http/1.0"):
                return

    transport = reach(await listen(script))
    for n in range(3):
        assert (await transport.call("retrieve", {"n": n})).result == {"n": n}


@pytest.mark.parametrize("framing", FRAMINGS)
async def test_body_byte_by_byte(listen: Listen, reach: Reach, framing: str) -> None:
    """The same when every byte arrives alone."""

    async def script(line: Line) -> None:
        if request := await line.request():
            await line.drip(_framed(framing, request))
            if framing not in ("close", "http/1.0"):
                await line.until_ended()

    transport = reach(await listen(script))
    assert (await transport.call("retrieve", {"n": 1})).result == {"n": 1}


@pytest.mark.parametrize("framing", ["length", "chunked", "close", "gzip", "deflate"])
async def test_cap_counts_decoded_bytes(listen: Listen, reach: Reach, framing: str) -> None:
    """An answer is cut off at `max_response_bytes` decoded bytes, however it is framed, and one just below is not."""

    async def script(line: Line) -> None:
        if request := await line.request():
            line.send(_framed(framing, request))
            if framing != "close":
                await line.until_ended()

    peer = await listen(script)
    shell = len(json.dumps(rpc_answer(1, {"x": ""})))
    assert await reach(peer, {"max_response_bytes": 5000}).call("retrieve", {"x": "y" * (5000 - shell)})
    with pytest.raises(ResponseTooLarge):
        await reach(peer, {"max_response_bytes": 5000}).call("retrieve", {"x": "y" * (5001 - shell)})


async def test_announced_length_is_refused_up_front(listen: Listen, reach: Reach) -> None:
    """A Content-Length above the cap is enough: the body is not waited for, and the connection is closed."""

    async def script(line: Line) -> None:
        await line.request()
        line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 20000000\r\n\r\n")
        await line.until_ended()

    peer = await listen(script)
    with pytest.raises(ResponseTooLarge):
        await reach(peer).call("retrieve", {})
    await until(lambda: peer.open_lines == 0)


async def test_endless_head(listen: Listen, reach: Reach) -> None:
    """A head that does not end is a protocol violation long before it fills the memory."""

    async def script(line: Line) -> None:
        await line.request()
        line.send(b"HTTP/1.1 200 OK\r\n")
        with suppress(ConnectionError):
            while not line.writer.transport.is_closing():
                line.send(b"X-Noise: " + b"x" * 1000 + b"\r\n")
                await line.writer.drain()

    with pytest.raises(ProtocolViolation):
        await reach(await listen(script)).call("retrieve", {})
