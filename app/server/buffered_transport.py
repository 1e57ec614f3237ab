"""A transport that joins the writes of one event-loop turn, and closes without losing an answer that was written.

An answer is written as a head and a body. Sent in one system call, they wake the caller once.
"""

import asyncio
import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

LINGER_SECONDS = 5.0
"""Longest time in which a closed connection sends the rest of its answer, or reads what its caller still sends."""


def _no() -> bool:
    return False


class BufferedTransport:
    """Wraps an asyncio transport. The first write of a turn is held until the second one, or until the turn ends.

    `still_sending` says at the time of `close` whether the caller may have sent bytes that were not read.
    """

    __slots__ = ("_held", "_loop", "_still_sending", "_transport", "lingers_until")

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        still_sending: Callable[[], bool],
    ) -> None:
        self.lingers_until: float | None = None
        """Set once our side is closed and the caller's is not: input is discarded until then (event-loop seconds)."""
        self._transport = transport
        self._loop = loop
        self._still_sending = still_sending
        self._held = b""

    def write(self, data: bytes) -> None:
        """Hold `data`, or send it together with what is held."""
        if self._held:
            held, self._held = self._held, b""
            if not self.is_closing():  # uvloop raises where asyncio ignores the write
                self._transport.write(held + data)
        else:
            self._held = data
            self._loop.call_soon(self._flush)

    def write_now(self, data: bytes) -> None:
        """Send `data` in this turn, after what is held."""
        if self._held:
            self._flush()
        if not self.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Send what is held and close. If the caller is still sending, close only our side and read on for a while.

        If a socket is closed with unread input, the kernel resets the connection and the caller may lose the answer.
        """
        if self.is_closing():
            return
        self._flush()
        if self._still_sending() and self._transport.can_write_eof():
            self.lingers_until = self._loop.time() + LINGER_SECONDS
            self._transport.write_eof()
            self._transport.resume_reading()
            return
        self._close()

    def hang_up(self) -> None:
        """Close at once, without waiting for the caller to stop sending.

        The transport closes its socket one turn later. Shutting the socket down here tells the caller's kernel now, so
        that fewer requests are sent into a connection that is closing.
        """
        if self.is_closing():
            return
        self._flush()
        sock = self._transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0 and self._transport.get_extra_info("sslcontext") is None:
            with suppress(OSError), socket.socket(fileno=os.dup(sock.fileno())) as duplicate:
                duplicate.shutdown(socket.SHUT_WR)
        self._close()

    def abort(self) -> None:
        """Close without sending what is not sent yet."""
        self._transport.abort()

    def detach(self) -> None:
        """The connection is lost: forget who was asked about it."""
        self._still_sending = _no

    def is_closing(self) -> bool:
        """Whether nothing can be written any more."""
        return self.lingers_until is not None or self._transport.is_closing()

    def has_unread_input(self) -> bool:
        """Whether the kernel holds input that the event loop has not read yet."""
        return bool(self._poll(select.POLLIN) & select.POLLIN)

    def was_reset(self) -> bool:
        """Whether the caller's kernel has reset the connection. A loop that does not read is not told so."""
        return bool(self._poll(0) & (select.POLLERR | select.POLLHUP))

    def _poll(self, events: int) -> int:
        sock = self._transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return 0
        poll = select.poll()
        poll.register(sock.fileno(), events)
        ready = poll.poll(0)
        return ready[0][1] if ready else 0

    def _close(self) -> None:
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._loop.call_later(LINGER_SECONDS, self._transport.abort)

    def _flush(self) -> None:
        held, self._held = self._held, b""
        if held and not self.is_closing():  # the connection may have been lost since
            self._transport.write(held)

    # The rest is the wrapped transport's.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def __repr__(self) -> str:
        state = "" if self.lingers_until is None else ", lingering"
        return f"<BufferedTransport holding {len(self._held)} bytes of {self._transport!r}{state}>"
