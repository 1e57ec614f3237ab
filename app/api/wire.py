"""The HTTP/1.1 server protocol of the doors: uvicorn's own, with a response's head and body written in one system call.

uvicorn writes the head as soon as it has it; two small writes per answer wake the caller twice and cost a tenth of a
federated retrieve. It decides when written bytes leave, never later than at the end of the loop's iteration, and how
long a closed connection lingers. It refuses to know what they say; all else is as uvicorn has it.
"""

import asyncio
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


class DoorProtocol(HttpToolsProtocol):
    """uvicorn's protocol behind a CorkedTransport."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """One connection was accepted."""
        corked: Any = CorkedTransport(transport, self.loop)  # type: ignore[arg-type]
        super().connection_made(corked)
