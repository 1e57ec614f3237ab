"""The limit of concurrent requests (`server.max_in_flight`): a few more wait briefly, and all others are refused.

The decision takes constant time and precedes parsing, so that refusals stay cheap under overload.
"""

import asyncio
from time import perf_counter

from app.protocol.errors import GatewayBusy
from app.resilience.cancel_scope import Timeout
from app.resilience.semaphore import BoundedSemaphore, SemaphoreQueueFull
from app.settings.schema import ServerSettings
from app.telemetry.metric_groups import ServerMetrics

RETRY_AFTER_MS = 1000
"""Milliseconds after which a refused caller may retry."""

SMOOTHING = 1 / 32
"""Weight of the latest measurement in the moving average of the time between two answers."""

PAUSE_SECONDS = 1.0
"""A longer time between two answers means low traffic, and does not measure how fast the gateway can answer."""


class Admission:
    """The request limit of one gateway. Members of a batch count one by one."""

    __slots__ = ("_completed_at", "_gate", "_interval", "_metrics", "_patience")

    def __init__(self, settings: ServerSettings, metrics: ServerMetrics) -> None:
        self._metrics = metrics
        self._gate = BoundedSemaphore(settings.max_in_flight, settings.max_waiting)
        self._patience = settings.max_wait_ms / 1000
        self._completed_at = 0.0
        self._interval = 0.0

    def renew(self, settings: ServerSettings) -> None:
        """Apply changed settings. Running requests are not affected."""
        self._gate.limit, self._gate.queue = settings.max_in_flight, settings.max_waiting
        self._patience = settings.max_wait_ms / 1000

    @property
    def in_flight(self) -> int:
        """Requests in flight."""
        return self._gate.in_flight

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return self._gate.waiting

    @property
    def full(self) -> bool:
        """Whether a new request can only be refused: the queue is full, or moves too slowly for its maximum wait."""
        gate = self._gate
        if gate.in_flight < gate.limit:
            return False
        # Without this estimate, most queued requests would be refused after their wait, which costs more than at once.
        return gate.waiting >= gate.queue or gate.waiting * gate.interval > self._patience

    @property
    def expected_seconds(self) -> float:
        """Seconds that a request takes under saturation; 0 while unknown."""
        # Little's law: requests in flight divided by answers per second.
        return self._gate.in_flight * self._interval

    def completed(self) -> None:
        """Record that a request got a result. Refused and expired requests do not count."""
        now = perf_counter()
        seconds = now - self._completed_at
        self._completed_at = now
        if seconds < PAUSE_SECONDS:
            self._interval += (seconds - self._interval) * SMOOTHING

    def try_enter(self) -> bool:
        """Admit a request if there is a free place. If this returns True, `leave` must follow."""
        return self._gate.try_enter()

    async def enter(self) -> None:
        """Admit a request, after a wait of at most `server.max_wait_ms`. Raises GatewayBusy (-32011)."""
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
        """Admit `more` members of a batch, which holds one place already. Raises GatewayBusy."""
        # A batch that runs alone is always admitted: it may be larger than the limit.
        if self._gate.in_flight > 1 and self._gate.in_flight + more > self._gate.limit:
            raise self.refusal("full")
        self._gate.in_flight += more

    def leave(self, count: int = 1) -> None:
        """Release the places of answered requests."""
        for _ in range(count):
            self._gate.leave()

    def refusal(self, reason: str) -> GatewayBusy:
        """The error for a refused request, which is counted. `reason` is one of REFUSALS."""
        self._metrics.refused(reason)
        return overload_error()

    def __repr__(self) -> str:
        return f"<Admission {self._gate!r}>"


def overload_error() -> GatewayBusy:
    """The error (-32011) for a request beyond the limit."""
    message = "the gateway is at its limit of concurrent requests"
    return GatewayBusy(message, retryable=True, retryAfterMs=RETRY_AFTER_MS)
