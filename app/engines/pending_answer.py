"""The body of an answer that is still to come, and the one who is told when it is there.

Engines room. A future without a loop: who is told is told at once, in the moment the answer is there, so that a leg
costs the loop no turn of its own. It refuses to know connections and what an answer says.
"""

import asyncio
from collections.abc import Callable, Generator
from typing import Any, final

from app.protocol.errors import LegError

Content = bytes | bytearray
"""A whole, decoded body."""


@final
class PendingAnswer:
    """Ends once: with a body, with a fault, or because nobody wants the answer any more. Awaitable by one task."""

    __slots__ = ("_body", "_cancelled", "_fault", "_told")

    def __init__(self) -> None:
        self._body: Content | None = None
        self._fault: LegError | None = None
        self._cancelled = False
        self._told: Callable[[Any], None] | None = None

    def done(self) -> bool:
        """Whether it has ended, however."""
        return self._body is not None or self._fault is not None or self._cancelled

    def cancelled(self) -> bool:
        """Whether nobody wants the answer any more."""
        return self._cancelled

    def result(self) -> Content:
        """The body, once it is there. Raises LegError, or CancelledError if nobody wanted it."""
        if self._body is None:
            if self._fault is not None:
                raise self._fault
            raise asyncio.CancelledError
        return self._body

    def exception(self) -> LegError | None:
        """The fault it ended with, if it did."""
        return self._fault

    def add_done_callback(self, told: Callable[[Any], None]) -> None:
        """Let `told` be called in the moment it ends, but for a `cancel`; soon if it has."""
        if self.done():
            asyncio.get_running_loop().call_soon(told, self)
        else:
            self._told = told

    def set_result(self, body: Content) -> None:
        """The answer is there."""
        self._body = body
        self._tell()

    def set_exception(self, fault: LegError) -> None:
        """There will be no answer."""
        self._fault = fault
        self._tell()

    def cancel(self) -> None:
        """Nobody wants the answer any more, and nobody is told."""
        if not self.done():
            self._cancelled = True
            self._told = None

    def _tell(self) -> None:
        told, self._told = self._told, None
        if told is not None:
            told(self)

    def __await__(self) -> Generator[Any, None, Content]:
        if not self.done():
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.add_done_callback(lambda _: None if ended.done() else ended.set_result(None))
            yield from ended
        return self.result()

    def __repr__(self) -> str:
        state = "cancelled" if self._cancelled else "failed" if self._fault else "done" if self.done() else "pending"
        return f"<Waiter {state}>"
