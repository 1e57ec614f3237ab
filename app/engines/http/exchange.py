"""One HTTP request and the body of its answer, completed by a callback of the connection.

A future without an event loop: its callback runs in the moment the answer is there. An `asyncio.Future` would delay
each answer by one iteration of the loop.
"""

import asyncio
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, final

from app.engines.transport import Content, Reply
from app.protocol.errors import LegError

if TYPE_CHECKING:
    from app.engines.http.client import HttpTransport
    from app.engines.http.connection import Connection


@final
class HttpExchange:
    """Ends once: with a body, with an error, or because the answer is no longer wanted. Awaitable by one task.

    Satisfies `Exchange` if it was made by `HttpTransport.send`, which sets the transport, the connection and the id.
    """

    __slots__ = ("_body", "_callback", "_cancelled", "_error", "call_id", "connection", "transport")

    def __init__(self) -> None:
        self.transport: HttpTransport | None = None
        self.connection: Connection | None = None
        self.call_id = 0
        self._body: Content | None = None
        self._error: LegError | None = None
        self._cancelled = False
        self._callback: Callable[[Any], None] | None = None

    def done(self) -> bool:
        """Whether it has ended, for whatever reason."""
        return self._body is not None or self._error is not None or self._cancelled

    def cancelled(self) -> bool:
        """Whether the answer is no longer wanted."""
        return self._cancelled

    def result(self) -> Content:
        """The body, once it is there. Raises LegError, or CancelledError after `cancel`."""
        if self._body is None:
            if self._error is not None:
                raise self._error
            raise asyncio.CancelledError
        return self._body

    def exception(self) -> LegError | None:
        """The error it ended with, if it did."""
        return self._error

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Set the function to call when it ends, except by `cancel`. If it has ended, it is called soon."""
        if self.done():
            asyncio.get_running_loop().call_soon(callback, self)
        else:
            self._callback = callback

    def set_result(self, body: Content) -> None:
        """End with a body."""
        self._body = body
        self._notify()

    def set_exception(self, error: LegError) -> None:
        """End with an error."""
        self._error = error
        self._notify()

    def cancel(self) -> None:
        """End without calling back: the answer is no longer wanted."""
        if not self.done():
            self._cancelled = True
            self._callback = None

    def take(self) -> Reply:
        """The reply, once it is done. Raises LegError."""
        transport = self.transport
        assert transport is not None
        return transport.finish(self)

    def drop(self) -> None:
        """Stop waiting, and close the connection: the answer would arrive there with nobody to read it."""
        self.cancel()
        connection = self.connection
        if connection is not None:
            connection.abort()

    def _notify(self) -> None:
        # Cleared before the call: the exchange and its listener would otherwise keep each other alive.
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(self)

    def __await__(self) -> Generator[Any, None, Content]:
        if not self.done():
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.add_done_callback(lambda _: None if woken.done() else woken.set_result(None))
            yield from woken
        return self.result()

    def __repr__(self) -> str:
        state = "cancelled" if self._cancelled else "failed" if self._error else "done" if self.done() else "pending"
        return f"<HttpExchange {state}>"
