"""Single flight: callers that ask for the same at the same time share one piece of work.

The work runs in a task that belongs to no caller. A caller that is cancelled leaves; the work is cancelled with the
last one. Results and errors are not kept: a request after the end starts another flight.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

MOST_CALLERS: Final = 1_000
"""Callers of one flight. The next equal request starts another flight, so one slow answer has a bounded audience."""


class Flight(Generic[T]):
    """One piece of work under way, and the number of callers that wait for it."""

    __slots__ = ("callers", "joinable_until", "most_callers", "task")

    def __init__(self, task: asyncio.Task[T], joinable_until: float) -> None:
        self.task = task
        self.joinable_until = joinable_until
        """Event-loop seconds. A later caller would get data that is older than it may expect."""
        self.callers = self.most_callers = 0

    def __repr__(self) -> str:
        return f"<Flight of {self.callers} callers, {'done' if self.task.done() else 'running'}>"


class SingleFlight(Generic[T]):
    """The flights of one process by key."""

    def __init__(
        self, join_seconds: float, most_callers: int = MOST_CALLERS, ended: Callable[[int], None] | None = None
    ) -> None:
        """`ended` is called with the largest number of callers that waited for a flight at once, when it ends."""
        self.join_seconds = join_seconds
        self._most_callers = most_callers
        self._report = ended
        self._flights: dict[bytes, Flight[T]] = {}
        # The event loop keeps weak references only, and a flight that was replaced under its key may still run.
        self._tasks: set[asyncio.Task[T]] = set()

    async def run(self, key: bytes, work: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T, bool]:
        """The result of the work under `key`, and whether the caller joined one under way. Raises what it raises."""
        flight = self._joinable(key)
        joined = flight is not None
        if flight is None:
            flight = self._start(key, work)
        flight.callers += 1
        flight.most_callers = max(flight.most_callers, flight.callers)
        try:
            # Unlike `await task`, a cancelled `wait` leaves the task running for the others.
            await asyncio.wait((flight.task,))
        finally:
            flight.callers -= 1
            if flight.callers == 0 and not flight.task.done():
                # Nobody may join work that is being cancelled, so it leaves the table before it has ended.
                self._remove(key, flight)
                flight.task.cancel()
        return flight.task.result(), joined

    def retire(self, key: bytes) -> None:
        """Let nobody else join the flight under `key`; its present callers are still answered (a purge)."""
        self._flights.pop(key, None)

    def retire_all(self) -> None:
        """The same for all flights."""
        self._flights.clear()

    async def close(self) -> None:
        """Cancel what is under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _joinable(self, key: bytes) -> Flight[T] | None:
        flight = self._flights.get(key)
        if flight is None or flight.task.done() or flight.callers >= self._most_callers:
            return None
        return flight if asyncio.get_running_loop().time() < flight.joinable_until else None

    def _start(self, key: bytes, work: Callable[[], Coroutine[Any, Any, T]]) -> Flight[T]:
        loop = asyncio.get_running_loop()
        flight = Flight(loop.create_task(work()), loop.time() + self.join_seconds)
        self._flights[key] = flight
        self._tasks.add(flight.task)
        flight.task.add_done_callback(lambda task: self._ended(key, flight, task))
        return flight

    def _ended(self, key: bytes, flight: Flight[T], task: asyncio.Task[T]) -> None:
        self._tasks.discard(task)
        if self._report is not None:
            self._report(flight.most_callers)
        self._remove(key, flight)
        if not task.cancelled():
            # After the last caller has left nobody reads the error, and asyncio would log it as never retrieved.
            task.exception()

    def _remove(self, key: bytes, flight: Flight[T]) -> None:
        # A later flight may have taken the key already.
        if self._flights.get(key) is flight:
            del self._flights[key]

    def __repr__(self) -> str:
        return f"<SingleFlight {len(self._flights)} joinable of {len(self._tasks)} running>"
