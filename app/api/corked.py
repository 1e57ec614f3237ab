"""A transport that joins what is written in one turn of the loop, and closes without losing the answer.

It decides when written bytes leave, and how a connection ends for a caller that is still sending. It refuses to know
what the bytes say.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

LINGER = 5.0
"""Seconds a closed connection may take to send what is left to a caller that hardly reads, or to hear it out."""


class CorkedTransport:
    """Stands before a transport: the first write of an iteration waits for a second one, or for the iteration's end.

    `hearing` says, when the connection is closed, whether its caller is still sending: then only our side is shut.
    """

    __slots__ = ("_hearing", "_held", "_loop", "_transport", "lingers_until")

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        hearing: Callable[[], bool] = lambda: False,
    ) -> None:
        self.lingers_until: float | None = None
        """Our side is shut; what still comes is thrown away until then (event-loop seconds)."""
        self._transport = transport
        self._loop = loop
        self._hearing = hearing
        self._held = b""

    def write(self, data: bytes) -> None:
        """Hold `data`, or send it together with what is held."""
        if self._held:
            held, self._held = self._held, b""
            if not self.is_closing():  # uvloop raises, where the other loops say nothing
                self._transport.write(held + data)
        else:
            self._held = data
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        """Send what is held, then close as the transport does; a caller that is still sending is heard out first.

        With bytes of it unread the system would reset the connection, and the caller lose the answer it never read.
        """
        if self.is_closing():
            return
        self._flush()
        if self._hearing() and self._transport.can_write_eof():
            self.lingers_until = self._loop.time() + LINGER
            self._transport.write_eof()
            self._transport.resume_reading()
            return
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._loop.call_later(LINGER, self._transport.abort)

    def hang_up(self) -> None:
        """Close an idle connection, and let the caller's system know it in this very moment.

        The transport closes its socket an iteration later; a request that comes in between would be lost.
        """
        sock = self._transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0 and self._transport.get_extra_info("sslcontext") is None:
            with suppress(OSError), socket.socket(fileno=os.dup(sock.fileno())) as same:
                same.shutdown(socket.SHUT_WR)
        self.close()

    def send(self, data: bytes) -> None:
        """Send a whole answer now, after what is held."""
        if self._held:
            self._flush()
        if not self.is_closing():
            self._transport.write(data)

    def is_closing(self) -> bool:
        """Whether nothing can be written any more."""
        return self.lingers_until is not None or self._transport.is_closing()

    def _flush(self) -> None:
        held, self._held = self._held, b""
        if held and not self.is_closing():  # the connection may have been lost since
            self._transport.write(held)

    # -- as the transport has it

    def abort(self) -> None:
        """Close without sending what is not sent yet."""
        self._transport.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What is known of the connection."""
        return self._transport.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        """Bytes that the caller has not made room for yet."""
        return self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        """Read nothing more of the caller for now."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        self._transport.resume_reading()

    def __repr__(self) -> str:
        state = "" if self.lingers_until is None else ", only hearing its caller out"
        return f"<CorkedTransport holding {len(self._held)} bytes of {self._transport!r}{state}>"
