"""Runs a plan: all legs at once, each within its own deadline; ends when the last has, or when a required one failed.

A leg never hurts its siblings: whatever happens in it becomes its Outcome. Cancelling the fan-out cancels every leg and
waits until each is gone. It refuses to know what was asked and how the answers are fused.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter

from app.federation.outcome import Outcome, answered, cancelled, failed
from app.federation.plan import Leg, Plan
from app.protocol.errors import LegError, LegFault

Heard = Callable[[Outcome], None]
"""Told of each outcome in the moment it is there."""


class FanOut:
    """One run of one plan."""

    __slots__ = ("_clock", "_ended", "_heard", "_loop", "_pending", "_plan", "_tasks", "outcomes")

    def __init__(self, plan: Plan, heard: Heard, clock: Callable[[], float] = perf_counter) -> None:
        """`clock` (seconds) tells how long legs took; the loop's own may be no finer than a millisecond."""
        self.outcomes: list[Outcome] = []
        self._plan = plan
        self._heard = heard
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[Outcome | None] = self._loop.create_future()
        self._pending = len(plan.legs)
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> Outcome | None:
        """Ask everybody. Returns the outcome of a required engine that failed, if one did."""
        if not self._plan.legs:
            return None
        create_task = self._loop.create_task
        self._tasks = [create_task(self._leg(leg)) for leg in self._plan.legs]
        try:
            return await self._ended
        finally:
            if self._pending:
                await self._abort()

    async def _leg(self, leg: Leg) -> None:
        started = self._clock()
        try:
            reply = await leg.engine.call("retrieve", leg.params, leg.deadline)
            outcome = answered(leg.engine.id, reply.result, self._clock() - started, reply.attempts)
        except asyncio.CancelledError as end:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                self._heard(cancelled(leg.engine.id, self._clock() - started))
                raise
            # Not this leg was cancelled but something it waited for: unanswered, it would keep the whole waiting.
            outcome = failed(leg.engine.id, _own_fault(self._loop, end), self._clock() - started)
        except LegError as fault:
            outcome = failed(leg.engine.id, fault, self._clock() - started)
        except Exception as fault:  # noqa: BLE001 - the edge of a leg: a fault of ours costs one engine
            outcome = failed(leg.engine.id, _own_fault(self._loop, fault), self._clock() - started)
        self._pending -= 1
        self.outcomes.append(outcome)
        if not self._ended.done():
            if outcome.status == "failed" and leg.engine.entry.required:
                self._ended.set_result(outcome)
            elif self._pending == 0:
                self._ended.set_result(None)
        self._heard(outcome)

    async def _abort(self) -> None:
        running = [task for task in self._tasks if not task.done()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def __repr__(self) -> str:
        return f"<FanOut {len(self.outcomes)} of {len(self._plan.legs)} legs ended>"


def _own_fault(loop: asyncio.AbstractEventLoop, fault: BaseException) -> LegError:
    loop.call_exception_handler({"message": "a leg failed through a fault of the gateway", "exception": fault})
    return LegFault(f"internal fault ({type(fault).__name__})")
