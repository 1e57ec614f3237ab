"""What became of each engine call, and the report of it: `usage.notes`, `_meta.degraded`, `_meta["x-gateway"]`.
Pure.

A malformed hit is dropped with a note, a malformed response fails its engine (decision 7). Confidences are checked
by fusion.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from app.protocol.errors import (
    BackendUnavailable,
    BreakerOpen,
    DeadlineExceeded,
    ForeignError,
    GatewayBusy,
    LegError,
    LegRateLimited,
    LegTimeout,
    Overloaded,
    ProtocolViolation,
    RateLimited,
    RcpError,
    clip,
)
from app.protocol.filters import MAX_INTEGER
from app.protocol.param_fields import is_id

Hit = dict[str, Any]

MAX_HITS: Final = 1000
"""Hits of one engine that are read, whatever it sends: fan-in must stay bounded (RCP §15)."""


MAX_NOTES = 10
"""Notes of one engine that are passed on."""

MERGED_FROM: Final = 4
"""From this number of engines on, notes of one kind become one line: nobody reads a hundred."""

_NUMBER: Final = re.compile(r"\d+")


class Outcome(NamedTuple):
    """The result of one engine call; a named tuple, because a frozen dataclass costs four times as much to create.

    `status` is ok, failed, skipped or cancelled; `took` is in seconds.

    `kind` is the class of a failure or the reason of a skip, `detail` a short text for people.
    """

    engine: str
    status: str
    hits: Sequence[Hit] = ()
    took: float = 0.0
    attempts: int = 0
    kind: str | None = None
    detail: str | None = None
    code: int | None = None
    retry_after_ms: int | None = None
    notes: tuple[str, ...] = ()
    malformed: int = 0
    excess: int = 0
    candidates: int = 0
    reranked: int = 0
    index_version: str | None = None
    rewritten_query: str | None = None
    size: int = 0
    """Bytes of the response."""
    replica: str | None = None
    """The replica that was asked last."""
    hedged: bool = False
    """Whether a second replica was asked because the first was slow."""
    result: Mapping[str, Any] | None = None
    """The raw result, for methods whose results are not lists of hits."""
    refusal: Mapping[str, Any] | None = None
    """The engine's own `field` or `option` of the param that it refused."""

    @property
    def not_sent(self) -> bool:
        """Whether the call was planned but nothing was sent: breaker open, rate limited by the engine, or no free
        connection in time. Says nothing about the engine's latency."""
        return self.status == "failed" and self.attempts == 0 and self.kind != "unreached"

    @property
    def held_back(self) -> bool:
        """Whether the engine was not asked although it may be well: breaker open, or rate limited by the engine."""
        return self.attempts == 0 and self.kind in _HELD_BACK


_HELD_BACK: Final = frozenset({BreakerOpen.kind, LegRateLimited.kind})


def answered(engine: str, result: dict[str, Any], took: float, attempts: int, size: int = 0) -> Outcome:
    """The outcome of an engine call that returned this `retrieve` result (RCP §7.7). Raises ProtocolViolation."""
    sent = result.get("hits")
    if type(sent) is not list:
        raise ProtocolViolation("the retrieve result has no 'hits' array")
    excess = max(0, len(sent) - MAX_HITS)
    # Cut before validation, so that a huge list costs no more than MAX_HITS.
    if excess:
        sent = sent[:MAX_HITS]
    hits = sent
    malformed = 0
    if not _all_well_formed(sent):
        hits = [hit for hit in sent if _well_formed(hit)]
        malformed = len(sent) - len(hits)
    usage = result.get("usage")
    candidates, reranked = len(hits), 0
    lines = _hit_notes(engine, malformed, excess) if malformed or excess else ()
    if type(usage) is dict:
        # An engine cannot have considered fewer candidates than it returned.
        candidates = max(_count(usage.get("candidates")), candidates)
        reranked = _count(usage.get("reranked"))
        if "notes" in usage:
            lines += engine_notes(engine, usage["notes"])
    index_version = result.get("indexVersion")
    rewritten = result.get("rewrittenQuery")
    # Bypasses the constructor, which costs several times as much.
    return tuple.__new__(
        Outcome,
        (
            engine,
            "ok",
            hits,
            took,
            attempts,
            None,
            None,
            None,
            None,
            lines,
            malformed,
            excess,
            candidates,
            reranked,
            index_version if type(index_version) is str else None,
            rewritten if type(rewritten) is str else None,
            size,
            None,
            False,
            None,
            None,
        ),
    )


def succeeded(engine: str, result: Mapping[str, Any], took: float, attempts: int, size: int = 0) -> Outcome:
    """The outcome of an engine call of any other method; the result is kept as it is."""
    return Outcome(engine, "ok", (), took, attempts, size=size, result=result)


def failed(engine: str, fault: LegError, took: float) -> Outcome:
    """The outcome of an engine call that ended with `fault`."""
    return Outcome(
        engine=engine,
        status="failed",
        took=took,
        attempts=fault.attempts,
        kind=fault.kind,
        detail=fault.message,
        code=fault.code,
        retry_after_ms=fault.retry_after_ms,
        replica=fault.replica,
        hedged=fault.hedged,
        refusal=fault.culprit,
    )


def cancelled(engine: str, took: float) -> Outcome:
    """The outcome of an engine call that the gateway ended: the caller left, or a required engine failed."""
    return Outcome(engine=engine, status="cancelled", took=took, kind="cancelled", detail="ended by the gateway")


def skipped(engine: str, reason: str, detail: str) -> Outcome:
    """The outcome of an engine that was not asked, and why."""
    return Outcome(engine=engine, status="skipped", kind=reason, detail=detail)


def never_reached(engine: str, why: str) -> Outcome:
    """The outcome of an engine that the request names but that has never completed a handshake."""
    return Outcome(engine=engine, status="failed", kind="unreached", detail=why)


def report(outcomes: Iterable[Outcome], *, of_hits: bool = True) -> list[dict[str, Any]]:
    """The `engines` list of `_meta["x-gateway"]`: every engine of the registry, including those not asked, and why.

    `of_hits`: whether to state the number of hits.
    """
    return [_entry(outcome, of_hits) for outcome in sorted(outcomes, key=_engine_of)]


def notes(outcomes: Iterable[Outcome]) -> list[str]:
    """The lines of `usage.notes`, by engine id: each names its engine and the class of the failure."""
    lines: list[Note] = []
    for outcome in sorted(outcomes, key=_engine_of):
        if outcome.status == "failed":
            lines.append(Note(failure_line(outcome), outcome.engine, outcome.kind or ""))
        lines.extend(Note(line, outcome.engine) for line in outcome.notes)
    return merged(lines)


class Note(NamedTuple):
    """One line about one engine, which begins with `<engine>: `. Notes of the same kind can be merged.

    `kind`: the class of a failure; empty for notes that are of one kind if they differ in numbers at most.
    """

    line: str
    engine: str
    kind: str = ""


def merged(lines: Sequence[Note]) -> list[str]:
    """The lines, of which those of one kind are one from the fourth engine on: `41 engines: …`.

    The merged line stands where the first of them would.
    """
    if len(lines) < MERGED_FROM:
        return [note.line for note in lines]
    groups: dict[tuple[str, str], list[Note]] = {}
    for note in lines:
        kind = ("failure", note.kind) if note.kind else ("note", _NUMBER.sub("#", note.line.partition(": ")[2]))
        groups.setdefault(kind, []).append(note)
    found: list[str] = []
    for group in groups.values():
        engines = {note.engine for note in group}
        if len(engines) < MERGED_FROM:
            found += [note.line for note in group]
            continue
        texts = {note.line.removeprefix(f"{note.engine}: ") for note in group}
        what = texts.pop() if len(texts) == 1 else f"such as {group[0].line}"
        found.append(f"{len(engines)} engines: {what}")
    return found


def failure_line(outcome: Outcome) -> str:
    """One failed engine in one line, such as `docs: timeout after 2000 ms (1 attempt): no answer …`."""
    if outcome.held_back:
        return f"{outcome.engine}: {outcome.kind}, asked again in {outcome.retry_after_ms} ms: {outcome.detail}"
    tries = f"{outcome.attempts} attempt{'' if outcome.attempts == 1 else 's'}"
    return f"{outcome.engine}: {outcome.kind} after {outcome.took * 1000:.0f} ms ({tries}): {outcome.detail}"


def degraded(outcomes: Iterable[Outcome]) -> list[str]:
    """Ids of the engines that were asked and failed: the response lacks their hits."""
    return sorted([outcome.engine for outcome in outcomes if outcome.status == "failed"])


def required_failed(outcome: Outcome) -> RcpError:
    """The error of a request whose required engine failed: the code of that failure (RCP §16.2)."""
    error = ForeignError(
        _code_of(outcome),
        f"the required engine '{outcome.engine}' failed: {outcome.kind}: {outcome.detail}",
        **_error_data([outcome]),
    )
    return with_outcomes(error, [outcome])


def refused_by(outcome: Outcome) -> RcpError:
    """The error of a request that its engine refused: the engine's own code (RCP §12)."""
    assert outcome.code is not None
    message = f"engine '{outcome.engine}' refused: {outcome.detail}"
    return with_outcomes(
        ForeignError(outcome.code, message, **(outcome.refusal or {}), **_error_data([outcome])), [outcome]
    )


def single_engine_failed(outcome: Outcome) -> RcpError:
    """The error of a request to a single engine that failed: the code of that failure."""
    verb = "refused" if outcome.kind == "refused" else "failed"
    message = f"engine '{outcome.engine}' {verb}: {outcome.detail}"
    return ForeignError(_code_of(outcome), message, **(outcome.refusal or {}), **_error_data([outcome]))


def no_engine_answered(outcomes: Sequence[Outcome], *, out_of_time: bool) -> RcpError:
    """The error if every engine that was asked failed (RCP §16.2): never an empty success.

    `out_of_time`: the caller's own deadline ended all calls, so it is -32014.
    """
    # Skipped engines are not a reason: they were never asked.
    lost = [outcome for outcome in outcomes if outcome.status == "failed"]
    if out_of_time and all(outcome.kind == "timeout" for outcome in lost):
        return with_outcomes(DeadlineExceeded("no engine answered before the deadline", **_error_data(lost)), outcomes)
    if lost and all(outcome.kind == Overloaded.kind for outcome in lost):
        return with_outcomes(
            GatewayBusy("every engine has too many calls to answer in time", **_error_data(lost)), outcomes
        )
    return with_outcomes(BackendUnavailable("no engine answered", **_error_data(lost)), outcomes)


def with_outcomes(error: RcpError, outcomes: Iterable[Outcome]) -> RcpError:
    """The error with the report of the engines that were asked. It is logged; the caller does not receive it."""
    error.engines = report(outcomes)
    return error


def _error_data(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    # Retrying helps only if every failure may pass.
    data: dict[str, Any] = {"retryable": all(_code_of(outcome) in _RETRYABLE for outcome in outcomes)}
    waits = [outcome.retry_after_ms for outcome in outcomes if outcome.retry_after_ms is not None]
    if waits:
        data["retryAfterMs"] = min(waits)  # one engine that answers is enough for a response
    lines = merged([Note(failure_line(outcome), outcome.engine, outcome.kind or "") for outcome in outcomes])
    data["detail"] = "; ".join(lines)
    data["notes"] = lines
    return data


_RETRYABLE = frozenset({BackendUnavailable.code, RateLimited.code, DeadlineExceeded.code})

_CODES = {
    LegTimeout.kind: DeadlineExceeded.code,
    LegRateLimited.kind: RateLimited.code,
    Overloaded.kind: RateLimited.code,
}
"""Class of a failure -> the error code if the engine named none; for any other class -32010."""


def _code_of(outcome: Outcome) -> int:
    return outcome.code if outcome.code is not None else _CODES.get(outcome.kind or "", BackendUnavailable.code)


def _entry(outcome: Outcome, of_hits: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "id": outcome.engine,
        "status": "skipped" if outcome.not_sent else outcome.status,
        "hits": len(outcome.hits),
        # Rounded by hand to 10 µs; `round` costs twice as much, for every engine of every response.
        "tookMs": int(outcome.took * 100_000 + 0.5) / 100,
        "attempts": outcome.attempts,
    }
    if outcome.replica is not None:
        entry["replica"] = outcome.replica
    if outcome.hedged:
        entry["hedged"] = True
    if not of_hits:
        del entry["hits"]
    if outcome.kind is None:
        return entry
    entry["reason"] = outcome.kind
    entry["detail"] = outcome.detail
    if outcome.code is not None:
        entry["code"] = outcome.code
    if outcome.retry_after_ms is not None:
        # The gateway's own schedule, or a hint of the engine.
        entry["retryInMs" if outcome.held_back else "retryAfterMs"] = outcome.retry_after_ms
    return entry


def _all_well_formed(hits: list[Any]) -> bool:
    """Whether every hit is well-formed, which most responses are."""
    try:
        for hit in hits:
            if type(hit) is not dict:
                return False
            hit_id, of_score = hit["id"], type(hit["score"])
            # `type(...) is` rather than isinstance: bool is a subclass of int, and True is no id.
            of_id = type(hit_id)
            if of_id is str:
                if not hit_id:
                    return False
            elif of_id is not int:
                return False
            if of_score is not float and of_score is not int:
                return False
    except KeyError:
        return False
    return True


_engine_of: Final = attrgetter("engine")


def _well_formed(hit: Any) -> bool:
    return type(hit) is dict and is_id(hit.get("id")) and type(hit.get("score")) in (int, float)


def _hit_notes(engine: str, malformed: int, excess: int) -> tuple[str, ...]:
    lines = []
    if malformed:
        lines.append(f"{engine}: {malformed} malformed hit(s) dropped (a hit needs a usable id and a numeric score)")
    if excess:
        lines.append(f"{engine}: {excess} hit(s) beyond the first {MAX_HITS} dropped")
    return tuple(lines)


def engine_notes(engine: str, value: Any) -> tuple[str, ...]:
    """The notes of the engine itself, one line each: an option it ignored, or, from a gateway, a failed engine of
    its own."""
    if type(value) is not list:
        return ()
    lines = [f"{engine}: {clip(line)}" for line in value[:MAX_NOTES] if type(line) is str and line.strip()]
    if len(value) > MAX_NOTES:
        lines.append(f"{engine}: {len(value) - MAX_NOTES} more note(s)")
    return tuple(lines)


def _count(value: Any) -> int:
    """A count stated by an engine; 0 unless it is an integer of RCP §4.6, so that sums can be serialized."""
    return value if type(value) is int and 0 <= value <= MAX_INTEGER else 0
