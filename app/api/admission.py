"""How many requests one gateway takes on at once: so many, a few more wait for a moment, the rest are refused.

The doors' own gate, before a request is parsed. It decides in constant time and touches no engine, so that
refusing costs next to nothing when there is too much to do. It refuses to know what is asked and by whom.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Hashable
from time import perf_counter

from app.protocol.errors import RateLimited
from app.resilience.cancel_scope import Timeout
from app.resilience.semaphore import BoundedSemaphore, SemaphoreQueueFull
from app.settings.schema import ServerSettings
from app.telemetry.metric_groups import ServerMetrics

RETRY_AFTER_MS = 1000
"""When whoever was refused may come again."""

HOLD_SECONDS = 0.4
"""A connection that comes back before that is held so long, and then served if there is room: two thousand callers that
ask again at once would have the loop do nothing but refuse them."""

MAX_REFUSED = 8192
"""Connections that are remembered as refused."""


class Admission:
    """The gate of one gateway. `in_flight` counts members of batches one by one."""

    __slots__ = ("_gate", "_metrics", "_patience", "_refused")

    def __init__(self, wishes: ServerSettings, metrics: ServerMetrics) -> None:
        self._metrics = metrics
        self._gate = BoundedSemaphore(wishes.max_in_flight, wishes.max_waiting)
        self._refused: OrderedDict[Hashable, float] = OrderedDict()
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

    @property
    def full(self) -> bool:
        """Whether a request that comes now can only be refused."""
        gate = self._gate
        return gate.in_flight >= gate.limit and gate.waiting >= gate.queue

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
        """So many are answered."""
        for _ in range(count):
            self._gate.leave()

    def hold(self, connection: Hashable) -> float:
        """Seconds to wait before a request is refused: 0, or more if the connection was refused a moment ago."""
        now = asyncio.get_running_loop().time()
        before = self._refused.pop(connection, None)
        self._refused[connection] = now
        if len(self._refused) > MAX_REFUSED:
            self._refused.popitem(last=False)
        return HOLD_SECONDS if before is not None and now - before < RETRY_AFTER_MS / 1000 else 0.0

    def refusal(self, reason: str) -> RateLimited:
        """What a request that is not taken on is answered; it is counted. `reason` is one of REFUSALS."""
        self._metrics.refused(reason)
        return RateLimited(
            "the gateway has as many requests under way as it takes", retryable=True, retryAfterMs=RETRY_AFTER_MS
        )

    def __repr__(self) -> str:
        return f"<Admission {self._gate!r}>"
