"""How much engines agree: which of them gave the same hits lately, and whose hits made the final list.

Telemetry room. It decides how many answers are looked at, and keeps counts alone: never an id, a text or a query. The
clock is handed in, in seconds. It refuses to know how lists are fused.
"""

from collections import Counter, defaultdict
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
    """The counts of up to SPAN answers: of sets of engines, of which the rest is made when somebody asks."""

    __slots__ = ("answered", "answers", "givers", "hits")

    def __init__(self) -> None:
        self.answers = 0
        self.hits = 0
        self.answered: dict[tuple[str, ...], int] = {}
        """Who answered together."""
        self.givers: dict[tuple[str, ...], int] = {}
        """Who gave a hit together."""

    def add(self, answered: Sequence[str], hits: Sequence[Sequence[str]]) -> None:
        """One answer: who answered, and of each hit who gave it."""
        self.answers += 1
        self.hits += len(hits)
        together = tuple(answered)
        self.answered[together] = self.answered.get(together, 0) + 1
        for givers in hits:
            together = tuple(givers)
            self.givers[together] = self.givers.get(together, 0) + 1

    def __repr__(self) -> str:
        return f"<Generation of {self.answers} answers, {self.hits} hits, {len(self.givers)} sets of givers>"


class HitPlace(NamedTuple):
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
        both = (self._before, self._now)
        hits = sum(each.hits for each in both)
        answered: Counter[str] = Counter()
        given: Counter[str] = Counter()
        alone: Counter[str] = Counter()
        shared: Counter[tuple[str, str]] = Counter()
        earned: defaultdict[str, float] = defaultdict(float)
        for generation in both:
            for engines, answers in generation.answered.items():
                answered.update(dict.fromkeys(engines, answers))
            for givers, count in generation.givers.items():
                given.update(dict.fromkeys(givers, count))
                if len(givers) == 1:
                    alone[givers[0]] += count
                for giver in givers:
                    earned[giver] += count / len(givers)
                shared.update(dict.fromkeys(combinations(sorted(givers), 2), count))
        places = {
            engine: HitPlace(answered[engine], given[engine], alone[engine], earned[engine] / hits if hits else 0.0)
            for engine in sorted(answered | given)
        }
        return Agreement(sum(each.answers for each in both), hits, places, dict(shared))

    def __repr__(self) -> str:
        return f"<Overlap {self._now!r} after {self._before!r}>"
