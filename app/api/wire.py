"""The HTTP/1.1 server protocol of the doors: uvicorn's own, with a response's head and body written in one system call.

uvicorn writes the head as soon as it has it; two small writes per answer wake the caller twice and cost a tenth of a
federated retrieve. It decides when written bytes leave, never later than at the end of the loop's iteration, and how
long a closed connection lingers. It refuses to know what they say; all else is as uvicorn has it.
"""

import asyncio
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LINGER = 5.0
"""Seconds a closed connection may take to send what is left to a caller that hardly reads."""


class CorkedTransport:
    """Stands before a transport: the first write of an iteration waits for a second one, or for the iteration's end."""

    __slots__ = ("_held", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""

    def write(self, data: bytes) -> None:
        """Hold `data`, or send it together with what is held."""
        if self._held:
            held, self._held = self._held, b""
            if not self._transport.is_closing():  # uvloop raises, where the other loops say nothing
                self._transport.write(held + data)
        else:
            self._held = data
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        """Send what is held, then close as the transport does."""
        self._flush()
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._loop.call_later(LINGER, self._transport.abort)

    def _flush(self) -> None:
        held, self._held = self._held, b""
        if held and not self._transport.is_closing():  # the connection may have been lost since
            self._transport.write(held)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def __repr__(self) -> str:
        return f"<CorkedTransport holding {len(self._held)} bytes of {self._transport!r}>"


MAX_HEAD_BYTES = 65_536
"""Longest head of a request, and longest stretch (trailers, extensions) without a body; the parser has no bound."""

_UPGRADE = re.compile(rb"\r\nupgrade(?=[ \t]*:)", re.IGNORECASE)
_NO_UPGRADE = b"\r\nX-grade"
"""As long as what it replaces, so that nothing moves."""


class DoorProtocol(HttpToolsProtocol):
    """uvicorn's protocol behind a CorkedTransport; it bounds heads, and ignores offers to upgrade (RFC 9110 §7.8).

    Java's HttpClient offers h2c with its first request, and httptools drops the body of whoever offers anything.
    """

    _silence = 0
    _progress = False

    def data_received(self, data: bytes) -> None:
        """Bytes of the caller."""
        if b"pgrade" in data or b"PGRADE" in data:
            end = data.find(b"\r\n\r\n")
            if end >= 0:
                data = _UPGRADE.sub(_NO_UPGRADE, data[:end]) + data[end:]
        self._progress = False
        super().data_received(data)
        if self._progress:
            self._silence = 0
            return
        self._silence += len(data)
        if self._silence > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def __repr__(self) -> str:
        return f"<DoorProtocol with {self._silence} bytes of an unfinished head>"

    def on_headers_complete(self) -> None:
        """A head was read to its end."""
        self._progress = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._progress = True
        super().on_body(body)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """One connection was accepted."""
        corked: Any = CorkedTransport(transport, self.loop)  # type: ignore[arg-type]
        super().connection_made(corked)
