"""How many requests one gateway takes on at once: so many, a few more wait for a moment, the rest are refused.

The doors' own gate, before a request is parsed. It decides in constant time and touches no engine, so that
refusing costs next to nothing when there is too much to do. It refuses to know what is asked and by whom.
"""

import asyncio
from time import perf_counter

from app.protocol.errors import RateLimited
from app.resilience.expiry import Expiry
from app.resilience.limits import Gate, GateFull
from app.settings.schema import ServerSettings
from app.telemetry.door import DoorMetrics

RETRY_AFTER_MS = 1000
"""When whoever was refused may come again."""


class Admission:
    """The gate of one gateway. `in_flight` counts members of batches one by one."""

    __slots__ = ("_gate", "_metrics", "_patience")

    def __init__(self, wishes: ServerSettings, metrics: DoorMetrics) -> None:
        self._metrics = metrics
        self._gate = Gate(wishes.max_in_flight, wishes.max_waiting)
        self._patience = wishes.max_wait_ms / 1000

    def renew(self, wishes: ServerSettings) -> None:
        """Other bounds hold from now on; nobody who is in has to leave."""
        self._gate.limit, self._gate.queue = wishes.max_in_flight, wishes.max_waiting
        self._patience = wishes.max_wait_ms / 1000

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return self._gate.in_flight

    @property
    def waiting(self) -> int:
        """Requests that wait to be taken on."""
        return self._gate.waiting

    def try_enter(self) -> bool:
        """Take one request on at once if there is room; say whether it worked. `leave` must follow."""
        return self._gate.try_enter()

    async def enter(self) -> None:
        """Take one request on, after a moment's wait if need be. Raises RateLimited (-32011)."""
        began = perf_counter()
        expiry = Expiry(asyncio.get_running_loop().time() + self._patience)
        try:
            await self._gate.enter()
        except GateFull:
            raise self._refusal("full") from None
        except asyncio.CancelledError:
            if not expiry.is_the_cause():
                raise
            raise self._refusal("waited") from None
        finally:
            expiry.end()
            self._metrics.waited(perf_counter() - began)

    def widen(self, more: int) -> None:
        """A request turned out to be `more` than one. Raises RateLimited if there is no room for them.

        One that is alone is always let through: a batch may be larger than the whole gate.
        """
        if self._gate.in_flight > 1 and self._gate.in_flight + more > self._gate.limit:
            raise self._refusal("full")
        self._gate.in_flight += more

    def leave(self, count: int = 1) -> None:
        """So many are answered."""
        for _ in range(count):
            self._gate.leave()

    def _refusal(self, reason: str) -> RateLimited:
        self._metrics.refused(reason)
        return RateLimited(
            "the gateway has as many requests under way as it takes", retryable=True, retryAfterMs=RETRY_AFTER_MS
        )

    def __repr__(self) -> str:
        return f"<Admission {self._gate!r}>"
