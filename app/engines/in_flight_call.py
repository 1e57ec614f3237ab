"""A call of an engine under way, from the first request to the reply. Every call of an engine is one of these.

Most calls need no task: the request is written at once, and a callback runs when the answer is there. A call that has
to wait (for a connection, its turn or a handshake), or that is repeated, continues in a task of its own.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextvars import copy_context
from typing import Any, Protocol, final

from app.engines.replicas import Replica
from app.engines.transport import Exchange, Reply
from app.protocol.errors import LegError, LegTimeout


class CallOwner(Protocol):
    """The engine that started a call."""

    def attempts(self, call: "InFlightCall", after: LegError | None) -> Coroutine[Any, Any, Reply]:
        """Make further attempts within the call's deadline; `after` is the error of the first one. Raises LegError."""
        ...

    def finish(self, call: "InFlightCall", exchange: Exchange) -> Reply | None:
        """Read the answer of the first attempt; None if the call continues in a task. Raises LegError."""
        ...

    def abandon(self, call: "InFlightCall", exchange: Exchange, *, expired: bool) -> LegTimeout:
        """Give the first attempt up: its deadline has come (`expired`), or the caller has left."""
        ...


@final
class InFlightCall:
    """One call. It completes by callback (`add_done_callback`, then `collect`), or is awaited.

    Who uses the callback calls `expire` at the deadline; an awaited call keeps its deadline by itself.
    """

    __slots__ = (
        "_callback",
        "_context",
        "_error",
        "_exchange",
        "_owner",
        "deadline",
        "generation",
        "idempotent",
        "method",
        "params",
        "replica",
        "started",
        "task",
        "translate",
    )

    def __init__(
        self, owner: CallOwner, method: str, params: Mapping[str, Any], deadline: float, *, idempotent: bool = True
    ) -> None:
        """`deadline` is in event-loop seconds. A call that is not `idempotent` is sent at most once."""
        self.method = method
        self.params = params
        self.deadline = deadline
        self.idempotent = idempotent
        self.replica: Replica | None = None
        self.generation = 0
        """Of the breaker when the first attempt was admitted."""
        self.started = 0.0
        """Event-loop seconds."""
        self.task: asyncio.Task[Reply] | None = None
        """The task that continues the call; None while none is needed."""
        self.translate: Callable[[LegError], LegError] | None = None
        """Replaces an error before it is raised, for callers that know more about the engine."""
        self._owner = owner
        self._callback: Callable[[InFlightCall], None] | None = None
        self._exchange: Exchange | None = None
        self._error: LegError | None = None
        # A repeated attempt starts in a callback of a connection, but has to run in the context of the request:
        # its trace, its request id, and the bytes that it holds.
        self._context = copy_context()

    def begin(self, exchange: Exchange, replica: Replica, generation: int, now: float) -> None:
        """Set the first attempt, whose request has been written without waiting."""
        self._exchange = exchange
        self.replica = replica
        self.generation = generation
        self.started = now

    def continue_in_task(self, after: LegError | None) -> None:
        """Make the attempts, or the further ones `after` an error of the first, in a task."""
        loop = asyncio.get_running_loop()
        self.task = loop.create_task(self._owner.attempts(self, after), context=self._context)
        self.task.add_done_callback(self._task_ended)

    def done(self) -> bool:
        """Whether `collect` has something to return."""
        exchange, task = self._exchange, self.task
        if self._error is not None:
            return True
        if exchange is not None:
            return exchange.done()
        return task is not None and task.done()

    def add_done_callback(self, callback: "Callable[[InFlightCall], None]") -> None:
        """Set the function that is called, in any context, whenever `collect` can be called. There is only one.

        A cancelled call never calls it.
        """
        self._callback = callback
        exchange = self._exchange
        if exchange is not None:
            exchange.add_done_callback(self._notify)

    def collect(self) -> Reply | None:
        """The reply of a call that is done; None if it is repeated, and will call back again.

        Raises LegError; CancelledError if its task was cancelled by something else than `cancel`.
        """
        exchange, task, error = self._exchange, self.task, self._error
        try:
            if error is not None:
                raise error
            if exchange is not None:
                self._exchange = None
                return self._owner.finish(self, exchange)
            assert task is not None, "the call is not done"
            return task.result()
        except LegError as failed:
            raise self._translated(failed) from None

    def expire(self) -> None:
        """Fail with LegTimeout, because the deadline has come, unless an answer is there. A task does so by itself."""
        exchange = self._exchange
        if exchange is None or exchange.done():
            return
        self._exchange = None
        self._error = self._owner.abandon(self, exchange, expired=True)
        self._notify(None)

    def cancel(self) -> None:
        """Stop, since nobody waits for the reply any more. The task, if there is one, ends a little later."""
        exchange, task = self._exchange, self.task
        self._callback = None
        self._exchange = None
        if exchange is not None:
            self._owner.abandon(self, exchange, expired=False)
        if task is not None:
            task.cancel()

    def _task_ended(self, task: asyncio.Task[Reply]) -> None:
        if not task.cancelled():
            task.exception()  # asyncio logs an exception that nobody has looked at, as after `cancel`
        self._notify(None)

    def _notify(self, _: object) -> None:
        callback = self._callback
        if callback is not None:
            callback(self)

    def __await__(self) -> Generator[Any, None, Reply]:
        """Wait for the reply until the deadline. Raises LegError. Cancelling the waiting task cancels the call."""
        reply: Reply | None = None
        if self.task is None:
            loop = asyncio.get_running_loop()
            woken: asyncio.Future[None] = loop.create_future()
            self.add_done_callback(lambda _: None if woken.done() else woken.set_result(None))
            timer = loop.call_at(self.deadline, self.expire)
            try:
                yield from woken
            except asyncio.CancelledError:
                self.cancel()
                raise
            finally:
                timer.cancel()
            self._callback = None
            reply = self.collect()
        if reply is None:
            task = self.task
            assert task is not None
            try:
                # asyncio passes a cancellation on to the task that is awaited, and waits for its end.
                reply = yield from task.__await__()
            except LegError as failed:
                raise self._translated(failed) from None
        return reply

    def _translated(self, error: LegError) -> LegError:
        return error if self.translate is None else self.translate(error)

    def __repr__(self) -> str:
        state = "done" if self.done() else "in a task" if self.task is not None else "without a task"
        return f"<InFlightCall {self.method} {state}, {self._exchange!r}>"
