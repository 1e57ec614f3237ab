"""What is known of each shadow engine: counts of its calls, and for praised answers its ranking beside the live one."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from math import log2
from statistics import fmean
from typing import Any, Final

from app.protocol import envelope
from app.telemetry.shadow_metrics import ShadowMetrics

MAX_ANSWERS: Final = 2000
"""Compared answers that are remembered for feedback, and praised answers that are kept for each shadow engine."""
FEEDBACK_SECONDS: Final = 600.0
"""How long a compared answer is remembered for feedback."""
TOP: Final = 10

_Measure = Callable[[Sequence[str], Mapping[str, float]], float]


def question_digest(query: Any) -> bytes:
    """Identifies a question: queries themselves are not kept."""
    return blake2b(envelope.canonical(query), digest_size=8).digest()


class ComparedAnswer:
    """The ids of one answer, and of the answer with the shadow engine in it. `rewards` grows with feedback."""

    __slots__ = ("at", "engine", "live", "question", "rewards", "tenant", "would_be")

    def __init__(
        self, engine: str, tenant: str | None, question: bytes, live: Sequence[str], would_be: Sequence[str], at: float
    ) -> None:
        self.engine = engine
        self.tenant = tenant
        self.question = question
        self.live = tuple(live)
        self.would_be = tuple(would_be)
        self.at = at
        self.rewards: dict[str, float] = {}
        """Praised hit -> reward in (0, 1]."""

    def __repr__(self) -> str:
        return f"<ComparedAnswer of {self.engine}, {len(self.rewards)} praised hits>"


class ShadowComparisons:
    """The comparisons of one process. Ids and ranks are kept, never texts."""

    def __init__(self, metrics: ShadowMetrics | None, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._answers: deque[ComparedAnswer] = deque(maxlen=MAX_ANSWERS)
        self._praised: dict[str, deque[ComparedAnswer]] = {}
        self.counts: dict[str, dict[str, float]] = {}
        """Engine -> sums over its calls."""

    def count(self, engine: str, **added: float) -> None:
        """Add to the sums of an engine."""
        counts = self.counts.setdefault(engine, {})
        for name, value in added.items():
            counts[name] = counts.get(name, 0.0) + value

    def remember(
        self, engine: str, tenant: str | None, question: bytes, live: Sequence[str], would_be: Sequence[str]
    ) -> None:
        """Remember an answer, so that feedback on it can be attributed."""
        self._answers.append(ComparedAnswer(engine, tenant, question, live, would_be, self._clock()))

    def feedback(self, tenant: str | None, query: Any, rewards: Mapping[str, float]) -> None:
        """Attribute praise to the tenant's latest compared answer, for each shadow engine, that shows the hit."""
        wanted = {hit_id: reward for hit_id, reward in rewards.items() if reward > 0}
        if not wanted or not self._answers:
            return
        question = None if query is None else question_digest(query)
        oldest = self._clock() - FEEDBACK_SECONDS
        given: set[tuple[str, str]] = set()
        changed: list[ComparedAnswer] = []
        for answer in reversed(self._answers):
            if answer.at < oldest:
                break
            if answer.tenant != tenant or (question is not None and answer.question != question):
                continue
            mine = [one for one in wanted if one in answer.live and (answer.engine, one) not in given]
            if not mine:
                continue
            given.update((answer.engine, one) for one in mine)
            changed.append(answer)
            if not answer.rewards:
                self._praised.setdefault(answer.engine, deque(maxlen=MAX_ANSWERS)).append(answer)
            for one in mine:
                answer.rewards[one] = max(wanted[one], answer.rewards.get(one, 0.0))
        if self._metrics is not None:
            for answer in changed:
                live = reciprocal_rank(answer.live, answer.rewards)
                self._metrics.praised(answer.engine, live, reciprocal_rank(answer.would_be, answer.rewards))

    def state(self, engine: str) -> dict[str, Any]:
        """For the operator: sums, means, and `differences` (would-be minus live) by metric."""
        counts = self.counts.get(engine, {})
        praised = self._praised.get(engine, ())
        pairs = {
            "reciprocalRank": [_both(reciprocal_rank, answer) for answer in praised],
            "nDCG@10": [_both(discounted_gain, answer) for answer in praised],
        }
        compared, against = counts.get("compared", 0), counts.get("against", 0)
        blended, calls = counts.get("blended", 0), counts.get("calls", 0)

        def share(name: str, total: float) -> float | None:
            return round(counts.get(name, 0.0) / total, 4) if total else None

        return {
            "calls": int(calls),
            "failures": int(counts.get("failures", 0)),
            "meanSeconds": share("seconds", calls),
            "fused": {"n": int(compared), "overlap": share("overlap", compared), "rbo": share("rbo", compared)},
            "of": {"n": int(against), "overlap": share("ofOverlap", against), "rbo": share("ofRbo", against)},
            "wouldBe": {"n": int(blended), "meanPlaces": share("places", blended)},
            "feedback": {
                "n": len(praised),
                **{
                    metric: {
                        "live": fmean([live for live, _ in both]) if both else None,
                        "wouldBe": fmean([would_be for _, would_be in both]) if both else None,
                        "differences": [would_be - live for live, would_be in both],
                    }
                    for metric, both in pairs.items()
                },
            },
        }

    def forget(self, engines: Sequence[str]) -> None:
        """Forget engines that have left the registry."""
        for engine in engines:
            self.counts.pop(engine, None)
            self._praised.pop(engine, None)
        gone = frozenset(engines)
        self._answers = deque([one for one in self._answers if one.engine not in gone], maxlen=MAX_ANSWERS)

    def __repr__(self) -> str:
        return f"<ShadowComparisons of {len(self.counts)} engines, {len(self._answers)} answers>"


def reciprocal_rank(ids: Sequence[str], rewards: Mapping[str, float]) -> float:
    """1 / rank of the first praised hit; 0 if there is none."""
    return next((1 / rank for rank, one in enumerate(ids, 1) if rewards.get(one, 0.0) > 0), 0.0)


def discounted_gain(ids: Sequence[str], rewards: Mapping[str, float]) -> float:
    """nDCG@10 with the rewards as gains; 0 without rewards."""
    gains = [rewards.get(one, 0.0) for one in ids[:TOP]]
    best = sorted(rewards.values(), reverse=True)[:TOP]
    ideal = sum([gain / log2(rank + 1) for rank, gain in enumerate(best, 1)])
    return sum([gain / log2(rank + 1) for rank, gain in enumerate(gains, 1)]) / ideal if ideal else 0.0


def _both(measure: _Measure, answer: ComparedAnswer) -> tuple[float, float]:
    """The measure of the live answer and of the would-be answer."""
    return measure(answer.live, answer.rewards), measure(answer.would_be, answer.rewards)
