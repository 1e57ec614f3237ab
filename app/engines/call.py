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

    A fault does not win while the other may still answer; if both fail, the first one's fault is raised. Whoever has
    not won is cancelled and gone before this ends, however it ends.
    """
    runners = [asyncio.ensure_future(first)]
    try:
        done, _ = await asyncio.wait(runners, timeout=delay)
        other = None if done else second()
        if other is not None:
            runners.append(asyncio.ensure_future(other))
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


HASTE = 0.5
"""A timeout after less than this share of the engine's own is the caller's haste, not the engine's failure."""

LEAST_SECONDS = 0.02
"""With less time than this left after the pause no further attempt is made."""

MARGIN = 0.001
"""Added to the pause an engine asks for, since clocks are coarse."""


class CallAttempts:
    """One question under way to one engine. `deadline` is in event-loop seconds; `end` must be called at last."""

    __slots__ = (
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
        "_under_way",
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
        self._under_way: list[Replica] = []
        self._since = 0.0
        self._stale = False

    async def answer(self, after: LegError | None) -> Reply:
        """The answer; `after` is the fault of an attempt made before. Raises LegError, GateFull."""
        policies = self._policies
        if after is not None:
            self.sent, self._free, self._fault = after.attempts, after.free, after
            if not is_due(after):  # who asks for a handshake is shaken hands with, and is well
                self._last = policies.tracker.replicas.named(after.replica)
        refusal = policies.tracker.refusal()
        if refusal is not None and (after is None or isinstance(refusal, BreakerOpen)):
            raise after or refusal
        if not policies.gate.try_enter():
            await self._wait(after)
        try:
            return await self._attempts(after)
        finally:
            policies.gate.leave()

    def late(self) -> LegTimeout:
        """The deadline has come: the fault of this call, held against the engine unless the caller was in haste."""
        fault = LegTimeout("no answer within the time it was given")
        fault.attempts = self.sent
        generation, self._generation = self._generation, None
        if generation is not None:
            if is_hasty(self._policies, self._deadline - self._since):
                self._policies.tracker.said_nothing(generation)
            else:
                for replica in self._under_way:
                    self._policies.tracker.failed(fault, replica, generation, self._method, self._params)
        return fault

    def end(self) -> None:
        """It is over, one way or another: a call that ended in between says nothing about the engine."""
        if self._generation is not None:
            self._policies.tracker.said_nothing(self._generation)
            self._generation = None

    # ── the gate ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _wait(self, after: LegError | None) -> None:
        """Wait for a place; meanwhile the engine may have turned out to be sick: `after` says more than that."""
        policies, began = self._policies, _now()
        self._stale = True
        try:
            await policies.gate.enter()
        except asyncio.CancelledError:
            policies.instrumentation.waited(_now() - began)
            raise
        policies.instrumentation.waited(_now() - began)
        refusal = policies.tracker.refusal()
        if refusal is not None:
            policies.gate.leave()
            raise after or refusal

    # ── attempts ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _attempts(self, after: LegError | None) -> Reply:
        fault = after
        if fault is None or _asks_at_once(fault):
            if fault is not None:
                self._kind = "again"
                self._free += isinstance(fault, Refused)
            try:
                return await self._attempt()
            except LegError as failed:
                fault = failed
        if not self._worth_it(fault):
            raise fault
        return await ask_again(self._attempt, fault, LegError, self._pause)

    def _pause(self, fault: BaseException) -> float | None:
        """Seconds before another attempt, None if there shall be none."""
        policies = self._policies
        if not isinstance(fault, LegError) or self.sent - 1 - self._free >= policies.entry.retries:
            return None
        if not self._worth_it(fault):
            return None
        now = _now()
        if policies.tracker.breaker.retry_in(now) is not None:
            return None
        replicas = policies.tracker.replicas
        elsewhere = replicas.lone is None and replicas.held_for(now) is None
        asked = 0.0 if elsewhere or fault.retry_after_ms is None else fault.retry_after_ms / 1000 + MARGIN
        if asked > policies.pace.longest + MARGIN:
            return None
        pause = policies.pace.pause(self._repeats, asked)
        if now + pause + LEAST_SECONDS > self._deadline:
            self._forgo(fault, "time", "no time is left for another attempt")
            return None
        if not policies.budget.spend():
            self._forgo(fault, "budget", "the retry budget is used up")
            return None
        self._repeats += 1
        self._kind = "retry"
        return pause

    def _worth_it(self, fault: LegError) -> bool:
        if self._known and is_suspect(fault):
            return False  # it failed so before this question
        return worth_repeating(fault, self._idempotent, self._repeats, self._policies.tracker.replicas.lone is None)

    def _forgo(self, fault: LegError, reason: str, text: str) -> None:
        self._policies.instrumentation.forgone(reason)
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
        assert replica is not None, "who is admitted has a replica to ask"
        self._generation, self._since = generation, _now()
        self._count()
        delay = policies.hedge.delay if policies.hedge is not None and self._idempotent else None
        if delay is None:
            reply = await self._ask(replica, generation)
        else:
            reply = await race(self._ask(replica, generation), lambda: self._second(replica, generation), delay)
        self._generation = None
        self._under_way.clear()
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
        """The hedge: another replica is asked as well, if the gate has room and the budget allows."""
        policies = self._policies
        assert policies.hedge is not None
        other = policies.tracker.replicas.choose(_now(), slow)
        if other is None or other is slow or not policies.tracker.breaker.closed or not policies.gate.try_enter():
            return None
        if not policies.hedge.budget.spend():
            policies.gate.leave()
            return None
        self.hedged = True
        self._free += 1
        policies.instrumentation.attempted("hedge")
        return self._hedge(other, generation)

    async def _hedge(self, replica: Replica, generation: int) -> Reply:
        try:
            return await self._ask(replica, generation)
        finally:
            self._policies.gate.leave()

    async def _ask(self, replica: Replica, generation: int) -> Reply:
        """Put the question to one replica and write down how that ended. Raises LegError."""
        policies, tracker = self._policies, self._policies.tracker
        params = self._told_of_time()
        self._last = replica
        self.sent += 1
        replica.in_flight += 1
        self._under_way.append(replica)
        began = _now()
        try:
            reply = await self._in_its_time(replica, params)
            check_shape(self._method, reply.result)
        except LegError as fault:
            self._under_way.remove(replica)
            self._more(fault.attempts, fault.free)
            self._generation = None
            self._known = tracker.suspicion.knows(self._params, _now())
            tracker.failed(fault, replica, generation, self._method, self._params)
            fault.replica = None if tracker.replicas.lone is not None else replica.label
            self._fault = fault
            raise
        finally:
            replica.in_flight -= 1
            replica.look()
        self._under_way.remove(replica)
        self._more(reply.attempts, reply.free)
        tracker.availability.answered = True
        tracker.succeeded(replica, generation)
        if policies.hedge is not None:
            policies.hedge.took(_now() - began)
        return reply if tracker.replicas.lone is not None else reply._replace(replica=replica.label)

    async def _in_its_time(self, replica: Replica, params: Mapping[str, Any]) -> Reply:
        """The answer within what one attempt may take. Raises LegError."""
        most = self._policies.entry.attempt_timeout_ms
        if most is None:
            return await replica.handshake.ask(self._method, params, self._idempotent)
        expiry = Timeout(_now() + most / 1000)
        try:
            return await replica.handshake.ask(self._method, params, self._idempotent)
        except asyncio.CancelledError:
            if not expiry.is_the_cause():
                raise
            raise LegTimeout("no answer within the time of one attempt") from None
        finally:
            expiry.end()

    def _more(self, attempts: int, free: int) -> None:
        """What became of one attempt: it may have taken more requests than one."""
        self.sent += attempts - 1
        self._free += free
        if attempts > 1:
            self._policies.instrumentation.attempted("again", attempts - 1)

    def _told_of_time(self) -> Mapping[str, Any]:
        """The params, with a `_meta.deadlineMs` that still holds (RCP §16: strictly less than what remains)."""
        meta = self._params.get("_meta")
        stated = meta.get("deadlineMs") if type(meta) is dict and (self.sent or self._stale) else None
        left = max(1, int((self._deadline - _now()) * 1000))
        if type(stated) is not int or stated <= left:
            return self._params
        return {**self._params, "_meta": {**meta, "deadlineMs": left}}  # type: ignore[dict-item]

    def __repr__(self) -> str:
        return f"<Inquiry {self._policies.entry.id}, {self.sent} requests, {self._repeats} retries>"


def is_hasty(policies: CallPolicies, given: float) -> bool:
    """Whether `given` seconds are too few to blame the engine for not answering, or its answer had to wait for us."""
    held = HELD.get()
    if held is not None and held.waited:
        return True
    entry = policies.entry
    usual = entry.timeout_ms if entry.attempt_timeout_ms is None else min(entry.timeout_ms, entry.attempt_timeout_ms)
    return given * 1000 < usual * HASTE


def _asks_at_once(fault: LegError) -> bool:
    """Whether the fault of a begun attempt is none: a connection that had been idle, a handshake that is due."""
    return isinstance(fault, ConnectionLost) or is_due(fault)


def is_due(fault: LegError) -> bool:
    """Whether it says that a handshake is."""
    return isinstance(fault, Refused) and fault.code == NotInitialized.code


def _now() -> float:
    return asyncio.get_running_loop().time()
