"""Runs the engine calls of a plan concurrently, and ends when the last call has ended or a required engine has failed.

A call never affects the others: whatever happens in it becomes its Outcome. Cancelling the fan-out cancels every call
and waits until all of their tasks have ended.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import copy_context
from time import perf_counter
from typing import Any

from app.engines.in_flight_call import InFlightCall
from app.engines.transport import Reply
from app.federation.call_tracing import CallSpans
from app.federation.outcome import Outcome, answered, cancelled, failed
from app.federation.planner import EngineCall
from app.federation.quorum import Quorum, QuorumCount, must_answer
from app.protocol.errors import LegError, LegFault, LegLate
from app.resilience.yield_limiter import heavy_work

OutcomeListener = Callable[[Outcome], None]
"""Called with each outcome as soon as it is known."""

ReadResult = Callable[[str, dict[str, Any], float, int, int], Outcome]
"""(engine, result, seconds, attempts, bytes) -> outcome. Raises ProtocolViolation for a malformed result."""


class FanOut:
    """One run of the engine calls of one plan."""

    __slots__ = (
        "_clock",
        "_context",
        "_ended",
        "_engine_calls",
        "_grace",
        "_idempotent",
        "_limiter",
        "_listener",
        "_loop",
        "_method",
        "_pending",
        "_quorum",
        "_read",
        "_ready",
        "_running",
        "_spans",
        "_stragglers",
        "_tail",
        "outcomes",
    )

    def __init__(
        self,
        engine_calls: Sequence[EngineCall],
        listener: OutcomeListener,
        clock: Callable[[], float] = perf_counter,
        *,
        method: str = "retrieve",
        read: ReadResult = answered,
        idempotent: bool = True,
        tail: Quorum | None = None,
        spans: CallSpans | None = None,
    ) -> None:
        """`clock` (seconds) measures how long calls take; the event loop's may be no finer than a millisecond.

        Engines are called with `method`, and `read` makes an outcome of each result. A call that is not `idempotent` is
        sent once. With `tail`, calls that are slower than a quorum of the engines are cut off.
        """
        self.outcomes: list[Outcome] = []
        self._engine_calls = engine_calls
        self._listener = listener
        self._method = method
        self._read = read
        self._idempotent = idempotent
        self._clock = clock
        self._spans = spans
        self._loop = asyncio.get_running_loop()
        self._limiter = heavy_work()
        # Answers arrive in the context of a connection; they are read in the context of the request.
        self._context = copy_context()
        self._ended: asyncio.Future[Outcome | None] = self._loop.create_future()
        self._pending = len(engine_calls)
        self._running: dict[InFlightCall, tuple[EngineCall, float]] = {}
        """Calls without an outcome, and when they were started."""
        self._ready: list[tuple[InFlightCall, float]] = []
        """Calls whose answers wait to be read, and when they arrived."""
        self._tail = tail
        self._quorum = None if tail is None else QuorumCount(engine_calls, tail.quorum)
        self._grace: asyncio.TimerHandle | None = None
        """Runs from the moment a quorum has answered."""
        self._stragglers: list[InFlightCall] = []
        """Calls that were cut off, whose tasks may not have ended yet."""

    async def run(self) -> Outcome | None:
        """Call all engines. Returns the outcome of a required engine that failed, if one did."""
        if not self._engine_calls:
            return None
        timers: list[asyncio.TimerHandle] = []
        lost: Outcome | None = None
        end: BaseException | None = None
        try:
            self._start_all()
            # One timer for all calls with the same deadline: engines of one plan mostly share it.
            deadlines = {engine_call.deadline for engine_call, _ in self._running.values()}
            timers = [self._loop.call_at(deadline, self._expire, deadline) for deadline in deadlines]
            lost = await self._ended
        except BaseException as error:  # noqa: BLE001 - raised again below: compiled, no handler may await
            end = error
        for timer in timers:
            timer.cancel()
        if self._grace is not None:
            self._grace.cancel()
        if self._pending or self._stragglers:
            await self._abort()
        if end is not None:
            try:
                raise end
            finally:
                end = None  # its traceback holds this frame
        return lost

    def _start_all(self) -> None:
        for engine_call in self._engine_calls:
            started = self._clock()
            try:
                call = self._start(engine_call)
            except LegError as error:
                self._finish(engine_call, failed(engine_call.engine.id, error, self._clock() - started))
                continue
            self._running[call] = (engine_call, started)
            call.add_done_callback(self._on_done)

    def _start(self, engine_call: EngineCall) -> InFlightCall:
        engine, spans = engine_call.engine, self._spans
        if spans is None:
            return engine.call(self._method, engine_call.params, engine_call.deadline, idempotent=self._idempotent)
        with spans.start(engine.id):
            return engine.call(self._method, engine_call.params, engine_call.deadline, idempotent=self._idempotent)

    def _on_done(self, call: InFlightCall) -> None:
        """Note that a call is done. Answers that arrive together are read together: that is kinder to CPU caches."""
        self._ready.append((call, self._clock()))
        if len(self._ready) == 1:
            self._loop.call_soon(self._read_ready, context=self._context)

    def _read_ready(self) -> None:
        """Read the answers that have arrived, but no longer than one iteration of the event loop may take."""
        ready, self._ready = self._ready, []
        for place, (call, arrived) in enumerate(ready):
            if not self._limiter.has_time():  # some answers are megabytes
                # Answers that arrived meanwhile are read with them.
                self._ready = ready[place:] + self._ready
                self._limiter.postpone(self._read_ready, self._context)
                return
            if call in self._running:  # otherwise it has been cut off or cancelled
                self._collect(call, arrived)

    def _collect(self, call: InFlightCall, arrived: float) -> None:
        """Turn the end of a call into its outcome, unless another attempt is being made."""
        engine_call, started = self._running[call]
        engine_id, took = engine_call.engine.id, arrived - started
        try:
            reply = call.collect()
            if reply is None:
                return  # it calls back again
            outcome = self._outcome(engine_call, reply, took)
        except LegError as error:
            outcome = failed(engine_id, error, took)
        except (Exception, asyncio.CancelledError) as bug:  # noqa: BLE001 - the edge of an engine call
            # A bug of ours costs one engine. So does a cancellation that was not ours: without an outcome, the fan-out
            # would never end.
            outcome = failed(engine_id, _internal_error(self._loop, bug), took)
        del self._running[call]
        self._finish(engine_call, outcome)

    def _outcome(self, engine_call: EngineCall, reply: Reply, took: float) -> Outcome:
        """The outcome of an answer. Raises ProtocolViolation."""
        outcome = self._read(engine_call.engine.id, reply.result, took, reply.attempts, reply.size)
        return outcome if reply.replica is None else outcome._replace(replica=reply.replica, hedged=reply.hedged)

    def _expire(self, deadline: float) -> None:
        """End the calls whose deadline has come."""
        for call, (engine_call, _) in list(self._running.items()):
            if engine_call.deadline <= deadline:
                call.expire()

    def _finish(self, engine_call: EngineCall, outcome: Outcome) -> None:
        """Add an outcome, and end the run if it was the last, or the failure of a required engine."""
        self._pending -= 1
        self.outcomes.append(outcome)
        if not self._ended.done():
            if outcome.status == "failed" and must_answer(engine_call):
                self._ended.set_result(outcome)
            elif self._pending == 0:
                self._ended.set_result(None)
            elif self._quorum is not None and outcome.status == "ok" and self._quorum.answered(engine_call):
                self._start_grace()
        self._report(outcome)

    def _report(self, outcome: Outcome) -> None:
        try:
            if self._spans is not None:
                self._spans.end(outcome)
            self._listener(outcome)
        except Exception as bug:  # noqa: BLE001 - the edge of an engine call: a listener must not affect the others
            _internal_error(self._loop, bug)

    def _start_grace(self) -> None:
        """A quorum has answered: limit the time of the others."""
        if self._grace is None and self._tail is not None:
            self._grace = self._loop.call_later(self._tail.grace, self._cut_off)

    def _cut_off(self) -> None:
        """The grace period is over: the engines that have not answered are late."""
        for call in list(self._running):
            if call.done():
                self._collect(call, self._clock())
        # What is left includes calls that `_collect` has just repeated.
        running, self._running = self._running, {}
        for call, (engine_call, started) in running.items():
            call.cancel()
            self._stragglers.append(call)
            error = LegLate("enough of the others had answered")
            self._finish(engine_call, failed(engine_call.engine.id, error, self._clock() - started))

    async def _abort(self) -> None:
        """Cancel what is still running, and wait for the end of all tasks."""
        running, self._running = self._running, {}
        for call, (engine_call, started) in running.items():
            call.cancel()
            self._report(cancelled(engine_call.engine.id, self._clock() - started))
        tasks = [call.task for call in (*running, *self._stragglers) if call.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    def __repr__(self) -> str:
        return f"<FanOut {len(self.outcomes)} of {len(self._engine_calls)} calls ended>"


def _internal_error(loop: asyncio.AbstractEventLoop, bug: BaseException) -> LegError:
    loop.call_exception_handler({"message": "a bug of the gateway failed an engine call", "exception": bug})
    return LegFault(f"internal fault ({type(bug).__name__})")
