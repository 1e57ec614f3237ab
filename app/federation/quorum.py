"""The tail cut: once engines with enough of the weight have answered, the others are waited for a little and no longer.

Federation room. Pure: it counts weights. It refuses to know clocks and how a leg is ended.
"""

from collections.abc import Sequence
from typing import NamedTuple

from app.federation.planner import EngineCall
from app.settings.schema import RetrieveSettings


class Quorum(NamedTuple):
    """`quorum`: share of the legs' weight that must have answered; `grace`: seconds that the others then have."""

    quorum: float
    grace: float


def tail_of(settings: RetrieveSettings) -> Quorum | None:
    """The tail cut that the settings ask for; None if everybody is waited for."""
    return Quorum(settings.quorum, settings.grace_ms / 1000) if settings.quorum else None


def must_answer(engine_call: EngineCall) -> bool:
    """Whether this leg is waited for in any case, and its failure fails the whole."""
    return engine_call.engine.entry.required or engine_call.pinned is not None


class QuorumCount:
    """How much of the weight of these legs has answered."""

    __slots__ = ("_answered", "_musts", "_needed")

    def __init__(self, engine_calls: Sequence[EngineCall], quorum: float) -> None:
        whole = sum(engine_call.weight for engine_call in engine_calls)
        self._needed = whole * quorum * (1 - 1e-9) if whole else float("inf")  # sums of floats fall short of 1
        self._answered = 0.0
        self._musts = sum(map(must_answer, engine_calls))

    def answered(self, engine_call: EngineCall) -> bool:
        """One more leg has answered. Says whether it is enough, and nobody is missing who must answer."""
        self._answered += engine_call.weight
        self._musts -= must_answer(engine_call)
        return self._answered >= self._needed and not self._musts

    def __repr__(self) -> str:
        return f"<Tally {self._answered:g} of {self._needed:g}, {self._musts} must still answer>"
