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
"""The caller's `_meta.progressToken`; it comes back as it was sent."""


class ProgressListener(Protocol):
    """Where progress goes. No method waits."""

    @property
    def ready(self) -> bool:
        """Whether a list of hits that is told now can be sent at once. No list is made for who is not ready."""
        ...

    def open(self) -> None:
        """Engines are about to be asked: from here on the caller hears what happens."""
        ...

    def tell(self, progress: Mapping[str, Any]) -> None:
        """Something happened. What comes later may take the place of what a slow caller has not heard yet."""
        ...

    def log(self, line: Mapping[str, Any]) -> None:
        """A line for the caller's own log, of which nothing takes the place."""
        ...


def call_ended(token: Token, outcome: Outcome, ended: int, engine_calls: int, hits: Sequence[Hit] | None) -> Progress:
    """One engine of `legs` ended, the `ended`th to do so. `hits` is the fused list so far, if it is told now.

    `progress` is the share of engines that have ended.
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
    """The fused list after `ended` of `legs` engines, told some time after the last of them."""
    return {
        "progressToken": token,
        "progress": ended / engine_calls,
        "stage": "recall",
        "message": f"{ended} of {engine_calls} engines have ended",
        "partial": {"hits": hits},
    }


def log_line(wanted: str, outcome: Outcome) -> Progress | None:
    """The params of `notifications/log` (RCP §17.1) for a leg that ended; None if the caller `wanted` only graver ones.

    An engine that failed is a warning, one that answered is for debugging.
    """
    level = "warning" if outcome.status == "failed" else "debug"
    if LOG_LEVELS.index(level) < LOG_LEVELS.index(wanted):
        return None
    data: dict[str, Any] = {"engine": outcome.engine, "status": outcome.status, "tookMs": round(outcome.took * 1000, 2)}
    if outcome.kind is not None:
        data["reason"] = outcome.kind
    message = failure_line(outcome) if outcome.status == "failed" else _answer_line(outcome)
    return {"level": level, "message": message, "logger": "federation", "data": data}


def fused(token: Token, outcomes: Sequence[Outcome]) -> Progress:
    """Every engine has ended and the lists are one; the response is next."""
    answers = sum(outcome.status == "ok" for outcome in outcomes)
    return {
        "progressToken": token,
        "progress": 1.0,
        "stage": "fuse",
        "message": f"{answers} of {len(outcomes)} engines answered",
    }


def reranked(token: Token, verdict: RerankVerdict) -> Progress:
    """The union was reranked, or was to be; the response is next."""
    message = f"{verdict.engine}: {verdict.reranked} documents reranked" if verdict.engine else "the fused order stands"
    return {"progressToken": token, "progress": 1.0, "stage": "rerank", "message": message}


def _answer_line(outcome: Outcome) -> str:
    hits = len(outcome.hits)
    said = "answered" if outcome.result is not None and not hits else f"{hits} hit{'' if hits == 1 else 's'}"
    return f"{outcome.engine}: {said} after {outcome.took * 1000:.0f} ms"


# --- Reporting ---

PartialHits = Callable[[Sequence[Outcome]], list[Hit] | None]
"""The hits that an answer would hold if nobody else answered; None if nobody has yet, or it is not about hits."""

PARTIAL_SECONDS: Final = 0.05
"""The least time between two lists so far."""
PARTIAL_SHARE: Final = 0.05
"""The largest share of the time that goes into making them: a list that takes long to make is made less often."""


class ProgressReporter:
    """One fan-out as a listener follows it. `close` must be called when it ends."""

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
        """`legs`: how many are about to be asked; from here on the caller hears what happens."""
        self._ended: list[Outcome] = []
        self._engine_calls = engine_calls
        self._listener = listener
        self._meta = meta
        self._partial_hits = partial_hits
        self._instrumentation = instrumentation
        self._loop = asyncio.get_running_loop()
        self._changed = False  # whether an engine has answered since the last list
        self._next = 0.0  # earliest time of the next list, on the loop's clock
        self._timer: asyncio.TimerHandle | None = None
        listener.open()

    def heard(self, outcome: Outcome) -> None:
        """One leg ended."""
        self._instrumentation.engine_call(outcome)
        if outcome.status == "cancelled":
            return
        self._ended.append(outcome)
        self._changed = self._changed or outcome.status == "ok"
        meta = self._meta
        line = None if meta.log_level is None else log_line(meta.log_level, outcome)
        if line is not None:
            self._listener.log(line)
        hits = self._hits()
        self._listener.tell(call_ended(meta.progress_token, outcome, len(self._ended), self._engine_calls, hits))

    def close(self) -> None:
        """No list is made any more."""
        self._changed = False
        if self._timer is not None:
            self._timer.cancel()

    def _hits(self) -> list[Hit] | None:
        """The list so far if it is time for one; if it will be later, a timer sees to it."""
        if not self._changed or self._meta.progress_token is None or len(self._ended) == self._engine_calls:
            return None
        wait = self._next - self._loop.time()
        if wait > 0 or not self._listener.ready:
            if self._timer is None:
                self._timer = self._loop.call_later(wait if wait > 0 else PARTIAL_SECONDS, self._tell_late)
            return None
        self._changed = False
        began = perf_counter()
        hits = self._partial_hits(self._ended)
        pause = max(PARTIAL_SECONDS, (perf_counter() - began) / PARTIAL_SHARE)
        self._next = self._loop.time() + pause
        return hits

    def _tell_late(self) -> None:
        """Send the list that was not due, or that the caller could not take, when the last engine ended."""
        self._timer = None
        hits = self._hits()
        if hits is not None:
            self._listener.tell(list_so_far(self._meta.progress_token, len(self._ended), self._engine_calls, hits))

    def __repr__(self) -> str:
        return f"<Telling of {len(self._ended)} of {self._engine_calls} legs>"
