"""Asking a second replica when the first is slower than it nearly always is: when, how often, and the race itself.

Engines room. It decides from the times that answers took. It refuses to know what is asked and of whom.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from app.resilience.retry import RetryBudget

Answer = TypeVar("Answer")

REMEMBERED = 128
"""Times of answers that the 95th percentile is taken of."""

LEAST = 20
"""With fewer times than this nobody is hedged: there is nothing to tell slow by."""

RECKONED_EVERY = 16
RESERVE = 1.0


class HedgePolicy:
    """When to hedge one engine's calls. `share`: hedges as a share of its calls."""

    __slots__ = ("_delay", "_since", "_times", "budget")

    def __init__(self, share: float) -> None:
        self.budget = RetryBudget(share, RESERVE)
        self._times: deque[float] = deque(maxlen=REMEMBERED)
        self._since = 0
        self._delay: float | None = None

    @property
    def delay(self) -> float | None:
        """Seconds after which a call is slow; None while that is not known."""
        return self._delay

    def took(self, seconds: float) -> None:
        """An attempt was answered after so long."""
        self._times.append(seconds)
        self._since += 1
        if len(self._times) >= LEAST and (self._delay is None or self._since >= RECKONED_EVERY):
            self._since = 0
            self._delay = sorted(self._times)[int(len(self._times) * 0.95)]

    def __repr__(self) -> str:
        delay = "unknown" if self._delay is None else f"{self._delay * 1000:.0f} ms"
        return f"<Hedge after {delay}, {self.budget!r}>"


async def race(first: Awaitable[Answer], second: Callable[[], Awaitable[Answer] | None], delay: float) -> Answer:
    """The first answer of two. `second` is begun once `first` has taken `delay` seconds, and may decline (None).

    A fault does not win while the other may still answer; if both fail, the first one's fault is raised. Whoever has
    not won is cancelled and gone before this ends, however it ends.
    """
    runners = [asyncio.ensure_future(first)]
    try:
        done, _ = await asyncio.wait(runners, timeout=delay)
        other = None if done else second()
        if other is not None:
            runners.append(asyncio.ensure_future(other))
        pending = set(runners)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for runner in runners:
                if runner in done and not runner.cancelled() and runner.exception() is None:
                    return runner.result()
        return runners[0].result()
    finally:
        for runner in runners:
            runner.cancel()
        await asyncio.gather(*runners, return_exceptions=True)
