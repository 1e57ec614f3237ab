"""Starts requests no faster than the event loop can serve them; the others wait here.

Everything that is ready at the same moment would otherwise be done in one turn of the loop, and everybody else, probes
above all, would wait for all of it. Nobody waits longer than a share of the time that its deadline leaves.
"""

import asyncio
from collections import deque
from time import perf_counter
from typing import NamedTuple

TURN_SECONDS = 0.001
"""No more work is begun in a turn of the loop after this time: about two federated retrieves."""

SHARE = 0.5
"""Of the time that a turn spent on other things, what it may spend on beginning work from the queue.

Finishing a request costs more than beginning it, so at this share the queue alone never makes turns longer. But when
turns are long because of something else, such as thousands of refusals, one request for each turn would be too few.
"""

LONGEST_SECONDS = 0.004
"""Most that one turn spends on beginning work from the queue."""

WAIT_SHARE = 0.8
"""Longest wait, as a share of the time until the deadline. The rest is for the work itself."""

OLDEST_FIRST_SHARE = 0.5
"""Once the oldest has waited this share of its longest wait, the newest is served first. Serving on in order would give
everybody too little time, and their answers would be late or incomplete."""

LAGGING_TURNS = 3
"""Turns of the loop between the last answer of an engine and the bytes of ours: a timer, a task, and the writing."""

SMOOTHING = 1 / 16
"""Weight of the latest measurement in a moving average."""


class TooLate(Exception):
    """The request cannot be served before its deadline: it would wait too long (`at_once`), or has waited too long."""

    def __init__(self, seconds: float, *, at_once: bool = False) -> None:
        """`seconds`: how long the whole queue takes now."""
        super().__init__(f"the queue takes {seconds:.3f} s")
        self.seconds = seconds
        self.at_once = at_once


class _Waiter(NamedTuple):
    turn: "asyncio.Future[bool]"
    """True: begin; False: its longest wait is over."""
    newest_first_at: float
    """From then on (event-loop seconds), newer ones are served before this one."""


class AdmissionQueue:
    """Whether work may begin in this turn of the event loop, and the queue of what may not. Belongs to one loop."""

    __slots__ = (
        "_begun",
        "_cost",
        "_interval",
        "_mark",
        "_turn_seconds",
        "_turned",
        "_turning",
        "_until",
        "_waiting",
    )

    def __init__(self) -> None:
        self._turning = False
        self._until = 0.0
        self._waiting: deque[_Waiter] = deque()
        self._begun = 0
        self._mark = 0.0
        self._turned = 0.0
        self._cost = self._interval = TURN_SECONDS
        self._turn_seconds = 0.0

    @property
    def expected_wait(self) -> float:
        """Seconds until all who wait now have begun, at the rate at which the queue moved last."""
        return len(self._waiting) * self._interval

    @property
    def lag(self) -> float:
        """Seconds that finishing a request takes only because the loop has much to do."""
        return LAGGING_TURNS * self._turn_seconds

    def may_begin(self) -> bool:
        """Whether this turn has time for another piece of work. If not, `wait` for it."""
        if self._waiting:
            return False
        now = perf_counter()
        if self._turning:
            return now < self._until
        self._turning = True
        self._until = now + TURN_SECONDS
        self._begun = 0
        asyncio.get_running_loop().call_soon(self._turn)
        return True

    async def wait(self, deadline: float) -> None:
        """Wait until work that has to be done by `deadline` (event-loop seconds) may begin. Raises TooLate."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        longest = (deadline - now) * WAIT_SHARE
        if longest <= 0:
            raise TooLate(self.expected_wait)
        # Refused at once, a caller can go elsewhere; after a wait in vain it has no time left.
        if self.expected_wait > longest:
            raise TooLate(self.expected_wait, at_once=True)
        turn: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_at(now + longest, _expire, turn)
        self._waiting.append(_Waiter(turn, now + longest * OLDEST_FIRST_SHARE))
        if not self._turning:
            self._turning = True
            self._begun = 0
            loop.call_soon(self._turn)
        try:
            in_time = await turn
        finally:
            timer.cancel()
        if not in_time:
            raise TooLate(self.expected_wait)

    def _turn(self) -> None:
        """Another turn of the loop has begun, or has come past the work that the last one let begin."""
        now = perf_counter()
        if self._begun:
            self._cost += ((now - self._mark) / self._begun - self._cost) * SMOOTHING
            self._interval += ((now - self._turned) / self._begun - self._interval) * SMOOTHING
            self._turn_seconds += (now - self._turned - self._turn_seconds) * SMOOTHING
            others = self._mark - self._turned
            budget = min(SHARE * others, LONGEST_SECONDS)
        else:
            self._turn_seconds *= 1 - SMOOTHING
            budget = 0.0
        self._turned = now
        loop = asyncio.get_running_loop()
        loop.call_soon(self._mark_beginning)
        self._begun = 0
        most = max(1, int(budget / self._cost))
        while self._begun < most and (turn := self._next(loop.time())) is not None:
            turn.set_result(True)
            self._begun += 1
        if self._begun:
            loop.call_soon(self._turn)
        else:
            self._turning = False

    def _next(self, now: float) -> "asyncio.Future[bool] | None":
        """Take out whoever begins next: the oldest, or the newest if the oldest has waited for too long."""
        waiting = self._waiting
        while waiting and waiting[0].turn.done():  # cancelled, or its longest wait is over
            waiting.popleft()
        while waiting:
            turn = (waiting.popleft() if now < waiting[0].newest_first_at else waiting.pop()).turn
            if not turn.done():
                return turn
        return None

    def _mark_beginning(self) -> None:
        """What was let begin runs next."""
        self._mark = perf_counter()

    def __repr__(self) -> str:
        return f"<AdmissionQueue {len(self._waiting)} waiting for {self.expected_wait:.3f} s>"


def _expire(turn: "asyncio.Future[bool]") -> None:
    if not turn.done():
        turn.set_result(False)
