"""Keeps turns of the event loop short: CPU-heavy work waits for the next turn once this one has lasted long enough.

Without it, all answers that arrive at the same moment are read in one turn, and everything else, probes included,
waits.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextvars import Context
from time import perf_counter
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


class YieldLimiter:
    """Whether a piece of work may begin in this turn of the loop. Otherwise it waits for one of the next turns.

    Belongs to one loop. Long work waits with `wait`, and one of it begins in each turn. Short work is postponed with
    `postpone`, and as much of it runs in each turn as there is time for. Both in the order in which they came: a
    callback that simply tried again in the next turn could find it used up each time, for seconds. Each turn does at
    least one piece of postponed work, even if the process was stopped for longer than a turn may last.
    """

    __slots__ = ("__weakref__", "_first", "_postponed", "_running", "_seconds", "_turning", "_until", "_waiting")

    def __init__(self, seconds: float) -> None:
        """`seconds`: how long a turn may last before further work waits."""
        self._seconds = seconds
        self._turning = False
        self._until = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._postponed: deque[tuple[Callable[[], None], Context]] = deque()
        self._running = False
        """Whether postponed work is running, which does not wait for other postponed work."""
        self._first = False
        """Whether the next piece of postponed work is the first of this turn, and is done however late it is."""

    def may_begin(self) -> bool:
        """Whether this turn has time for another piece of work. If not, `wait` for it."""
        return not self._waiting and self.has_time()

    def has_time(self) -> bool:
        """Whether this turn has time for more short work. If not, `postpone` it."""
        now = perf_counter()
        if self._first:
            self._first = False
            return True
        if self._turning:
            return now < self._until and (self._running or not self._postponed)
        self._turning = True
        self._until = now + self._seconds
        asyncio.get_running_loop().call_soon(self._turn)
        return True

    def postpone(self, callback: Callable[[], None], context: Context) -> None:
        """Run `callback` in one of the next turns, after what was postponed before."""
        self._postponed.append((callback, context))
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)

    async def wait(self) -> None:
        """Wait in line."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if not self._turning:
            self._turning = True
            loop.call_soon(self._turn)
        await turn

    def _turn(self) -> None:
        """Another turn of the loop has begun."""
        self._until = perf_counter() + self._seconds
        released = False
        while self._waiting and not released:
            first = self._waiting.popleft()
            if not first.done():  # otherwise it was cancelled
                first.set_result(None)
                released = True
        self._running = self._first = True
        try:
            while self._postponed and (self._first or perf_counter() < self._until):
                callback, context = self._postponed.popleft()
                context.run(callback)
                self._first = False
        finally:
            self._running = self._first = False
            self._turning = released or bool(self._postponed)
            if self._turning:
                asyncio.get_running_loop().call_soon(self._turn)

    def __repr__(self) -> str:
        return f"<YieldLimiter {len(self._waiting)} waiting, {len(self._postponed)} postponed>"


HEAVY_SECONDS: Final = 0.005
"""How long a turn of the loop may take on large answers: reading one of 2 MB takes as long."""

_heavy: WeakKeyDictionary[asyncio.AbstractEventLoop, YieldLimiter] = WeakKeyDictionary()


def heavy_work() -> YieldLimiter:
    """The limiter of all work on large engine answers, whichever request it is for. One per event loop."""
    loop = asyncio.get_running_loop()
    limiter = _heavy.get(loop)
    if limiter is None:
        limiter = _heavy[loop] = YieldLimiter(HEAVY_SECONDS)
    return limiter


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """The items one by one; other requests run in between once this turn of the loop has lasted long enough."""
    limiter = heavy_work()
    for item in items:
        if not limiter.has_time():
            await limiter.wait()
        yield item
