"""The loop's turns kept short: work that could wait a turn does so once this one has lasted long enough.

One of the tools. Whatever is ready in the same moment would otherwise be done in one go, and everybody else, a probe
above all, would wait for all of it. It refuses to know what the work is.
"""

import asyncio
from collections import deque
from time import perf_counter
from typing import Final
from weakref import WeakKeyDictionary

TURN_SECONDS = 0.001
"""After so long no further work is begun in a turn of the loop: about two federated retrieves."""


class Pace:
    """Says whether a piece of work may begin in this turn of the loop; else it waits in line for one of the next.

    Belongs to one loop. The line moves by one in each turn, which is the more turns the less there is to do.
    """

    __slots__ = ("__weakref__", "_seconds", "_turning", "_until", "_waiting")

    def __init__(self, seconds: float = TURN_SECONDS) -> None:
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
        return f"<Pace {len(self._waiting)} waiting>"


HEAVY_SECONDS: Final = 0.005
"""How long a turn of the loop may take on large answers: reading one of 2 MB takes as long."""

_heavy: WeakKeyDictionary[asyncio.AbstractEventLoop, Pace] = WeakKeyDictionary()


def heavy_pace() -> Pace:
    """The pace that all work on engines' answers keeps, whichever request it is for. One for each loop."""
    loop = asyncio.get_running_loop()
    pace = _heavy.get(loop)
    if pace is None:
        pace = _heavy[loop] = Pace(HEAVY_SECONDS)
    return pace
