"""The body of an engine's HTTP response: bounded in size, decompressed under the same bound, and read by its status."""

import time
import zlib
from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from app.engines.transport import Content, call_error_of, read_reply
from app.protocol import envelope
from app.protocol.errors import (
    BadStatus,
    LegError,
    LegRateLimited,
    ParseError,
    PayloadTooLarge,
    ProtocolViolation,
    ResponseTooLarge,
)

CHUNK = 65_536
"""Bytes decompressed at a time: how far beyond the cap a compressed body can reach."""

SLICE = 16_384
"""Compressed bytes given to zlib at a time."""

_CODINGS: dict[bytes, int] = {b"gzip": 31, b"x-gzip": 31, b"deflate": 0}
"""Supported content codings, with zlib's `wbits`; that of deflate depends on its first byte."""


class ResponseBody:
    """The pieces of one body as they arrive, never more than `limit` decoded bytes of them."""

    __slots__ = ("_inflate", "_kept", "_limit", "_wbits", "size")

    def __init__(self, limit: int, coding: bytes | None = None) -> None:
        """`coding`: the Content-Encoding header. Raises ProtocolViolation for one that is not understood."""
        self._limit = limit
        self.size = 0
        """Decoded bytes so far."""
        self._kept: bytes | bytearray = b""
        self._inflate: Any = None
        self._wbits = None if coding is None else _wbits(coding)

    def expect(self, length: int) -> None:
        """A Content-Length was announced. Raises ResponseTooLarge if the body cannot fit."""
        if length > self._limit and self._wbits is None:
            raise self._too_large()

    def feed(self, piece: bytes) -> None:
        """Add the next piece. Raises ResponseTooLarge, ProtocolViolation."""
        # Most responses are not compressed.
        if self._wbits is None:
            self._keep(piece)
        else:
            try:
                self._decompress(piece, self._wbits)
            except zlib.error as fault:
                raise ProtocolViolation(f"the compressed body is damaged: {fault}") from None

    def finish(self) -> bytes | bytearray:
        """The whole body. Raises ProtocolViolation if a compressed one ends early."""
        if self._inflate is not None and not self._inflate.eof:
            raise ProtocolViolation("the compressed body ends early")
        return self._kept

    def _keep(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.size > self._limit:
            self._kept = b""
            raise self._too_large()
        if not self._kept:
            self._kept = piece  # most bodies come in one piece: no copy
        elif type(self._kept) is bytearray:
            self._kept += piece
        else:
            self._kept = bytearray(self._kept)
            self._kept += piece

    def _decompress(self, piece: bytes, wbits: int) -> None:
        if self._inflate is None:
            if not piece:
                return
            # "deflate" is a zlib stream by the book and a raw one in the field; only the former begins with CM = 8.
            self._inflate = zlib.decompressobj(wbits or (15 if piece[0] & 0x0F == 8 else -15))
        # zlib hands back a copy of what it did not get to, so it is not given much at a time.
        view = memoryview(piece)
        for start in range(0, len(piece), SLICE):
            self._inflate_slice(view[start : start + SLICE])

    def _inflate_slice(self, tail: bytes | memoryview) -> None:
        inflate = self._inflate
        while not inflate.eof:
            opened = inflate.decompress(tail, CHUNK)
            if opened:
                self._keep(opened)
            tail = inflate.unconsumed_tail
            # Output may still be pending inside zlib when all input is used up but the chunk is full.
            if not tail and len(opened) < CHUNK:
                break
        if inflate.eof and (tail or inflate.unused_data):
            raise ProtocolViolation("bytes after the end of the compressed body")

    def _too_large(self) -> ResponseTooLarge:
        return ResponseTooLarge(f"the answer is larger than {self._limit} bytes")

    def __repr__(self) -> str:
        return f"<ResponseBody {self.size}/{self._limit} bytes{'' if self._wbits is None else ', compressed'}>"


def _wbits(coding: bytes) -> int | None:
    name = coding.strip().lower()
    if name in (b"", b"identity"):
        return None
    wbits = _CODINGS.get(name)
    if wbits is None:
        raise ProtocolViolation(f"the answer has a content encoding that was not requested: {name.decode('latin-1')}")
    return wbits


def read_answer(status: int, body: Content, retry_after: bytes | None, call_id: int) -> dict[str, Any]:
    """The `result` of an HTTP answer (RCP §5.2). Raises LegError for everything else it can say."""
    if status == 200:
        return read_reply(body, call_id)
    raise _refusal(status, body, retry_after_ms(retry_after))


def _refusal(status: int, body: Content, wait_ms: int | None) -> LegError:
    """What a status other than 200 means. A JSON-RPC error in the body keeps its code and message."""
    reported = _error_in(body)
    code = reported.code if reported is not None else None
    text = f"HTTP {status}" if reported is None else f"HTTP {status}: {reported.message}"
    if reported is not None and reported.retry_after_ms is not None:
        wait_ms = reported.retry_after_ms
    if status == 429:
        return LegRateLimited(text, code=code, retry_after_ms=wait_ms, status=status)
    # Even with a JSON-RPC error in the body: these are about the gateway's credentials.
    if status in (401, 403):
        return BadStatus(text, status=status, code=code)
    if reported is not None:
        reported.status, reported.retry_after_ms = status, wait_ms
        return reported
    if status < 300 and not body:
        return ProtocolViolation(f"the engine sent an empty body (HTTP {status})")
    if status < 200:
        return ProtocolViolation(f"the engine switched protocols (HTTP {status})")
    if 300 <= status < 400:
        return BadStatus(f"HTTP {status}, a redirect, which is not followed", status=status)
    return BadStatus(text, status=status, retry_after_ms=wait_ms)


def _error_in(body: Content) -> LegError | None:
    """The JSON-RPC error that the body is, if it is one."""
    try:
        message = envelope.loads_answer(body)
    except (ParseError, PayloadTooLarge):
        return None
    error = message.get("error") if type(message) is dict else None
    error_of_body = call_error_of(error) if type(error) is dict else None
    return error_of_body if error_of_body is not None and error_of_body.code is not None else None


def retry_after_ms(value: bytes | None, now: Callable[[], float] = time.time) -> int | None:
    """A Retry-After header, seconds or an HTTP date, in milliseconds from now; None if there is none to make out."""
    if value is None:
        return None
    text = value.decode("latin-1").strip()
    if text.isascii() and text.isdigit():
        return int(text[:9]) * 1000  # thirty years will do
    try:
        date = parsedate_to_datetime(text)
        date = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
        return max(0, int((date.timestamp() - now()) * 1000))
    except (ValueError, OverflowError):
        return None
