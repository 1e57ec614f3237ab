"""The bound on requests under way: some more wait for a moment, and the rest are refused before they are parsed.

The decision takes constant time and no engine is asked, so refusing is cheap when the gateway is overloaded.
"""

import asyncio
from time import perf_counter

from app.protocol.errors import GatewayBusy
from app.resilience.cancel_scope import Timeout
from app.resilience.semaphore import BoundedSemaphore, SemaphoreQueueFull
from app.settings.schema import ServerSettings
from app.telemetry.metric_groups import ServerMetrics

RETRY_AFTER_MS = 1000
"""Milliseconds after which a refused caller may ask again."""


SMOOTHING = 1 / 32
"""Weight of the latest measurement in the moving average of the time between two answers."""

PAUSE_SECONDS = 1.0
"""A longer time between two answers is a pause, and says nothing about how fast the gateway can answer."""


class Admission:
    """The bound of one gateway. `in_flight` counts members of batches one by one."""

    __slots__ = ("_completed_at", "_gate", "_interval", "_metrics", "_patience")

    def __init__(self, settings: ServerSettings, metrics: ServerMetrics) -> None:
        self._metrics = metrics
        self._gate = BoundedSemaphore(settings.max_in_flight, settings.max_waiting)
        self._patience = settings.max_wait_ms / 1000
        self._completed_at = 0.0
        self._interval = 0.0

    def renew(self, settings: ServerSettings) -> None:
        """Apply other bounds; requests under way stay."""
        self._gate.limit, self._gate.queue = settings.max_in_flight, settings.max_waiting
        self._patience = settings.max_wait_ms / 1000

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return self._gate.in_flight

    @property
    def waiting(self) -> int:
        """Requests that wait to be taken on."""
        return self._gate.waiting

    @property
    def full(self) -> bool:
        """Whether a request that comes now can only be refused: the queue is full, or too slow to be worth waiting."""
        gate = self._gate
        if gate.in_flight < gate.limit:
            return False
        # Without the estimate most of those who wait would do so in vain, and refusing them then costs more.
        return gate.waiting >= gate.queue or gate.waiting * gate.interval > self._patience

    @property
    def expected_seconds(self) -> float:
        """Seconds that a request takes now if everything is saturated; 0 while unknown."""
        # Little's law: requests in flight divided by answers per second.
        return self._gate.in_flight * self._interval

    def completed(self) -> None:
        """A request was answered with a result. Refusals and expired requests are no progress, and do not count."""
        now = perf_counter()
        seconds = now - self._completed_at
        self._completed_at = now
        if seconds < PAUSE_SECONDS:
            self._interval += (seconds - self._interval) * SMOOTHING

    def try_enter(self) -> bool:
        """Take one request on at once if there is room; say whether it worked. `leave` must follow."""
        return self._gate.try_enter()

    async def enter(self) -> None:
        """Take one request on, after a moment's wait if need be. Raises RateLimited (-32011)."""
        began = perf_counter()
        expiry = Timeout(asyncio.get_running_loop().time() + self._patience)
        try:
            await self._gate.enter()
        except SemaphoreQueueFull:
            raise self.refusal("full") from None
        except asyncio.CancelledError:
            if not expiry.is_the_cause():
                raise
            raise self.refusal("waited") from None
        finally:
            expiry.end()
            self._metrics.waited(perf_counter() - began)

    def widen(self, more: int) -> None:
        """A request turned out to be `more` than one. Raises RateLimited if there is no room for them.

        One that is alone is always let through: a batch may be larger than the whole gate.
        """
        if self._gate.in_flight > 1 and self._gate.in_flight + more > self._gate.limit:
            raise self.refusal("full")
        self._gate.in_flight += more

    def leave(self, count: int = 1) -> None:
        """Give back the places of requests that were answered."""
        for _ in range(count):
            self._gate.leave()

    def refusal(self, reason: str) -> GatewayBusy:
        """What a request that is not taken on is answered; it is counted. `reason` is one of REFUSALS."""
        self._metrics.refused(reason)
        return overload_error()

    def __repr__(self) -> str:
        return f"<Admission {self._gate!r}>"


def overload_error() -> GatewayBusy:
    """The error (-32011) of a request that the gateway is too busy to take on."""
    message = "the gateway is at its limit of concurrent requests"
    return GatewayBusy(message, retryable=True, retryAfterMs=RETRY_AFTER_MS)
