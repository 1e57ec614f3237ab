"""The ways in which an engine can be sick, each by its name."""

import asyncio
import gzip
import json
import socket
import struct
from typing import Final

from tests.chaos.sick_engine import Fault, Json, SickEngine, blackhole, http, refuse

BOMB: Final = gzip.compress(b" " * 64 * 1024 * 1024, 9)
"""64 KiB that become 64 MiB."""

SLOWER = 0.2
"""Seconds that an engine which is ten times slower takes; it answers in time."""


def written(engine: SickEngine, message: Json) -> bytes:
    """What a well engine would send as its body."""
    return json.dumps(engine.answer(message)).encode()


async def hang(engine: SickEngine, message: Json, writer: asyncio.StreamWriter) -> bool:
    """It takes the request and says nothing."""
    await engine.healed.wait()
    return False


async def hang_mid_body(engine: SickEngine, message: Json, writer: asyncio.StreamWriter) -> bool:
    """It begins its answer and stops in the middle."""
    body = written(engine, message)
    writer.write(http(body[: len(body) // 2], length=len(body)))
    await writer.drain()
    await engine.healed.wait()
    return False


async def drip(engine: SickEngine, message: Json, writer: asyncio.StreamWriter) -> bool:
    """Its answer comes byte by byte, and would take minutes."""
    for byte in http(written(engine, message)):
        writer.write(bytes([byte]))
        await writer.drain()
        if engine.healed.is_set():
            return False
        await asyncio.sleep(0.05)
    return True


async def reset(engine: SickEngine, message: Json, writer: asyncio.StreamWriter) -> bool:
    """It hangs up with a reset."""
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False


async def garbage(engine: SickEngine, message: Json, writer: asyncio.StreamWriter) -> bool:
    """It sends bytes that mean nothing."""
    writer.write(engine.chance.randbytes(2000))
    await writer.drain()
    return False


async def wrong_id(engine: SickEngine, message: Json, writer: asyncio.StreamWriter) -> bool:
    """It answers another request than it was sent."""
    writer.write(http(json.dumps({**engine.answer(message), "id": "another"}).encode()))
    await writer.drain()
    return True


async def status_500(engine: SickEngine, message: Json, writer: asyncio.StreamWriter) -> bool:
    """It answers HTTP 500."""
    writer.write(http(b"Internal Server Error", 500))
    await writer.drain()
    return True


async def html(engine: SickEngine, message: Json, writer: asyncio.StreamWriter) -> bool:
    """A login page answers in its place."""
    writer.write(http(b"<html><body>Please log in</body></html>"))
    await writer.drain()
    return True


async def status_204(engine: SickEngine, message: Json, writer: asyncio.StreamWriter) -> bool:
    """It answers nothing, and says that this is all right."""
    writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
    await writer.drain()
    return True


async def internal_error(engine: SickEngine, message: Json, writer: asyncio.StreamWriter) -> bool:
    """It answers -32603."""
    error = {"code": -32603, "message": "index corrupt"}
    writer.write(http(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode()))
    await writer.drain()
    return True


async def rate_limited(engine: SickEngine, message: Json, writer: asyncio.StreamWriter) -> bool:
    """It answers HTTP 429 and wants a second of peace."""
    writer.write(http(b"slow down", 429, "Retry-After: 1"))
    await writer.drain()
    return True


async def slow(engine: SickEngine, message: Json, writer: asyncio.StreamWriter) -> bool:
    """It answers rightly, ten times slower."""
    await asyncio.sleep(SLOWER)
    writer.write(http(written(engine, message)))
    await writer.drain()
    return True


async def flapping(engine: SickEngine, message: Json, writer: asyncio.StreamWriter) -> bool:
    """Now it answers and now it resets."""
    if engine.chance.random() < 0.5:
        return await reset(engine, message, writer)
    writer.write(http(written(engine, message)))
    await writer.drain()
    return True


async def huge(engine: SickEngine, message: Json, writer: asyncio.StreamWriter) -> bool:
    """Its answer has no end that anybody would wait for."""
    writer.write(http(b"[", length=1 << 30))
    for _ in range(1024):
        writer.write(b" " * 65_536)
        await writer.drain()
    return False


async def gzip_bomb(engine: SickEngine, message: Json, writer: asyncio.StreamWriter) -> bool:
    """A little that would become a lot."""
    writer.write(http(BOMB, 200, "Content-Encoding: gzip"))
    await writer.drain()
    return True


async def truncated(engine: SickEngine, message: Json, writer: asyncio.StreamWriter) -> bool:
    """Half of its JSON, told to be whole."""
    body = written(engine, message)
    writer.write(http(body[: len(body) // 2]))
    await writer.drain()
    return True


ANSWERING: Final = frozenset({"slow", "flapping"})
"""Faults with which an engine may answer all the same."""

FAULTS: Final[dict[str, Fault]] = {
    fault.__name__: fault
    for fault in (
        refuse,
        blackhole,
        hang,
        hang_mid_body,
        drip,
        reset,
        garbage,
        wrong_id,
        status_500,
        html,
        status_204,
        internal_error,
        rate_limited,
        slow,
        flapping,
        huge,
        gzip_bomb,
        truncated,
    )
}
