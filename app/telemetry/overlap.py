"""How much engines agree: which of them gave the same hits lately, and whose hits made the final list.

Telemetry room. It decides how many answers are looked at, and keeps counts alone: never an id, a text or a query. The
clock is handed in, in seconds. It refuses to know how lists are fused.
"""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple

SPAN = 250
"""Answers of one generation; what is told covers one to two generations, so old answers go without being kept."""

LOOK_SECONDS = 0.1
"""At most one answer is looked at in so long: a busy gateway pays for ten a second, however many it gives."""

MAX_HITS = 100
"""Hits of one answer that are looked at."""


class Generation:
    """The counts of up to SPAN answers."""

    __slots__ = ("alone", "answered", "answers", "earned", "given", "hits", "shared")

    def __init__(self) -> None:
        self.answers = 0
        self.hits = 0
        self.answered: dict[str, int] = {}
        self.given: dict[str, int] = {}
        self.alone: dict[str, int] = {}
        self.earned: dict[str, float] = {}
        self.shared: dict[tuple[str, str], int] = {}

    def add(self, answered: Sequence[str], hits: Sequence[Sequence[str]]) -> None:
        """One answer: who answered, and of each hit who gave it."""
        self.answers += 1
        self.hits += len(hits)
        for engine in answered:
            self.answered[engine] = self.answered.get(engine, 0) + 1
        for givers in hits:
            if len(givers) == 1:
                self.alone[givers[0]] = self.alone.get(givers[0], 0) + 1
            else:
                self._pair(givers)
            part = 1 / len(givers)
            for giver in givers:
                self.given[giver] = self.given.get(giver, 0) + 1
                self.earned[giver] = self.earned.get(giver, 0.0) + part

    def _pair(self, givers: Sequence[str]) -> None:
        """One hit was given by all of these."""
        for first, second in combinations(givers, 2):
            pair = (first, second) if first < second else (second, first)
            self.shared[pair] = self.shared.get(pair, 0) + 1

    def __repr__(self) -> str:
        return f"<Generation of {self.answers} answers, {self.hits} hits, {len(self.shared)} pairs>"


class Place(NamedTuple):
    """What one engine earned: answers it was part of, hits it gave, those nobody else gave, and its part of the list.

    `share` lies in [0,1] and is split evenly where several gave a hit, so that all shares add up to 1.
    """

    answered: int
    given: int
    alone: int
    share: float


class Agreement(NamedTuple):
    """What recent answers showed."""

    answers: int
    hits: int
    places: dict[str, Place]
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
        """Whether the next answer should be looked at; if so, its hits are given to `add`."""
        now = self._clock()
        if now < self._next_look:
            return False
        self._next_look = now + LOOK_SECONDS
        return True

    def add(self, answered: Sequence[str], hits: Sequence[Sequence[str]]) -> None:
        """One answer: ids of the engines that answered, and of each hit those that gave it."""
        if self._now.answers >= SPAN:
            self._before, self._now = self._now, Generation()
        self._now.add(answered, hits)

    def told(self) -> Agreement:
        """What is known now."""
        now, before = self._now, self._before
        hits = now.hits + before.hits
        places = {
            engine: Place(
                now.answered.get(engine, 0) + before.answered.get(engine, 0),
                now.given.get(engine, 0) + before.given.get(engine, 0),
                now.alone.get(engine, 0) + before.alone.get(engine, 0),
                (now.earned.get(engine, 0.0) + before.earned.get(engine, 0.0)) / hits if hits else 0.0,
            )
            for engine in sorted({*now.answered, *now.given, *before.answered, *before.given})
        }
        pairs = {**before.shared, **now.shared}
        shared = {pair: now.shared.get(pair, 0) + before.shared.get(pair, 0) for pair in pairs}
        return Agreement(now.answers + before.answers, hits, places, shared)

    def __repr__(self) -> str:
        return f"<Overlap {self._now!r} after {self._before!r}>"
