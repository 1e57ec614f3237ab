"""Forwards a call to one engine: candidates are tried in order until one answers.

Decides after which failures the next candidate may be tried, and reports those that failed. What an engine is sent and
how its result is checked comes with the request."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from app.federation.calls import MIN_SECONDS, Call, MethodCall, time_left
from app.federation.candidates import Candidates, check_route
from app.federation.engine_interface import Engine
from app.federation.forwarded_params import forwarded_meta
from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.membership import Members
from app.federation.outcome import (
    Outcome,
    cancelled,
    degraded,
    failed,
    no_engine_answered,
    refused_by,
    report,
    skipped,
    succeeded,
)
from app.protocol.errors import (
    BackendUnavailable,
    CapabilityMissing,
    DeadlineExceeded,
    LegError,
    NotInitialized,
    RateLimited,
    Unauthorized,
    UnknownMethod,
)
from app.resilience.deadline import call_seconds
from app.settings.schema import GatewaySettings

Result = dict[str, Any]

NOT_SENT = frozenset({"connect", "departed", "tls", "overloaded", "breaker_open"})
"""Kinds of failures before any byte of the call was sent."""

NOT_DONE = frozenset(
    {
        BackendUnavailable.code,
        RateLimited.code,
        NotInitialized.code,
        CapabilityMissing.code,
        UnknownMethod.code,
        Unauthorized.code,
    }
)
"""Codes with which an engine says that it did nothing, for a reason that another engine may not have."""

TRY_NEXT = frozenset({*NOT_DONE, DeadlineExceeded.code})
"""Codes after which an idempotent call goes on to the next engine; any other refusal concerns the call itself."""


_UNKNOWN = {UnknownMethod.code}


class Share(NamedTuple):
    """What one engine is given of a call's time: its `_meta`, and its deadline in event-loop seconds."""

    meta: Mapping[str, Any]
    seconds: float
    deadline: float
    cut_by_caller: bool
    """Whether the caller's deadline, not the engine's own timeout, is the limit."""


class ForwardReport(NamedTuple):
    """What an engine answered, and how many requests that took."""

    result: Result
    attempts: int = 1
    size: int = 0
    replica: str | None = None
    hedged: bool = False


class ForwardedRequest(NamedTuple):
    """One call as it is sent to engines."""

    ask: Callable[[Engine, Share], Awaitable[ForwardReport]]
    """Asks one engine. Raises LegError, and ProtocolViolation for an invalid result."""
    idempotent: bool = True
    """Whether the next engine may be asked after this one may have carried out the call."""


def unchanged(result: Result) -> Result:
    """Accepts any object as a result."""
    return result


def plain(
    method: str,
    params: Mapping[str, Any],
    read: Callable[[Result], Result] = unchanged,
    *,
    idempotent: bool = True,
) -> ForwardedRequest:
    """Sends every engine the same `params`; `read` checks and completes the result."""

    async def ask(engine: Engine, share: Share) -> ForwardReport:
        sent = {**params, "_meta": share.meta}
        reply = await engine.call(method, sent, share.deadline, idempotent=idempotent)
        return ForwardReport(read(reply.result), reply.attempts, reply.size, reply.replica, reply.hedged)

    return ForwardedRequest(ask, idempotent)


async def forward(
    call: Call,
    candidates: Candidates,
    members: Members,
    settings: GatewaySettings,
    instrumentation: RetrieveInstrumentation,
    request: ForwardedRequest,
) -> Result:
    """The result of the first candidate that answers, with the report of all engines in its `_meta`. Raises RcpError.

    A refusal that concerns the call itself is returned with the engine's own code. If no engine answered: -32010, or
    -32014 if the caller's own deadline was the reason.
    """
    # There is no empty result that would be true, so a cycle is an error here (unlike for `retrieve`).
    check_route(call, members)
    if not candidates.engines:
        raise candidates.no_candidate_error()
    outcomes: list[Outcome] = []
    cut_by_caller = False
    for place, engine in enumerate(candidates.engines):
        # Every attempt takes from the same deadline.
        if time_left(call) < MIN_SECONDS:
            cut_by_caller = True
            break
        share = share_of(call, engine, members, settings)
        cut_by_caller = cut_by_caller or share.cut_by_caller
        outcome = await ask_one(engine, share, request, instrumentation)
        outcomes.append(outcome)
        if outcome.result is not None:
            return reported(outcome.result, members, [*candidates.lost, *outcomes], _left_over(candidates, place))
        if not _may_go_on(outcome, request.idempotent):
            break
    if not outcomes:
        raise DeadlineExceeded("the deadline leaves no time to ask any engine", retryable=True)
    # The last engine's refusal concerns the call, so it is more useful than -32010.
    if outcomes[-1].kind == "refused" and (outcomes[-1].code not in TRY_NEXT or _unknown_to_all(call, outcomes)):
        raise refused_by(outcomes[-1])
    raise no_engine_answered([*candidates.lost, *outcomes], out_of_time=cut_by_caller)


def share_of(call: Call, engine: Engine, members: Members, settings: GatewaySettings) -> Share:
    """What `engine` is given of the remaining time; always less than all of it (RCP §16)."""
    own = engine.entry.timeout_ms / 1000
    remaining = time_left(call)
    # Less than the remaining time, so that this gateway can still answer after a timeout (RCP §16).
    seconds = call_seconds(remaining, own, settings.retrieve.reserve_ms / 1000)
    meta = {**forwarded_meta(call, members.identity), "deadlineMs": max(1, int(seconds * 1000))}
    return Share(meta, seconds, call.deadline - remaining + seconds, seconds < own)


async def ask_one(
    engine: Engine, share: Share, request: ForwardedRequest, instrumentation: RetrieveInstrumentation
) -> Outcome:
    """The outcome of asking one engine, including its result. Raises only CancelledError."""
    started = perf_counter()  # the clock of the event loop may have a resolution of a millisecond
    try:
        reply = await request.ask(engine, share)
        outcome = succeeded(engine.id, reply.result, perf_counter() - started, reply.attempts, reply.size)
        if reply.replica is not None:
            outcome = outcome._replace(replica=reply.replica, hedged=reply.hedged)
    except LegError as fault:
        outcome = failed(engine.id, fault, perf_counter() - started)
    except asyncio.CancelledError:
        # The engine was asked, so the call must appear in the metrics.
        instrumentation.engine_call(cancelled(engine.id, perf_counter() - started))
        raise
    instrumentation.engine_call(outcome)
    return outcome


def reported(
    result: Mapping[str, Any], members: Members, outcomes: Sequence[Outcome], not_asked: Sequence[Outcome]
) -> Result:
    """`result` with the report of every engine in its `_meta`, beside what the engine itself has put there."""
    theirs = result.get("_meta")
    meta = dict(theirs) if type(theirs) is dict else {}
    meta.pop("degraded", None)  # about the engine's own engines; its notes still name them
    meta["x-gateway"] = {"id": members.identity, "engines": report([*outcomes, *not_asked], of_hits=False)}
    dropped = degraded(outcomes)
    if dropped:
        meta["degraded"] = dropped
    return {**result, "_meta": meta}


def with_writer_note(result: Result, engine_id: str | None) -> Result:
    """`result` with a note that the call was sent to the default writer; unchanged if `engine_id` is None."""
    if engine_id is None:
        return result
    meta = {**result["_meta"], "x-gateway": {**result["_meta"]["x-gateway"], "writer": engine_id}}
    usage = result.get("usage")
    usage = usage if type(usage) is dict else {}
    before = usage.get("notes")
    note = f"written to the default writer '{engine_id}'; set 'x-gateway.engine' to choose another engine"
    notes = [*(before if type(before) is list else ()), note]
    return {**result, "usage": {**usage, "notes": notes}, "_meta": meta}


def _unknown_to_all(call: Call, outcomes: Sequence[Outcome]) -> bool:
    """Whether no engine knows this vendor method: a later retry would not help."""
    return isinstance(call, MethodCall) and call.method.startswith("x-") and {o.code for o in outcomes} == _UNKNOWN


def _left_over(candidates: Candidates, place: int) -> list[Outcome]:
    """Every engine that was not asked, given that the candidate at `place` answered."""
    behind = candidates.engines[place + 1 :]
    return [*candidates.skipped, *(skipped(engine.id, "not_needed", "another engine answered") for engine in behind)]


def _may_go_on(outcome: Outcome, idempotent: bool) -> bool:
    """Whether the next engine may be asked after this failure. Never if the call may have been carried out already."""
    # The engine answered, so the error code shows whether it did anything.
    if outcome.kind == "refused":
        return outcome.code in (TRY_NEXT if idempotent else NOT_DONE)
    return idempotent or outcome.kind in NOT_SENT or outcome.kind == "rate_limited"


Answer = TypeVar("Answer")


async def gather_bounded(calls: Sequence[Callable[[], Awaitable[Answer]]], at_once: int) -> list[Answer]:
    """The answers in order, at most `at_once` calls at a time. Raises what the first failing call raised, after all
    others have ended."""
    # No task is needed for the usual case.
    if len(calls) == 1:
        return [await calls[0]()]
    answers: dict[int, Answer] = {}
    # One iterator shared by all workers hands out every call exactly once.
    waiting = iter(enumerate(calls))

    async def work() -> None:
        for place, call in waiting:
            answers[place] = await call()

    workers = [asyncio.create_task(work()) for _ in range(min(at_once, len(calls)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        # Waits for the cancelled workers too: nothing may keep running after the request has ended.
        await asyncio.gather(*workers, return_exceptions=True)
    return [answers[place] for place in range(len(calls))]
