"""The attempts of one engine call that need a task: admission, choice of a replica, retries and hedging.

Every attempt is recorded in the engine's outcome tracker. The deadline of the whole call is kept by the caller.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from app.engines.error_classification import is_suspect, worth_repeating
from app.engines.policies import CallPolicies
from app.engines.replicas import Replica
from app.engines.transport import ConnectionLost, Reply, check_shape
from app.protocol.errors import BreakerOpen, LegError, LegTimeout, NotInitialized, Refused
from app.resilience.byte_budget import HELD
from app.resilience.cancel_scope import Timeout
from app.resilience.retry import ask_again

Answer = TypeVar("Answer")


async def race(first: Awaitable[Answer], second: Callable[[], Awaitable[Answer] | None], delay: float) -> Answer:
    """The first answer of two. `second` is begun once `first` has taken `delay` seconds, and may decline (None).

    A failure does not win while the other may still answer; if both fail, that of `first` is raised. The loser is
    cancelled, and has ended before this returns or raises.
    """
    runners = [asyncio.ensure_future(first)]
    try:
        done, _ = await asyncio.wait(runners, timeout=delay)
        other = None if done else second()
        if other is not None:
            runners.append(asyncio.ensure_future(other))
        # A failed attempt does not win while the other may still answer.
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


SHORT_DEADLINE = 0.5
"""A timeout after less than this share of the engine's `timeoutMs` is due to the caller's short deadline."""

MIN_SECONDS = 0.02
"""No further attempt is made if less time than this would be left for it."""

MARGIN = 0.001
"""Added to the pause an engine asks for, since clocks are coarse."""


class CallAttempts:
    """The attempts of one call. `deadline` is in event-loop seconds; `end` must be called at last."""

    __slots__ = (
        "_active",
        "_deadline",
        "_fault",
        "_free",
        "_generation",
        "_idempotent",
        "_kind",
        "_known",
        "_last",
        "_method",
        "_params",
        "_policies",
        "_repeats",
        "_since",
        "_stale",
        "hedged",
        "sent",
    )

    def __init__(
        self, policies: CallPolicies, method: str, params: Mapping[str, Any], deadline: float, *, idempotent: bool
    ) -> None:
        self.sent = 0
        """Requests so far."""
        self.hedged = False
        self._policies = policies
        self._method = method
        self._params = params
        self._deadline = deadline
        self._idempotent = idempotent
        self._fault: LegError | None = None
        self._kind = "first"
        self._known = False
        self._free = 0
        self._repeats = 0
        self._last: Replica | None = None
        self._generation: int | None = None
        self._active: list[Replica] = []
        self._since = 0.0
        self._stale = False

    async def answer(self, after: LegError | None) -> Reply:
        """Make attempts until one is answered. `after`: the error of an attempt made before.

        Raises LegError; SemaphoreQueueFull if too many calls of this engine wait already.
        """
        policies = self._policies
        if after is not None:
            self.sent, self._free, self._fault = after.attempts, after.free, after
            # A replica that asks for a handshake gets one, and is not avoided.
            if not is_handshake_due(after):
                self._last = policies.tracker.replicas.named(after.replica)
        refusal = policies.tracker.refusal()
        # After a first attempt, a rate limit is handled by the retry pause below; an open breaker ends the call.
        if refusal is not None and (after is None or isinstance(refusal, BreakerOpen)):
            raise after or refusal
        if not policies.semaphore.try_enter():
            await self._wait(after)
        completed = False
        try:
            reply = await self._attempts(after)
            completed = True
            return reply
        finally:
            policies.semaphore.leave(completed=completed)

    def late(self) -> LegTimeout:
        """The error of a call whose deadline has come; counts against the engine unless the deadline was short."""
        fault = LegTimeout("no answer within the time it was given")
        fault.attempts = self.sent
        generation, self._generation = self._generation, None
        if generation is not None:
            if has_short_deadline(self._policies, self._deadline - self._since):
                self._policies.tracker.inconclusive(generation)
            else:
                for replica in self._active:
                    self._policies.tracker.failed(fault, replica, generation, self._method, self._params)
        return fault

    def end(self) -> None:
        """Finish. A call that was cancelled during an attempt says nothing about the engine."""
        if self._generation is not None:
            self._policies.tracker.inconclusive(self._generation)
            self._generation = None

    # ── waiting for a place ───────────────────────────────────────────────────────────────────────────────────────

    async def _wait(self, after: LegError | None) -> None:
        """Wait for the semaphore. Raises LegError if the engine was found to be failing meanwhile."""
        policies, began = self._policies, _now()
        self._stale = True
        try:
            await policies.semaphore.enter()
        except asyncio.CancelledError:
            policies.instrumentation.waited(_now() - began)
            raise
        policies.instrumentation.waited(_now() - began)
        refusal = policies.tracker.refusal()
        if refusal is not None:
            policies.semaphore.leave()
            raise after or refusal

    # ── attempts ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _attempts(self, after: LegError | None) -> Reply:
        fault = after
        if fault is None or _is_free_repeat(fault):
            if fault is not None:
                self._kind = "again"
                self._free += isinstance(fault, Refused)
            try:
                return await self._attempt()
            except LegError as failed:
                fault = failed
        if not self._may_retry(fault):
            raise fault
        return await ask_again(self._attempt, fault, LegError, self._pause)

    def _pause(self, fault: BaseException) -> float | None:
        """Seconds before another attempt; None to give up."""
        policies = self._policies
        if not isinstance(fault, LegError) or self.sent - 1 - self._free >= policies.entry.retries:
            return None
        if not self._may_retry(fault):
            return None
        now = _now()
        if policies.tracker.breaker.retry_in(now) is not None:
            return None
        replicas = policies.tracker.replicas
        # Another replica need not observe the pause that this one has asked for.
        elsewhere = replicas.single is None and replicas.held_for(now) is None
        asked = 0.0 if elsewhere or fault.retry_after_ms is None else fault.retry_after_ms / 1000 + MARGIN
        # Waiting longer would cost more than answering without this engine.
        if asked > policies.pace.longest + MARGIN:
            return None
        pause = policies.pace.pause(self._repeats, asked)
        # Do not spend the retry budget on an attempt that cannot finish.
        if now + pause + MIN_SECONDS > self._deadline:
            self._skip_retry(fault, "time", "no time is left for another attempt")
            return None
        if not policies.budget.spend():
            self._skip_retry(fault, "budget", "the retry budget is used up")
            return None
        self._repeats += 1
        self._kind = "retry"
        return pause

    def _may_retry(self, fault: LegError) -> bool:
        # -32603 may be repeated once (RCP §12), not once per caller that sends the same params.
        if self._known and is_suspect(fault):
            return False
        return worth_repeating(fault, self._idempotent, self._repeats, self._policies.tracker.replicas.single is None)

    def _skip_retry(self, fault: LegError, reason: str, text: str) -> None:
        self._policies.instrumentation.retry_skipped(reason)
        fault.reword(f"{fault.message} (attempt {self.sent} of {self._policies.entry.retries + 1}: {text})")

    async def _attempt(self) -> Reply:
        """One attempt, or two if it is hedged. Raises LegError."""
        policies = self._policies
        try:
            generation = policies.tracker.admit()
        except BreakerOpen as refusal:
            # It opened while this call paused between two attempts: what the call failed with says more.
            raise self._fault or refusal from None
        replica = policies.tracker.replicas.choose(_now(), self._last)
        assert replica is not None, "an admitted call has a replica"
        self._generation, self._since = generation, _now()
        # Counted before sending: an attempt that is cancelled has reached the engine as well.
        self._count()
        delay = policies.hedge.delay if policies.hedge is not None and self._idempotent else None
        if delay is None:
            reply = await self._try_replica(replica, generation)
        else:
            reply = await race(self._try_replica(replica, generation), lambda: self._second(replica, generation), delay)
        self._generation = None
        self._active.clear()
        return reply._replace(attempts=self.sent, hedged=self.hedged) if self.sent > 1 else reply

    def _count(self) -> None:
        policies = self._policies
        if self._kind == "first":
            policies.instrumentation.first()
            policies.budget.earn()
            if policies.hedge is not None:
                policies.hedge.budget.earn()
        else:
            policies.instrumentation.attempted(self._kind)

    def _second(self, slow: Replica, generation: int) -> Awaitable[Reply] | None:
        """Start the hedge at another replica, if the semaphore and the hedge budget allow it."""
        policies = self._policies
        assert policies.hedge is not None
        other = policies.tracker.replicas.choose(_now(), slow)
        # A hedge helps only at another replica, and must never delay first attempts.
        if other is None or other is slow or not policies.tracker.breaker.closed or not policies.semaphore.try_enter():
            return None
        if not policies.hedge.budget.spend():
            policies.semaphore.leave()
            return None
        # A hedge is no retry: it has its own budget and does not use up `retries`.
        self.hedged = True
        self._free += 1
        policies.instrumentation.attempted("hedge")
        return self._hedge(other, generation)

    async def _hedge(self, replica: Replica, generation: int) -> Reply:
        try:
            return await self._try_replica(replica, generation)
        finally:
            self._policies.semaphore.leave()

    async def _try_replica(self, replica: Replica, generation: int) -> Reply:
        """Call one replica and record the outcome. Raises LegError."""
        policies, tracker = self._policies, self._policies.tracker
        params = self._params_with_time_left()
        self._last = replica
        self.sent += 1
        replica.in_flight += 1
        self._active.append(replica)
        began = _now()
        try:
            reply = await self._call_replica(replica, params)
            check_shape(self._method, reply.result)
        except LegError as fault:
            # Removed here and not in `finally`: `late` needs to know which replicas had not answered.
            self._active.remove(replica)
            self._count_requests(fault.attempts, fault.free)
            self._generation = None
            self._known = tracker.suspicion.knows(self._params, _now())
            tracker.failed(fault, replica, generation, self._method, self._params)
            fault.replica = None if tracker.replicas.single is not None else replica.label
            self._fault = fault
            raise
        finally:
            replica.in_flight -= 1
            replica.update_ready()
        self._active.remove(replica)
        self._count_requests(reply.attempts, reply.free)
        tracker.availability.answered = True
        tracker.succeeded(replica, generation)
        if policies.hedge is not None:
            policies.hedge.took(_now() - began)
        return reply if tracker.replicas.single is not None else reply._replace(replica=replica.label)

    async def _call_replica(self, replica: Replica, params: Mapping[str, Any]) -> Reply:
        """Call one replica within the timeout of one attempt. Raises LegError."""
        most = self._policies.entry.attempt_timeout_ms
        if most is None:
            return await replica.handshake.call(self._method, params, self._idempotent)
        expiry = Timeout(_now() + most / 1000)
        try:
            return await replica.handshake.call(self._method, params, self._idempotent)
        except asyncio.CancelledError:
            if not expiry.is_the_cause():
                raise
            raise LegTimeout("no answer within the time of one attempt") from None
        finally:
            expiry.end()

    def _count_requests(self, attempts: int, free: int) -> None:
        """Add the requests of one attempt beyond the first: a fresh connection, or a handshake."""
        self.sent += attempts - 1
        self._free += free
        if attempts > 1:
            self._policies.instrumentation.attempted("again", attempts - 1)

    def _params_with_time_left(self) -> Mapping[str, Any]:
        """The params, with a `_meta.deadlineMs` that still holds (RCP §16: strictly less than what remains)."""
        meta = self._params.get("_meta")
        # The first attempt without waiting uses the deadline that the planner wrote.
        stated = meta.get("deadlineMs") if type(meta) is dict and (self.sent or self._stale) else None
        left = max(1, int((self._deadline - _now()) * 1000))
        if type(stated) is not int or stated <= left:
            return self._params
        return {**self._params, "_meta": {**meta, "deadlineMs": left}}  # type: ignore[dict-item]

    def __repr__(self) -> str:
        return f"<CallAttempts {self._policies.entry.id}, {self.sent} requests, {self._repeats} retries>"


def has_short_deadline(policies: CallPolicies, given: float) -> bool:
    """Whether a timeout after `given` seconds says nothing about the engine: too short, or its answer waited for us."""
    # An answer that waited for the memory budget was late through this gateway's own doing.
    held = HELD.get()
    if held is not None and held.waited:
        return True
    entry = policies.entry
    usual = entry.timeout_ms if entry.attempt_timeout_ms is None else min(entry.timeout_ms, entry.attempt_timeout_ms)
    return given * 1000 < usual * SHORT_DEADLINE


def _is_free_repeat(fault: LegError) -> bool:
    """Whether the repetition costs no retry: the idle connection was closed, or a handshake is due."""
    return isinstance(fault, ConnectionLost) or is_handshake_due(fault)


def is_handshake_due(fault: LegError) -> bool:
    """Whether the engine answered that it needs a handshake first (-32001)."""
    return isinstance(fault, Refused) and fault.code == NotInitialized.code


def _now() -> float:
    return asyncio.get_running_loop().time()
