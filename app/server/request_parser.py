"""Reads requests with httptools, which alone decides where a message begins and ends.

What the parser lets pass although another server may read it in another way is refused here.
"""

import re
from collections.abc import Callable
from typing import NamedTuple, Protocol
from urllib.parse import unquote

import httptools

from app.telemetry.logs import logger

MAX_HEAD_BYTES = 65_536
"""Longest head of a request, and longest stretch of trailers or chunk extensions; the parser has no bound."""

UNREADABLE = "the request is not valid HTTP/1.1"
TOO_LONG = f"the head of the request is longer than {MAX_HEAD_BYTES} bytes"

_FRAMING = frozenset({b"content-length", b"transfer-encoding", b"host", b"expect"})
_PLAIN_PATH = re.compile(rb"/[A-Za-z0-9/_.-]*")


class Unreadable(ValueError):
    """The input cannot be read safely; nothing after it can be either."""


class InputEnded(Exception):
    """A request begins after the last one that the connection serves."""


class RequestHead(NamedTuple):
    """The head of one request."""

    method: bytes
    version: str
    target: bytes
    headers: list[tuple[bytes, bytes]]
    """Names in lower case, values without white space around them."""
    content_length: int | None
    """None for a body in chunks."""
    expects_continue: bool
    keep_alive: bool
    """Whether the caller keeps the connection for another request."""
    arrived: float
    """Event-loop time at which the first byte was read."""


class RequestTarget(NamedTuple):
    """What the target of a request is made of."""

    path: str
    """Decoded."""
    raw_path: bytes
    query: bytes
    host: bytes | None
    """Of an absolute target. It counts instead of the Host header (RFC 9112 §3.2.2)."""


class Receiver(Protocol):
    """What is called as requests are read."""

    def head_received(self, head: RequestHead) -> None: ...

    def body_received(self, piece: bytes) -> None: ...

    def request_received(self) -> None:
        """The last byte of the request was read."""
        ...


class RequestParser:
    """The input side of one connection."""

    def __init__(self, receiver: Receiver, now: Callable[[], float]) -> None:
        self.ended = False
        """No further request is read; set by the connection."""
        self.receiving = False
        """A request has begun to arrive and has not ended."""
        self.in_head = False
        self.messages = 0
        self.arrived = 0.0
        self._receiver = receiver
        self._now = now
        self._parser = httptools.HttpRequestParser(self)
        self._silence = 0
        """Bytes read since the last progress: the end of a head, a piece of a body, or the end of a message."""
        self._progress = False
        self._upgrade_offered = False
        self._replaying = False
        """The parser reads a head that was read before, see `_ignore_upgrade`."""
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._framing: list[tuple[bytes, bytes]] = []
        self._piece = 0
        """Bytes that the parser is reading now."""
        self._head_at_most = 0
        """Bytes read since the read in which the head began: it is no longer than that."""

    def feed(self, data: bytes) -> None:
        """Read `data`. Raises Unreadable."""
        try:
            if len(data) <= MAX_HEAD_BYTES:
                self._feed(data)
                return
            view = memoryview(data)  # in pieces, or a head within one long read would not be counted
            for start in range(0, len(data), MAX_HEAD_BYTES):
                if not self.ended:
                    self._feed(view[start : start + MAX_HEAD_BYTES])
        except httptools.HttpParserError as error:
            if not self.ended:
                raise Unreadable(_reason(error)) from None

    def close(self) -> None:
        """Nothing is read any more."""
        self.ended = True
        del self._parser, self._receiver

    def _feed(self, data: bytes | memoryview) -> None:
        self._progress = False
        size = self._piece = len(data)
        self._head_at_most += size
        while data:
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as offer:
                self._ignore_upgrade()
                data = memoryview(data)[offer.args[0] :]
        self._silence = 0 if self._progress else self._silence + size
        if self._silence > MAX_HEAD_BYTES and not self.ended:
            raise Unreadable(TOO_LONG)

    def _ignore_upgrade(self) -> None:
        """Read on after the head of a request that offers to upgrade, as if it did not (RFC 9110 §7.8).

        At such an offer the parser ends the message at its head and skips its body, which would then be taken for the
        next request. So a new parser reads a head with the same framing and no offer, and goes on with the body.
        """
        self._upgrade_offered = False
        lines = [b"%b: %b\r\n" % field for field in self._framing if field[0] not in (b"host", b"expect")]
        self._parser = httptools.HttpRequestParser(self)
        self._replaying = True
        try:
            self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(lines))
        finally:
            self._replaying = False

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self._replaying:
            return
        if self.ended:
            raise InputEnded
        self.receiving = self.in_head = True
        self.messages += 1
        self.arrived = self._now()
        self._target = b""
        self._headers = []
        self._framing = []
        self._head_at_most = self._piece

    def on_url(self, url: bytes) -> None:
        if not self._replaying:
            self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.in_head:
            return  # a trailer, which sets nothing (RFC 9110 §6.5.1)
        name = name.lower()
        value = value.strip(b" \t")  # the parser keeps white space after a value (RFC 9110 §5.5)
        self._headers.append((name, value))
        if name in _FRAMING:
            self._framing.append((name, value))

    def on_headers_complete(self) -> None:
        if self._replaying:
            return
        self.in_head = False
        self._progress = True
        self._upgrade_offered = self._parser.should_upgrade()
        if self._head_at_most > MAX_HEAD_BYTES and self._head_size() > MAX_HEAD_BYTES:
            raise Unreadable(TOO_LONG)
        self._receiver.head_received(self._read_head())

    def on_body(self, body: bytes) -> None:
        self._progress = True
        self._receiver.body_received(body)

    def on_message_complete(self) -> None:
        if self._upgrade_offered:
            return  # so the parser says at the end of the head; the body is still to come
        self._progress = True
        self.receiving = False
        self._receiver.request_received()

    # What a head says.

    def _head_size(self) -> int:
        return len(self._target) + sum(len(name) + len(value) + 4 for name, value in self._headers)

    def _read_head(self) -> RequestHead:
        method, version = self._parser.get_method(), self._parser.get_http_version()
        if method == b"CONNECT":
            raise Unreadable("CONNECT is not served")
        if version not in ("1.1", "1.0"):
            raise Unreadable(f"HTTP/{version} is not served")
        length, expectation = self._read_framing(version)
        modern = version == "1.1"
        return RequestHead(
            method=method,
            version=version,
            target=self._target,
            headers=self._headers,
            content_length=length,
            expects_continue=modern and length != 0 and expectation.lower() == b"100-continue",
            keep_alive=modern and self._parser.should_keep_alive(),
            arrived=self.arrived,
        )

    def _read_framing(self, version: str) -> tuple[int | None, bytes]:
        """(length of the body, None if it comes in chunks; expectation)."""
        length: int | None = 0
        hosts, expectation = 0, b""
        for name, value in self._framing:
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                length = int(value)
            elif name == b"transfer-encoding":
                length = None
                if version == "1.0":
                    raise Unreadable("HTTP/1.0 has no Transfer-Encoding")
            else:
                expectation = value
        if hosts > 1 or (hosts == 0 and version == "1.1"):  # RFC 9112 §3.2
            raise Unreadable("a request needs exactly one Host")
        return length, expectation

    def __repr__(self) -> str:
        state = "in a head" if self.in_head else "in a body" if self.receiving else "between requests"
        return f"<RequestParser {state}, {self._silence} bytes without progress>"


def read_target(target: bytes) -> RequestTarget:
    """The parts of a target, which may be a path, an absolute URL or `*`. Raises Unreadable."""
    if _PLAIN_PATH.fullmatch(target) or target == b"*":
        return RequestTarget(target.decode("ascii"), target, b"", None)
    host = None
    if target.startswith(b"/"):
        raw_path, _, query = target.partition(b"#")[0].partition(b"?")
    else:
        url = httptools.parse_url(target)
        if url.schema is None or url.schema.lower() not in (b"http", b"https") or not url.host or url.userinfo:
            raise Unreadable("the request target is neither a path nor a URL")
        host = b"[%b]" % url.host if b":" in url.host else url.host
        host = host if url.port is None else b"%b:%d" % (host, url.port)
        raw_path, query = url.path or b"/", url.query or b""
    return RequestTarget(unquote(raw_path.decode("ascii")), raw_path, query, host)


def _reason(error: httptools.HttpParserError) -> str:
    """What is wrong with input that the parser, or a method that it called, has refused."""
    cause = error.__context__
    if isinstance(cause, Unreadable):
        return str(cause)
    if cause is not None and not isinstance(cause, httptools.HttpParserError):
        logger().error("parser_callback_failed", exc_info=cause)
    return UNREADABLE
