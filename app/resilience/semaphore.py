"""A semaphore with a fair, bounded queue: limits how many calls of one engine run at once."""

import asyncio
from collections import deque
from contextlib import suppress
from time import perf_counter
from typing import Final

SMOOTHING: Final = 1 / 16
"""Weight of the latest measurement in the moving average of the time between two places."""


class SemaphoreQueueFull(Exception):
    """The queue is full: the caller was not admitted and must not `leave`."""


class BoundedSemaphore:
    """Lets `limit` holders in at once; up to `queue` more wait, first come first served.

    Waiting ends by cancellation at any moment without losing a place.
    """

    __slots__ = ("_left_at", "_waiters", "in_flight", "interval", "limit", "queue")

    def __init__(self, limit: int, queue: int) -> None:
        self.limit = limit
        self.queue = queue
        self.in_flight = 0
        self.interval = 0.0
        """Moving average of the seconds between two places that became free while all were taken; 0 while unknown."""
        self._left_at = 0.0
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """How many wait to be let in."""
        return len(self._waiters)

    @property
    def expected_wait(self) -> float:
        """Seconds until a place becomes free for one who comes now, at the rate at which places became free last."""
        return 0.0 if self.in_flight < self.limit else (len(self._waiters) + 1) * self.interval

    @property
    def expected_seconds(self) -> float:
        """Seconds until one who comes now has entered and left again; 0 while there is room."""
        # By Little's law, a holder stays for `limit` intervals while the semaphore is full.
        return 0.0 if self.in_flight < self.limit else (len(self._waiters) + self.limit) * self.interval

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

    def leave(self, *, completed: bool = True) -> None:
        """Give the place back: to the first who waits, if any. `completed`: whether the work was done, not given up."""
        # Not only while somebody waits: whoever is refused because of a high estimate does not wait, and the estimate
        # would stay high.
        if self.in_flight >= self.limit:
            self._measure(completed)
        else:
            self._left_at = 0.0
        while self._waiters and self.in_flight <= self.limit:  # above it after a `resize`: the place goes
            place = self._waiters.popleft()
            if not place.done():
                place.set_result(None)
                return
        self.in_flight -= 1

    def _measure(self, completed: bool) -> None:
        now = perf_counter()
        # The first interval of a busy period includes the time before it.
        if not self._left_at:
            self._left_at = now
            return
        seconds = now - self._left_at
        # Work that was given up frees a place without anything having been done, so it must not count as progress:
        # the more calls expire, the shorter the queue would seem.
        if completed or seconds > self.interval:
            self.interval += (seconds - self.interval) * SMOOTHING
        if completed:
            self._left_at = now

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
