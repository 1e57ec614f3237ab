"""Tuning of fusion parameters: search on one half of the queries, measure the result on the other half."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from app.evaluation import measures
from app.evaluation.fusion_search import FusionParameters, TrialPool, search, trials_of
from app.evaluation.judged_queries import Judgements
from app.evaluation.measures import SIGNIFICANT, Difference

LEAST_QUERIES = 4
"""Two for each half: with less there is nothing to compare."""
MOST_FUSIONS = 60_000
"""Queries times blends that a search may fuse; more queries than that allows are left out of it."""

Verdict = Literal["better", "unproven", "no_better", "unchanged"]


@dataclass(frozen=True, slots=True)
class SettingChange:
    """One metric on the held-out queries: with the present settings, with those found, and the difference."""

    metric: str
    present: float | None
    found: float | None
    difference: Difference


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a search found, and what that is worth on queries it has not seen."""

    present: FusionParameters
    found: FusionParameters
    searched: int
    """Queries that were searched on."""
    tuning_half: int
    held_out: int
    on_tuning: tuple[float, float]
    """Mean nDCG@10 on the queries searched on: with the present settings and with those found."""
    changes: tuple[SettingChange, ...]

    @property
    def decisive(self) -> Difference:
        """nDCG@10 on the held-out half, which was searched for; the other metrics are shown and decide nothing."""
        return next(change.difference for change in self.changes if change.metric == measures.NDCG)

    @property
    def verdict(self) -> Verdict:
        """What the decisive difference allows to say."""
        if self.found == self.present:
            return "unchanged"
        if (self.decisive.mean or 0.0) <= 0:
            return "no_better"
        return "better" if self.decisive.p < SIGNIFICANT else "unproven"

    def notes(self) -> Iterator[str]:
        """What to say about queries that were not searched on, if there are any."""
        if self.searched < self.tuning_half:
            yield f"the search used {self.searched} of the {self.tuning_half} queries of its half, to end in time"


def split(qids: list[str], seed: int) -> tuple[list[str], list[str]]:
    """The tuning half and the held-out half, which gets the odd one. The order of `qids` does not matter."""
    shuffled = sorted(qids)
    random.Random(seed).shuffle(shuffled)
    middle = len(shuffled) // 2
    return shuffled[:middle], shuffled[middle:]


def tune_pool(
    pool: TrialPool, present: FusionParameters, judgements: Judgements, seed: int, told: Callable[[], None]
) -> Tuning:
    """Search on one half, measure on the other. `told` is called after every blend that was tried."""
    tuning_half, held_out = split(list(pool.queries), seed)
    searched = tuning_half[: max(2, MOST_FUSIONS // trials_of(len(present.weights)))]
    bench = pool.part(searched)
    yardstick = measures.Evaluator({qid: judgements[qid] for qid in searched}, [measures.NDCG])

    def worth(blend: FusionParameters) -> float:
        values = yardstick.measure(bench.rankings(blend, 10))[measures.NDCG]
        told()
        return measures.mean(values.values()) or 0.0

    found = search(present, worth)
    return Tuning(
        present,
        found,
        len(searched),
        len(tuning_half),
        len(held_out),
        (worth(present), worth(found)),
        _changes(pool.part(held_out), present, found, judgements),
    )


def _changes(
    pool: TrialPool, present: FusionParameters, found: FusionParameters, judgements: Judgements
) -> tuple[SettingChange, ...]:
    yardstick = measures.Evaluator({qid: judgements[qid] for qid in pool.queries})
    before = yardstick.measure(pool.rankings(present, pool.fetch_k))
    after = yardstick.measure(pool.rankings(found, pool.fetch_k))
    changes = []
    for metric in measures.METRICS:
        pairs = measures.paired(after[metric], before[metric])
        difference = Difference(measures.mean(pairs), measures.p_value(pairs), len(pairs))
        changes.append(
            SettingChange(
                metric, measures.mean(before[metric].values()), measures.mean(after[metric].values()), difference
            )
        )
    return tuple(changes)
