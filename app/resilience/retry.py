"""Retries: how long to pause, how many a budget allows, and the loop itself (on tenacity).

The caller decides for each error whether another attempt is worthwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

Answer = TypeVar("Answer")

Pause = Callable[[BaseException], float | None]
"""Seconds to wait before another attempt after this fault, None if there shall be none. Asked once for each fault."""


@dataclass(frozen=True, slots=True)
class RetryPace:
    """Exponential back-off. `jitter` gives the share of each pause that is waited, above 0 and up to 1."""

    first: float
    longest: float
    jitter: Callable[[], float]

    def pause(self, repeats: int, asked: float = 0.0) -> float:
        """Seconds before the next attempt after `repeats` earlier ones, not less than was `asked` for."""
        backoff = min(self.first * 2.0**repeats, self.longest) * self.jitter()
        return max(backoff, asked)


class RetryBudget:
    """Extra work as a share of the usual: each call earns `share` of a repeat, a repeat spends one.

    At most `reserve` can be saved up, so that it is a share of recent calls; it begins full.
    """

    __slots__ = ("level", "reserve", "share")

    def __init__(self, share: float, reserve: float) -> None:
        self.share = share
        self.reserve = reserve if share else 0.0
        self.level = self.reserve

    def earn(self) -> None:
        """One more call was made."""
        if self.level < self.reserve:
            self.level = min(self.level + self.share, self.reserve)

    def spend(self) -> bool:
        """Take one repeat; False if there is none left."""
        if self.level < 1:
            return False
        self.level -= 1
        return True

    def __repr__(self) -> str:
        return f"<Allowance {self.level:.1f} of {self.reserve:g} repeats>"


async def ask_again(
    attempt: Callable[[], Awaitable[Answer]], fault: Exception, kind: type[Exception], pause: Pause
) -> Answer:
    """Repeat `attempt` after `fault`, as long as `pause` says how long to wait; raises the last fault if it does not.

    Only faults of this `kind` are asked about; any other, and a cancellation, ends it at once.
    """
    failed: Exception | None = fault
    wait: float | None = None

    async def first_fails() -> Answer:
        nonlocal failed
        if failed is None:
            return await attempt()
        earlier, failed = failed, None
        raise earlier

    def ask(state: RetryCallState) -> float:
        nonlocal wait
        assert state.outcome is not None
        last = state.outcome.exception()
        wait = None if last is None else pause(last)
        return wait or 0.0

    # tenacity computes the wait before it asks whether to stop.
    repeated = AsyncRetrying(
        retry=retry_if_exception_type(kind), wait=ask, stop=lambda _: wait is None, sleep=asyncio.sleep, reraise=True
    )
    return await repeated(first_fails)
