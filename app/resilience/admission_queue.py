"""The loop's turns kept short: work that could wait a turn does so once this one has lasted long enough.

Whatever is ready in the same moment would otherwise be done in one go, and everybody else, a probe above all, would
wait for all of it. The queue is bounded by time: nobody waits in it who cannot be served before a deadline.
"""

import asyncio
from collections import deque
from time import perf_counter

TURN_SECONDS = 0.001
"""After so long no further work is begun in a turn of the loop: about two federated retrieves."""

SHARE = 0.5
"""Of the time that a turn spent on other things, what it may spend on beginning work from the queue.

Finishing a request costs more than beginning it, so at this share the queue alone never makes turns longer. But when
turns are long because of something else, such as thousands of refusals, one request for each turn would be too few.
"""

LONGEST_SECONDS = 0.004
"""Most that one turn spends on beginning work from the queue."""

REFUSALS_PER_SECOND = 300
"""Most that are refused at once in a second, and in one burst; the others wait until their time is over.

Callers that ask again at once would otherwise have the loop refuse them all the time and serve nobody.
"""

LAGGING_TURNS = 3
"""Turns of the loop between the last answer of an engine and the bytes of ours: a timer, a task, and the writing."""

SMOOTHING = 1 / 16
"""Weight of the latest measurement in a moving average."""


class TooLate(Exception):
    """The queue is too long, or has been waited in for too long, to be served in time."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: how long the queue takes now."""
        super().__init__(f"the queue takes {seconds:.3f} s")
        self.seconds = seconds


class AdmissionQueue:
    """Says whether a piece of work may begin in this turn of the loop; else it waits in line for one of the next.

    Belongs to one loop. Times of waiting are event-loop seconds.
    """

    __slots__ = (
        "_begun",
        "_cost",
        "_interval",
        "_mark",
        "_refilled",
        "_refusals",
        "_service",
        "_turn_seconds",
        "_turned",
        "_turning",
        "_until",
        "_waiting",
    )

    def __init__(self) -> None:
        self._turning = False
        self._until = 0.0
        self._waiting: deque[asyncio.Future[bool]] = deque()
        self._begun = 0
        self._mark = 0.0
        self._turned = 0.0
        self._cost = self._interval = TURN_SECONDS
        self._service = 0.0
        self._turn_seconds = 0.0
        self._refusals = float(REFUSALS_PER_SECOND)
        self._refilled = float("-inf")

    @property
    def expected_wait(self) -> float:
        """Seconds until whoever joins the queue now can begin, at the rate at which it moved last."""
        return len(self._waiting) * self._interval

    @property
    def service_seconds(self) -> float:
        """How long work has taken lately from its beginning to its end."""
        return self._service

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

    async def wait(self, until: float) -> None:
        """Wait in line until `until` at most. Raises TooLate, if possible at once (see REFUSALS_PER_SECOND)."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now + self.expected_wait >= until and (now >= until or self._may_refuse(now)):
            raise TooLate(self.expected_wait)
        turn: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_at(until, _expire, turn)
        self._waiting.append(turn)
        if not self._turning:
            self._turning = True
            self._begun = 0
            loop.call_soon(self._turn)
        try:
            in_time = await turn
        finally:
            timer.cancel()
        if not in_time or loop.time() >= until:
            raise TooLate(self.expected_wait)

    def ended(self, seconds: float) -> None:
        """A piece of work has ended, so long after it began."""
        self._service += (seconds - self._service) * SMOOTHING

    def _may_refuse(self, now: float) -> bool:
        self._refusals = min(REFUSALS_PER_SECOND, self._refusals + (now - self._refilled) * REFUSALS_PER_SECOND)
        self._refilled = now
        if self._refusals < 1:
            return False
        self._refusals -= 1
        return True

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
        while self._waiting and self._begun < most:
            first = self._waiting.popleft()
            if not first.done():  # else it was cancelled, or its time is over
                first.set_result(True)
                self._begun += 1
        if self._begun:
            loop.call_soon(self._turn)
        else:
            self._turning = False

    def _mark_beginning(self) -> None:
        """What was let begin runs next."""
        self._mark = perf_counter()

    def __repr__(self) -> str:
        return f"<Pace {len(self._waiting)} waiting for {self.expected_wait:.3f} s>"


def _expire(turn: "asyncio.Future[bool]") -> None:
    if not turn.done():
        turn.set_result(False)
