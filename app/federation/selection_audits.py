"""What audits of engine selection show: how far down the order the engines of an answer stand, and whether selection
would have had the hits that callers praised.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from random import Random
from typing import Any, Final

from app.settings.schema import SelectSettings

FIRST_AUDITS: Final = 20
"""Requests that ask everybody after a start, or after engines were added."""
FIRST_NOTED: Final = 50
"""Number of the first question whose places are noted: before, sketches are too small to order engines."""
MIN_AUDITS: Final = 10
"""Audits noted before engines are left out."""
TOP: Final = 10
"""Hits of an answer whose places are noted."""
DECAY: Final = 0.98
"""Weight of all earlier audits at each new one."""
MAX_ANSWERS: Final = 2000
"""Audited answers that are remembered for feedback."""
FEEDBACK_SECONDS: Final = 600.0
"""How long an audited answer is remembered for feedback."""


class Coverage:
    """For callers who see the same engines: the share of good hits that the first n engines of the order give."""

    __slots__ = ("_due", "_engines", "_places", "audits", "questions")

    def __init__(self) -> None:
        self.questions = 0
        self.audits = 0
        """Audits noted."""
        self._due = 0
        self._engines: frozenset[str] = frozenset()
        self._places: list[float] = []
        """Place in the order, from 0 -> weight of the hits whose best engine stood there."""

    def see(self, engines: frozenset[str]) -> None:
        """The engines that are visible now. New ones make audits due."""
        if not engines <= self._engines:
            self._due = FIRST_AUDITS
            self._engines = engines

    def due(self, share: float, random: Random) -> bool:
        """Whether this question is an audit. Everybody is asked anyway until enough audits are noted."""
        if self._due > 0:
            self._due -= 1
            return True
        return self.audits < MIN_AUDITS or random.random() < share

    def note(self, order: Sequence[str], givers: Sequence[Collection[str]]) -> None:
        """Note an audit: the order of the candidates, and for each hit the engines that gave it."""
        if self.questions < FIRST_NOTED:
            return
        places = {engine: place for place, engine in enumerate(order)}
        best = [min([places[engine] for engine in given if engine in places], default=None) for given in givers[:TOP]]
        found = [place for place in best if place is not None]
        if not found:
            return
        self._places = [weight * DECAY for weight in self._places]
        self._places += [0.0] * (max(found) + 1 - len(self._places))
        for place in found:
            self._places[place] += 1.0
        self.audits += 1

    def size(self, settings: SelectSettings) -> int | None:
        """The least number of engines that reaches `settings.coverage`; None while that is unknown, or for all."""
        if self.audits < MIN_AUDITS or settings.coverage >= 1.0:
            return None
        wanted = settings.coverage * sum(self._places)
        sums = accumulate(self._places)
        reached = next((n for n, total in enumerate(sums, 1) if total >= wanted), len(self._places))
        return max(settings.engines, reached)

    def share(self, n: int) -> float:
        """Share of good hits that the first n engines give; 0 while unknown."""
        total = sum(self._places)
        return sum(self._places[:n]) / total if total else 0.0

    def state(self, settings: SelectSettings) -> dict[str, Any]:
        """For the operator."""
        total = sum(self._places) or 1.0
        return {
            "questions": self.questions,
            "audits": self.audits,
            "n": self.size(settings),
            "coverage": [round(part / total, 4) for part in accumulate(self._places)],
        }

    def __repr__(self) -> str:
        return f"<Coverage after {self.questions} questions, {self.audits} audits>"


class AnsweredAudits:
    """For the hits of audited answers: whether an engine that selection would have asked gave them."""

    __slots__ = ("_answers", "_clock")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._answers: dict[tuple[str, int], tuple[float, dict[str, bool | None]]] = {}
        self._clock = clock

    def remember(self, tenant: str, ids: Iterable[str], kept: Iterable[bool]) -> None:
        """One audited answer of a tenant showed these hits."""
        number = next(reversed(self._answers))[1] + 1 if self._answers else 0
        self._answers[tenant, number] = self._clock(), dict(zip(ids, kept, strict=True))
        if len(self._answers) > MAX_ANSWERS:
            del self._answers[next(iter(self._answers))]

    def praised(self, tenant: str, ids: Iterable[str]) -> Iterator[bool]:
        """For each praised hit: whether selection would have had it.

        A signal belongs to the latest audited answer of its tenant that showed the hit, and counts once.
        """
        oldest = self._clock() - FEEDBACK_SECONDS
        wanted = set(ids)
        for (owner, _), (at, shown) in reversed(self._answers.items()):
            if at < oldest or not wanted:
                return
            if owner == tenant:
                for hit_id in wanted & shown.keys():
                    wanted.discard(hit_id)
                    kept, shown[hit_id] = shown[hit_id], None
                    if kept is not None:
                        yield kept

    def __repr__(self) -> str:
        return f"<AnsweredAudits of {len(self._answers)} answers>"
