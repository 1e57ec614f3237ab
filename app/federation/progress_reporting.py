"""Tells a caller of every engine call that ends: progress, at times with the list so far, and log lines (RCP §9, §17).

A list so far is fused and written anew each time, so it is made only when the caller can take it, rarely, and never
for the last engine: the response follows.
"""

import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final

from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.outcome import Hit, Outcome
from app.federation.progress import ProgressListener, call_ended, list_so_far, log_line
from app.protocol.retrieve_params import CallMeta

SoFar = Callable[[Sequence[Outcome]], list[Hit] | None]
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
        "_so_far",
        "_timer",
    )

    def __init__(
        self,
        listener: ProgressListener,
        instrumentation: RetrieveInstrumentation,
        meta: CallMeta,
        engine_calls: int,
        so_far: SoFar,
    ) -> None:
        """`legs`: how many are about to be asked; from here on the caller hears what happens."""
        self._ended: list[Outcome] = []
        self._engine_calls = engine_calls
        self._listener = listener
        self._meta = meta
        self._so_far = so_far
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
        hits = self._so_far(self._ended)
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
