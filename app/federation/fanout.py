"""Runs legs: all at once, each within its own deadline; ends when the last has, or one that must not fail did.

A leg never hurts its siblings: whatever happens in it becomes its Outcome. Cancelling the fan-out cancels every leg and
waits until each is gone. It refuses to know what was asked and how the answers are fused.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import copy_context
from time import perf_counter
from typing import Any, final

from app.federation.engine_interface import EngineReply, StartedCall
from app.federation.outcome import Outcome, answered, cancelled, failed
from app.federation.planner import EngineCall
from app.federation.quorum import Quorum, QuorumCount, must_answer
from app.protocol.errors import LegError, LegFault, LegLate
from app.resilience.yield_limiter import heavy_work


@final
class _RunningCall:
    """A leg that was asked without a task."""

    __slots__ = ("_whole", "asked", "engine_call", "started", "took")

    def __init__(self, whole: "FanOut", engine_call: EngineCall, asked: StartedCall, started: float) -> None:
        self._whole = whole
        self.engine_call = engine_call
        self.asked = asked
        self.started = started
        self.took = 0.0

    def answered(self, _: object) -> None:
        """Its waiter is done."""
        self._whole.answered(self)

    def __repr__(self) -> str:
        return f"<_Begun {self.asked!r}>"


Heard = Callable[[Outcome], None]
"""Told of each outcome in the moment it is there."""

Read = Callable[[str, dict[str, Any], float, int, int], Outcome]
"""(engine, result, seconds, attempts, bytes) -> outcome. Raises ProtocolViolation for a result that is none."""


class FanOut:
    """One run of the legs of one plan."""

    __slots__ = (
        "_begun",
        "_clock",
        "_context",
        "_cut",
        "_ended",
        "_engine_calls",
        "_heard",
        "_idempotent",
        "_loop",
        "_method",
        "_pace",
        "_pending",
        "_read",
        "_ready",
        "_stragglers",
        "_tail",
        "_tally",
        "_tasks",
        "outcomes",
    )

    def __init__(
        self,
        engine_calls: Sequence[EngineCall],
        heard: Heard,
        clock: Callable[[], float] = perf_counter,
        *,
        method: str = "retrieve",
        read: Read = answered,
        idempotent: bool = True,
        tail: Quorum | None = None,
    ) -> None:
        """`clock` (seconds) tells how long legs took; the loop's own may be no finer than a millisecond.

        Legs are asked with `method`, and `read` makes an outcome of what they send. A call that is not `idempotent` is
        sent once.
        """
        self.outcomes: list[Outcome] = []
        self._engine_calls = engine_calls
        self._heard = heard
        self._method = method
        self._read = read
        self._idempotent = idempotent
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._pace = heavy_work()
        self._context = copy_context()
        self._ended: asyncio.Future[Outcome | None] = self._loop.create_future()
        self._pending = len(engine_calls)
        self._begun: set[_RunningCall] = set()
        self._ready: list[_RunningCall] = []
        self._tasks: dict[asyncio.Task[None], tuple[EngineCall, float]] = {}
        self._tail = tail
        self._tally = None if tail is None else QuorumCount(engine_calls, tail.quorum)
        self._cut: asyncio.TimerHandle | None = None
        self._stragglers: list[asyncio.Task[None]] = []

    async def run(self) -> Outcome | None:
        """Ask everybody. Returns the outcome of a required engine that failed, if one did."""
        if not self._engine_calls:
            return None
        timers: list[asyncio.TimerHandle] = []
        lost: Outcome | None = None
        end: BaseException | None = None
        try:
            self._ask_everybody()
            deadlines = {begun.engine_call.deadline for begun in self._begun}
            timers = [self._loop.call_at(deadline, self._strike, deadline) for deadline in deadlines]
            lost = await self._ended
        except BaseException as fault:  # noqa: BLE001 - raised again below: compiled, no handler may await
            end = fault
        for timer in timers:
            timer.cancel()
        if self._cut is not None:
            self._cut.cancel()
        if self._pending or self._cut is not None:
            await self._abort()
        if end is not None:
            try:
                raise end
            finally:
                end = None  # its traceback holds this frame
        return lost

    def _ask_everybody(self) -> None:
        """Begin each leg without a task where the engine can be asked at once; the others get one."""
        for engine_call in self._engine_calls:
            started = self._clock()
            asked = engine_call.engine.begin(self._method, engine_call.params) if self._idempotent else None
            if asked is None:
                self._spawn(engine_call, started, None)
            else:
                begun = _RunningCall(self, engine_call, asked, started)
                self._begun.add(begun)
                asked.pending.add_done_callback(begun.answered)

    def _spawn(self, engine_call: EngineCall, started: float, after: LegError | None) -> None:
        self._tasks[self._loop.create_task(self._engine_call(engine_call, started, after))] = (engine_call, started)

    def answered(self, begun: _RunningCall) -> None:
        """The waiter of a begun leg is done. What arrives together is read together, which is kinder to the caches.

        It is read in the context of the request: this is called in that of a connection.
        """
        begun.took = self._clock() - begun.started
        self._ready.append(begun)
        if len(self._ready) == 1:
            self._loop.call_soon(self._digest, context=self._context)

    def _digest(self) -> None:
        """Read what is there, but not for so long that others on the loop would notice: some answers are megabytes."""
        ready, self._ready = self._ready, []
        for place, begun in enumerate(ready):
            if not self._pace.has_time():
                self._ready = ready[place:]
                self._loop.call_soon(self._digest, context=self._context)
                return
            if begun in self._begun:
                self._begun.discard(begun)
                self._take(begun)
            elif not begun.asked.pending.cancelled():  # ended meanwhile; a fault that nobody looks at would be logged
                begun.asked.pending.exception()

    def _take(self, begun: _RunningCall) -> None:
        """Read what a begun leg has been answered, or ask once more the long way."""
        engine_call, started = begun.engine_call, begun.started
        try:
            reply = begun.asked.take()
            if reply is None:
                self._spawn(engine_call, started, begun.asked.fault)
                return
            outcome = self._outcome(engine_call, reply, begun.took)
        except LegError as fault:
            outcome = failed(engine_call.engine.id, fault, begun.took)
        except Exception as bug:  # noqa: BLE001 - the edge of a leg: a fault of ours costs one engine
            outcome = failed(engine_call.engine.id, _own_fault(self._loop, bug), self._clock() - started)
        self._settle(engine_call, outcome)

    def _strike(self, deadline: float) -> None:
        """The deadline of begun legs has come."""
        for begun in [begun for begun in self._begun if begun.engine_call.deadline <= deadline]:
            if begun.asked.pending.done():
                continue  # its answer came in time, and is about to be read
            self._begun.discard(begun)
            fault = begun.asked.late(begun.engine_call.seconds)
            self._settle(begun.engine_call, failed(begun.engine_call.engine.id, fault, self._clock() - begun.started))

    async def _engine_call(self, engine_call: EngineCall, started: float, after: LegError | None) -> None:
        """One leg in a task of its own; `after`: why the attempt that was begun without one did not do."""
        try:
            reply = await engine_call.engine.call(
                self._method, engine_call.params, engine_call.deadline, idempotent=self._idempotent, after=after
            )
            outcome = self._outcome(engine_call, reply, self._clock() - started)
        except asyncio.CancelledError as end:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                if task in self._tasks:  # else it is late, and has been heard of
                    self._heard(cancelled(engine_call.engine.id, self._clock() - started))
                raise
            # Not this leg was cancelled but something it waited for: unanswered, it would keep the whole waiting.
            outcome = failed(engine_call.engine.id, _own_fault(self._loop, end), self._clock() - started)
        except LegError as fault:
            outcome = failed(engine_call.engine.id, fault, self._clock() - started)
        except Exception as bug:  # noqa: BLE001 - the edge of a leg: a fault of ours costs one engine
            outcome = failed(engine_call.engine.id, _own_fault(self._loop, bug), self._clock() - started)
        if asyncio.current_task() in self._tasks:  # else it was cut off in the very moment it ended
            self._settle(engine_call, outcome)

    def _outcome(self, engine_call: EngineCall, reply: EngineReply, took: float) -> Outcome:
        """The outcome of an answer. Raises ProtocolViolation."""
        outcome = self._read(engine_call.engine.id, reply.result, took, reply.attempts, reply.size)
        return outcome if reply.replica is None else outcome._replace(replica=reply.replica, hedged=reply.hedged)

    def _settle(self, engine_call: EngineCall, outcome: Outcome) -> None:
        self._pending -= 1
        self.outcomes.append(outcome)
        if not self._ended.done():
            if outcome.status == "failed" and must_answer(engine_call):
                self._ended.set_result(outcome)
            elif self._pending == 0:
                self._ended.set_result(None)
            elif self._tally is not None and outcome.status == "ok" and self._tally.answered(engine_call):
                self._begin_grace()
        try:
            self._heard(outcome)
        except Exception as fault:  # noqa: BLE001 - the edge of a leg: whoever listens must not hurt its siblings
            _own_fault(self._loop, fault)

    def _begin_grace(self) -> None:
        """Enough have answered: the others have so much time left."""
        if self._cut is None and self._tail is not None:
            self._cut = self._loop.call_later(self._tail.grace, self._cut_off)

    def _cut_off(self) -> None:
        """The grace is over: whoever has not answered is late."""
        begun, self._begun = self._begun, set()
        for each in begun:
            if each.asked.pending.done():
                self._take(each)
            else:
                each.asked.drop()
                self._late(each.engine_call, each.started)
        running = [(task, *at) for task, at in self._tasks.items() if not task.done()]
        for task, engine_call, started in running:
            del self._tasks[task]
            task.cancel()
            self._stragglers.append(task)
            self._late(engine_call, started)

    def _late(self, engine_call: EngineCall, started: float) -> None:
        fault = LegLate("enough of the others had answered")
        self._settle(engine_call, failed(engine_call.engine.id, fault, self._clock() - started))

    async def _abort(self) -> None:
        begun, self._begun = self._begun, set()
        for engine_call in begun:
            engine_call.asked.drop()
            self._heard(cancelled(engine_call.engine_call.engine.id, self._clock() - engine_call.started))
        running = [task for task in self._tasks if not task.done()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, *self._stragglers, return_exceptions=True)

    def __repr__(self) -> str:
        return f"<FanOut {len(self.outcomes)} of {len(self._engine_calls)} legs ended>"


def _own_fault(loop: asyncio.AbstractEventLoop, fault: BaseException) -> LegError:
    loop.call_exception_handler({"message": "a leg failed through a fault of the gateway", "exception": fault})
    return LegFault(f"internal fault ({type(fault).__name__})")
