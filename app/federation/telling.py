"""Lets a caller hear of every leg that ends: progress with the list so far, a line for the caller's log (RCP §9, §17).

The witness hears of it first. It refuses to know what was asked, and how a list is made of what has come.
"""

from collections.abc import Callable, Sequence

from app.federation.outcome import Hit, Outcome
from app.federation.progress import Listener, leg_ended, log_line
from app.federation.witness import Witness
from app.protocol.params import CallMeta

SoFar = Callable[[Sequence[Outcome]], list[Hit] | None]
"""The hits that an answer would hold if nobody else answered; None if nobody has yet, or it is not about hits."""


class Telling:
    """One fan-out as a listener follows it."""

    __slots__ = ("_ended", "_legs", "_listener", "_meta", "_so_far", "_witness")

    def __init__(self, listener: Listener, witness: Witness, meta: CallMeta, legs: int, so_far: SoFar) -> None:
        """`legs`: how many are about to be asked; from here on the caller hears what happens."""
        self._ended: list[Outcome] = []
        self._legs = legs
        self._listener = listener
        self._meta = meta
        self._so_far = so_far
        self._witness = witness
        listener.open()

    def heard(self, outcome: Outcome) -> None:
        """One leg ended."""
        self._witness.leg(outcome)
        if outcome.status == "cancelled":
            return
        self._ended.append(outcome)
        meta = self._meta
        line = None if meta.log_level is None else log_line(meta.log_level, outcome)
        if line is not None:
            self._listener.log(line)
        hits = self._so_far(self._ended)
        self._listener.tell(leg_ended(meta.progress_token, outcome, len(self._ended), self._legs, hits))

    def __repr__(self) -> str:
        return f"<Telling of {len(self._ended)} of {self._legs} legs>"
