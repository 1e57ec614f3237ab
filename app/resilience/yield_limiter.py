"""Keeps turns of the event loop short: CPU-heavy work waits for the next turn once this one has lasted long enough.

Without it, all answers that arrive at the same moment are read in one go, and everything else, probes included, waits.
"""

import asyncio
from collections import deque
from time import perf_counter
from typing import Final
from weakref import WeakKeyDictionary


class YieldLimiter:
    """Says whether a piece of work may begin in this turn of the loop; else it waits in line for one of the next.

    Belongs to one loop. The line moves by one in each turn, which is the more turns the less there is to do.
    """

    __slots__ = ("__weakref__", "_seconds", "_turning", "_until", "_waiting")

    def __init__(self, seconds: float) -> None:
        """`seconds`: how long a turn may last before further work waits."""
        self._seconds = seconds
        self._turning = False
        self._until = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def may_begin(self) -> bool:
        """Whether this turn has time for another piece of work. If not, `wait` for it."""
        return not self._waiting and self.has_time()

    def has_time(self) -> bool:
        """The same for work that does not wait in line but tries again in the next turn."""
        now = perf_counter()
        if self._turning:
            return now < self._until
        self._turning = True
        self._until = now + self._seconds
        asyncio.get_running_loop().call_soon(self._turn)
        return True

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
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():  # else it was cancelled
                first.set_result(None)
                asyncio.get_running_loop().call_soon(self._turn)
                return
        self._turning = False

    def __repr__(self) -> str:
        return f"<YieldLimiter {len(self._waiting)} waiting>"


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
