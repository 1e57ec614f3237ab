"""A semaphore with a fair, bounded queue: limits how many calls of one engine run at once."""

import asyncio
from collections import deque
from contextlib import suppress


class SemaphoreQueueFull(Exception):
    """The queue is full: the caller was not admitted and must not `leave`."""


class BoundedSemaphore:
    """Lets `limit` holders in at once; up to `queue` more wait, first come first served.

    Waiting ends by cancellation at any moment without losing a place.
    """

    __slots__ = ("_waiters", "in_flight", "limit", "queue")

    def __init__(self, limit: int, queue: int) -> None:
        self.limit = limit
        self.queue = queue
        self.in_flight = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """How many wait to be let in."""
        return len(self._waiters)

    def try_enter(self) -> bool:
        """Enter at once if there is room and nobody waits; say whether it worked."""
        if self.in_flight < self.limit and not self._waiters:
            self.in_flight += 1
            return True
        return False

    async def enter(self) -> None:
        """Wait for a place. Raises SemaphoreQueueFull at once if the queue is full."""
        if self.try_enter():
            return
        if len(self._waiters) >= self.queue:
            raise SemaphoreQueueFull
        place = asyncio.get_running_loop().create_future()
        self._waiters.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.leave()  # the place was handed over in the very moment of the cancellation
            else:
                with suppress(ValueError):  # leave() may have passed it over already
                    self._waiters.remove(place)
            raise

    def leave(self) -> None:
        """Give the place back: to the first who waits, if any."""
        while self._waiters and self.in_flight <= self.limit:  # above it after a `resize`: the place goes
            place = self._waiters.popleft()
            if not place.done():
                place.set_result(None)
                return
        self.in_flight -= 1

    def resize(self, limit: int, queue: int) -> None:
        """Apply other bounds. Calls under way stay; if there is room now, those that wait are let in."""
        self.limit = limit
        self.queue = queue
        while self._waiters and self.in_flight < self.limit:
            place = self._waiters.popleft()
            if not place.done():
                self.in_flight += 1
                place.set_result(None)

    def __repr__(self) -> str:
        return f"<BoundedSemaphore {self.in_flight}/{self.limit} in flight, {self.waiting}/{self.queue} waiting>"
