"""Tuning of fusion parameters: search on one half of the queries, measure the result on the other half."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from app.evaluation import measures
from app.evaluation.fusion_search import FusionParameters, TrialPool, search, trials_of
from app.evaluation.judged_queries import Judgements
from app.evaluation.measures import SIGNIFICANT, Difference

MIN_QUERIES = 4
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
    calibrated: tuple[SettingChange, ...] = ()
    """On the held-out queries: with the settings found, without and with what the other half taught."""
    calibration: Mapping[str, Any] = field(default_factory=dict)
    """Maps by engine id that the queries searched on taught, as `rcp-gateway calibrate` prints them."""

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
    from app.federation.offline_learning import calibrations_of, written

    tuning_half, held_out = split(list(pool.queries), seed)
    searched = tuning_half[: max(2, MOST_FUSIONS // trials_of(len(present.weights)))]
    bench = pool.part(searched)
    yardstick = measures.Evaluator({qid: judgements[qid] for qid in searched}, [measures.NDCG])

    def worth(blend: FusionParameters) -> float:
        values = yardstick.measure(bench.rankings(blend, 10))[measures.NDCG]
        told()
        return measures.mean(values.values()) or 0.0

    found = search(present, worth)
    learned = bench.learned(judgements)
    held = pool.part(held_out)
    return Tuning(
        present,
        found,
        len(searched),
        len(tuning_half),
        len(held_out),
        (worth(present), worth(found)),
        _changes(held, held.rankings(present, held.fetch_k), held.rankings(found, held.fetch_k), judgements),
        _changes(
            held,
            held.rankings(found, held.fetch_k),
            held.rankings(found, held.fetch_k, calibrations_of(learned)),
            judgements,
        ),
        written(learned),
    )


def _changes(
    pool: TrialPool, present: Mapping[str, list[str]], found: Mapping[str, list[str]], judgements: Judgements
) -> tuple[SettingChange, ...]:
    """Each metric of two sets of rankings of the same queries."""
    yardstick = measures.Evaluator({qid: judgements[qid] for qid in pool.queries})
    before, after = yardstick.measure(present), yardstick.measure(found)
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
