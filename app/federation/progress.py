"""Progress notifications and log lines for the caller while engines are being asked (RCP §9, §17).

Partial lists are fused anew each time, so they are made only while the caller can take them, at a bounded rate, and
never for the last engine: the response follows."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, Final, Protocol

from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.outcome import Hit, Outcome, failure_line
from app.federation.rerank_plan import RerankVerdict
from app.protocol.retrieve_params import LOG_LEVELS, CallMeta

Progress = dict[str, Any]
"""The params of one `notifications/progress`."""

Token = str | int | None
"""The caller's `_meta.progressToken`; returned as it was sent."""


class ProgressListener(Protocol):
    """Receives progress notifications and log lines. No method blocks."""

    @property
    def ready(self) -> bool:
        """Whether a partial list of hits could be sent at once. Otherwise none is made."""
        ...

    def open(self) -> None:
        """Engines are about to be asked: from here on there may be notifications."""
        ...

    def send(self, progress: Mapping[str, Any]) -> None:
        """Send a notification. A later one may replace one that a slow caller has not received yet."""
        ...

    def log(self, line: Mapping[str, Any]) -> None:
        """Send a log line. Log lines are never replaced."""
        ...


def call_ended(token: Token, outcome: Outcome, ended: int, engine_calls: int, hits: Sequence[Hit] | None) -> Progress:
    """One of `engine_calls` ended, the `ended`th to do so. `hits` is the partial list, if it is sent now.

    `progress` is the share of engine calls that have ended.
    """
    progress: Progress = {
        "progressToken": token,
        "progress": ended / engine_calls,
        "stage": "recall",
        "message": failure_line(outcome) if outcome.status == "failed" else _answer_line(outcome),
    }
    if hits is not None:
        progress["partial"] = {"hits": hits}
    return progress


def list_so_far(token: Token, ended: int, engine_calls: int, hits: Sequence[Hit]) -> Progress:
    """The partial list after `ended` of `engine_calls`, sent some time after the last of them ended."""
    return {
        "progressToken": token,
        "progress": ended / engine_calls,
        "stage": "recall",
        "message": f"{ended} of {engine_calls} engine calls have ended",
        "partial": {"hits": hits},
    }


def log_line(wanted: str, outcome: Outcome) -> Progress | None:
    """The params of `notifications/log` (RCP §17.1) for an engine call that ended; None if below the `wanted` level.

    A failure is a warning, an answer is debug.
    """
    level = "warning" if outcome.status == "failed" else "debug"
    # LOG_LEVELS is in order of severity.
    if LOG_LEVELS.index(level) < LOG_LEVELS.index(wanted):
        return None
    data: dict[str, Any] = {"engine": outcome.engine, "status": outcome.status, "tookMs": round(outcome.took * 1000, 2)}
    if outcome.kind is not None:
        data["reason"] = outcome.kind
    message = failure_line(outcome) if outcome.status == "failed" else _answer_line(outcome)
    return {"level": level, "message": message, "logger": "federation", "data": data}


def fused(token: Token, outcomes: Sequence[Outcome]) -> Progress:
    """All engine calls have ended and the lists are fused; the response follows."""
    answers = sum(outcome.status == "ok" for outcome in outcomes)
    return {
        "progressToken": token,
        "progress": 1.0,
        "stage": "fuse",
        "message": f"{answers} of {len(outcomes)} engines answered",
    }


def reranked(token: Token, verdict: RerankVerdict) -> Progress:
    """The fused list was reranked, or could not be; the response follows."""
    message = (
        f"{verdict.engine}: {verdict.reranked} documents reranked" if verdict.engine else "the fused order is unchanged"
    )
    return {"progressToken": token, "progress": 1.0, "stage": "rerank", "message": message}


def _answer_line(outcome: Outcome) -> str:
    hits = len(outcome.hits)
    summary = "answered" if outcome.result is not None and not hits else f"{hits} hit{'' if hits == 1 else 's'}"
    return f"{outcome.engine}: {summary} after {outcome.took * 1000:.0f} ms"


# --- Reporting ---

PartialHits = Callable[[Sequence[Outcome]], list[Hit] | None]
"""The hits of a response made from the outcomes so far; None if no engine has answered, or there are no hits."""

PARTIAL_SECONDS: Final = 0.05
"""Shortest time between two partial lists."""
PARTIAL_SHARE: Final = 0.05
"""Largest share of the time spent on partial lists: the longer one takes to make, the less often one is made."""


class ProgressReporter:
    """Reports one fan-out to a listener. `close` must be called when it ends."""

    __slots__ = (
        "_changed",
        "_ended",
        "_engine_calls",
        "_instrumentation",
        "_listener",
        "_loop",
        "_meta",
        "_next",
        "_partial_hits",
        "_timer",
    )

    def __init__(
        self,
        listener: ProgressListener,
        instrumentation: RetrieveInstrumentation,
        meta: CallMeta,
        engine_calls: int,
        partial_hits: PartialHits,
    ) -> None:
        """`engine_calls`: how many engines are about to be asked."""
        self._ended: list[Outcome] = []
        self._engine_calls = engine_calls
        self._listener = listener
        self._meta = meta
        self._partial_hits = partial_hits
        self._instrumentation = instrumentation
        self._loop = asyncio.get_running_loop()
        self._changed = False  # whether an engine has answered since the last partial list
        self._next = 0.0  # earliest time of the next partial list, in event-loop seconds
        self._timer: asyncio.TimerHandle | None = None
        listener.open()

    def call_ended(self, outcome: Outcome) -> None:
        """One engine call ended."""
        self._instrumentation.engine_call(outcome)
        # The request has ended; the caller expects no more notifications.
        if outcome.status == "cancelled":
            return
        self._ended.append(outcome)
        self._changed = self._changed or outcome.status == "ok"
        meta = self._meta
        line = None if meta.log_level is None else log_line(meta.log_level, outcome)
        if line is not None:
            self._listener.log(line)
        hits = self._hits()
        self._listener.send(call_ended(meta.progress_token, outcome, len(self._ended), self._engine_calls, hits))

    def close(self) -> None:
        """Make no more partial lists."""
        self._changed = False
        if self._timer is not None:
            self._timer.cancel()

    def _hits(self) -> list[Hit] | None:
        """The partial list if one is due; if it is due later, a timer sends it."""
        # The last engine needs no partial list: the response follows at once.
        if not self._changed or self._meta.progress_token is None or len(self._ended) == self._engine_calls:
            return None
        wait = self._next - self._loop.time()
        if wait > 0 or not self._listener.ready:
            # One timer is enough: it sends whatever has arrived by then.
            if self._timer is None:
                self._timer = self._loop.call_later(wait if wait > 0 else PARTIAL_SECONDS, self._tell_late)
            return None
        self._changed = False
        began = perf_counter()
        hits = self._partial_hits(self._ended)
        # Bounds the CPU spent on partial lists to PARTIAL_SHARE, however large they are.
        pause = max(PARTIAL_SECONDS, (perf_counter() - began) / PARTIAL_SHARE)
        self._next = self._loop.time() + pause
        return hits

    def _tell_late(self) -> None:
        """Send the list that was not due, or that the caller could not take, when the last engine call ended."""
        self._timer = None
        hits = self._hits()
        if hits is not None:
            self._listener.send(list_so_far(self._meta.progress_token, len(self._ended), self._engine_calls, hits))

    def __repr__(self) -> str:
        return f"<ProgressReporter {len(self._ended)} of {self._engine_calls} engine calls ended>"
