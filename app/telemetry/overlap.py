"""How much engines agree: which of them gave the same hits in recent answers, and their share of the final lists.

Keeps counts only, never an id, a text or a query. Every answer is counted when it comes, so that reading the counts
costs the same however many answers are behind them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple

SPAN = 250
"""Answers of one generation. The counts cover the current generation and the one before, so old answers drop out."""

LOOK_SECONDS = 0.1
"""Answers are sampled: at most one in this interval is counted, however many there are."""

MAX_HITS = 100
"""Hits of one answer that are counted."""

MAX_STEPS = 2000
"""Counts made for one answer, engines and pairs together, some 0.2 ms of work. Its remaining hits are left out."""

MAX_TOGETHER = 45
"""Engines of one hit whose pairs are counted: a hit that a hundred engines gave would make 4,950 pairs."""

MAX_PAIRS = 1000
"""Pairs of engines kept in one generation: all pairs of 45 engines; of more engines, the pairs seen first."""


class Generation:
    """The counts of up to SPAN answers."""

    __slots__ = ("alone", "answered", "answers", "earned", "given", "hits", "shared")

    def __init__(self) -> None:
        self.answers = 0
        self.hits = 0
        self.answered: Counter[str] = Counter()
        self.given: Counter[str] = Counter()
        self.alone: Counter[str] = Counter()
        self.earned: dict[str, float] = {}
        self.shared: Counter[tuple[str, str]] = Counter()

    def add(self, answered: Sequence[str], hits: Sequence[Sequence[str]]) -> None:
        """Count one answer: engines that answered, and of each hit the engines that gave it."""
        self.answers += 1
        self.answered.update(answered)
        steps = 0
        for engines in hits:
            if steps >= MAX_STEPS:
                break
            together = min(len(engines), MAX_TOGETHER)
            steps += len(engines) + together * (together - 1) // 2
            self._add_hit(engines)

    def _add_hit(self, engines: Sequence[str]) -> None:
        self.hits += 1
        share = 1 / len(engines)
        for engine in engines:
            self.given[engine] += 1
            self.earned[engine] = self.earned.get(engine, 0.0) + share
        if len(engines) == 1:
            self.alone[engines[0]] += 1
            return
        for pair in combinations(sorted(engines)[:MAX_TOGETHER], 2):
            if pair in self.shared or len(self.shared) < MAX_PAIRS:
                self.shared[pair] += 1

    def __repr__(self) -> str:
        return f"<Generation of {self.answers} answers, {self.hits} hits, {len(self.shared)} pairs>"


class HitPlace(NamedTuple):
    """What one engine contributed: answers it was part of, hits it gave, hits nobody else gave, and its share.

    `share` lies in [0,1]. A hit of several engines is split evenly among them, so that all shares add up to 1.
    """

    answered: int
    given: int
    alone: int
    share: float


class Agreement(NamedTuple):
    """What recent answers show."""

    answers: int
    hits: int
    places: dict[str, HitPlace]
    shared: dict[tuple[str, str], int]
    """Pair of engines, the smaller id first -> hits that both gave."""


class Overlap:
    """Counts over recent answers. `clock` gives seconds and never goes back."""

    __slots__ = ("_before", "_clock", "_next_look", "_now")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next_look = float("-inf")
        self._now = Generation()
        self._before = Generation()

    def due(self) -> bool:
        """Whether the next answer is sampled; if so, pass its hits to `add`."""
        now = self._clock()
        if now < self._next_look:
            return False
        self._next_look = now + LOOK_SECONDS
        return True

    def add(self, answered: Sequence[str], hits: Sequence[Sequence[str]]) -> None:
        """Count one answer: ids of the engines that answered, and of each hit those that gave it."""
        if self._now.answers >= SPAN:
            self._before, self._now = self._now, Generation()
        self._now.add(answered, hits)

    def agreement(self) -> Agreement:
        """The counts now."""
        now, before = self._now, self._before
        hits = now.hits + before.hits
        answered, given = now.answered + before.answered, now.given + before.given
        places = {
            engine: HitPlace(
                answered=answered[engine],
                given=given[engine],
                alone=now.alone[engine] + before.alone[engine],
                share=(now.earned.get(engine, 0.0) + before.earned.get(engine, 0.0)) / hits if hits else 0.0,
            )
            for engine in sorted({*answered, *given})
        }
        return Agreement(now.answers + before.answers, hits, places, dict(now.shared + before.shared))

    def __repr__(self) -> str:
        return f"<Overlap {self._now!r} after {self._before!r}>"
