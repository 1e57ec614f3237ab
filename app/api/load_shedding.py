"""Load shedding: refuses a request at once if it cannot be answered before its deadline.

Two resources are considered: time of the event loop, for which requests queue, and the concurrency limits of engines.
"""

import asyncio
from math import ceil, inf
from typing import Any

from app.api.admission import RETRY_AFTER_MS
from app.api.caller import Caller
from app.api.gateway_state import GatewayState
from app.api.methods import deadline_seconds
from app.protocol.errors import DeadlineExceeded, GatewayBusy
from app.resilience.admission_queue import AdmissionQueue, TooLate

BUSY_SHARE = 0.6
"""Largest expected wait for a free engine slot, as a share of the time until the deadline."""


class LoadShedder:
    """Decides when the requests of one gateway begin, and which are refused."""

    __slots__ = ("_queue", "_state")

    def __init__(self, state: GatewayState) -> None:
        self._state = state
        self._queue = AdmissionQueue()

    @property
    def lag(self) -> float:
        """Current delay of the event loop in seconds, which adds to the time that an answer takes."""
        return self._queue.lag

    async def begin(self, method: str, params: Any, caller: Caller) -> None:
        """Wait until the event loop has time for the request. Raises GatewayBusy, DeadlineExceeded."""
        federated = method == "retrieve" and caller.engine is None
        if federated:
            self._check_engines(params, caller)
        if not self._queue.may_begin():
            await self._wait(params, caller)
            if federated:
                # Less time is left now, and other requests have begun meanwhile.
                self._check_engines(params, caller)

    def _check_engines(self, params: Any, caller: Caller) -> None:
        """Raises GatewayBusy if no engine has a free slot soon enough to answer this request before its deadline.

        Otherwise its calls would wait until the deadline, and those that are sent just before it would be wasted.
        """
        least = inf
        for engine in self._state.membership.current(caller.tenant).engines:
            seconds = engine.expected_seconds
            if seconds == 0.0:  # a free slot: the normal case, after one step of the loop
                return
            least = min(least, seconds)
        # Engine slots are only a part of the wait while everything is saturated.
        expected = max(least, self._state.admission.expected_seconds)
        now = asyncio.get_running_loop().time()
        arrived = now if caller.since is None else caller.since
        left = arrived + deadline_seconds(params, self._state.settings) - now
        if least < inf and expected > left * BUSY_SHARE:
            raise GatewayBusy(
                "all engines have too many calls in flight to answer before the deadline",
                retryable=True,
                retryAfterMs=RETRY_AFTER_MS,
            )

    async def _wait(self, params: Any, caller: Caller) -> None:
        """Wait until the event loop has time for this request.

        Raises GatewayBusy at once if the expected wait exceeds the deadline, else DeadlineExceeded before the deadline.
        """
        arrived = asyncio.get_running_loop().time() if caller.since is None else caller.since
        try:
            await self._queue.wait(arrived + deadline_seconds(params, self._state.settings))
        except TooLate as fault:
            again = max(1, ceil(fault.seconds * 1000))
            if fault.at_once:
                raise GatewayBusy(
                    "the gateway has too many requests to answer this one before its deadline",
                    retryable=True,
                    retryAfterMs=max(again, RETRY_AFTER_MS),
                ) from None
            message = "the request was still queued shortly before its deadline"
            raise DeadlineExceeded(message, retryable=True, retryAfterMs=again) from None

    def __repr__(self) -> str:
        return f"<LoadShedder {self._queue!r}>"
