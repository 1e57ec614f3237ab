"""The tail cut: once engines with enough of the weight have answered, the others get a short grace period. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from app.federation.planner import EngineCall
from app.settings.schema import RetrieveSettings


class Quorum(NamedTuple):
    """`quorum`: share of the weight that must have answered; `grace`: seconds that the others then have."""

    quorum: float
    grace: float


def tail_of(settings: RetrieveSettings) -> Quorum | None:
    """The tail cut of the settings; None if all engines are waited for."""
    return Quorum(settings.quorum, settings.grace_ms / 1000) if settings.quorum else None


def must_answer(engine_call: EngineCall) -> bool:
    """Whether this engine is always waited for, and its failure fails the request."""
    return engine_call.engine.entry.required or engine_call.pinned is not None


class QuorumCount:
    """Counts how much of the weight has answered."""

    __slots__ = ("_answered", "_musts", "_needed")

    def __init__(self, engine_calls: Sequence[EngineCall], quorum: float) -> None:
        whole = sum(engine_call.weight for engine_call in engine_calls)
        self._needed = (
            whole * quorum * (1 - 1e-9) if whole else float("inf")
        )  # rounding errors must not keep a sum below 1
        self._answered = 0.0
        self._musts = sum(map(must_answer, engine_calls))

    def answered(self, engine_call: EngineCall) -> bool:
        """Count one more answer. Returns whether the quorum is reached and no mandatory engine is missing."""
        self._answered += engine_call.weight
        self._musts -= must_answer(engine_call)
        return self._answered >= self._needed and not self._musts

    def __repr__(self) -> str:
        return f"<QuorumCount {self._answered:g} of {self._needed:g}, {self._musts} mandatory engines missing>"
