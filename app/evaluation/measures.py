"""How good rankings are: nDCG@10, Recall@50 and MRR per query, and whether two systems really differ.

It decides the metrics, the test and the correction; the arithmetic is that of `ir_measures` and `scipy`, which come
with the extra `eval`. It refuses to know where rankings come from.
"""

from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from statistics import fmean
from typing import Any

from app.cli.failures import Failure, missing
from app.evaluation.judgements import Judgements

NDCG, RECALL, MRR = "nDCG@10", "Recall@50", "MRR"
METRICS = (NDCG, RECALL, MRR)
RECALL_DEPTH = 50

TEST = "paired randomisation test, two-sided"
RESAMPLES = 9999
"""Sign patterns tried where there are too many to try all; the least p is then 2/10000."""

Values = dict[str, float]
"""Query id -> the value of one metric."""


def need_libraries() -> None:
    """Raises Failure, before anything is asked, where the extra `eval` is not installed."""
    for library in ("ir_measures", "scipy"):
        if find_spec(library) is None:
            raise Failure(missing(library, "eval"))


class Evaluator:
    """Judgements made ready to measure many rankings."""

    def __init__(self, judgements: Judgements, metrics: Sequence[str] = METRICS) -> None:
        from ir_measures import RR, R, evaluator, nDCG

        measures = {NDCG: nDCG @ 10, RECALL: R @ RECALL_DEPTH, MRR: RR}
        self.metrics = tuple(metrics)
        self._names = {measures[name]: name for name in metrics}
        self._evaluator: Any = evaluator(list(self._names), judgements)

    def __repr__(self) -> str:
        return f"<Yardstick {', '.join(self.metrics)} over {len(self._evaluator.qrel_qids)} judged queries>"

    def measure(self, rankings: Mapping[str, Sequence[str]]) -> dict[str, Values]:
        """Metric -> value per query, for the judged queries in `rankings`; an empty ranking is worth 0.

        nDCG takes the relevance itself as gain and log2(rank + 1) as discount, MRR looks at the whole ranking, and
        relevant is what is judged above 0: all as `trec_eval` does.
        """
        run = {qid: _descending(ranking) for qid, ranking in rankings.items() if ranking}
        values: dict[str, Values] = {name: {} for name in self.metrics}
        for found in self._evaluator.iter_calc(run):
            if found.query_id in rankings:
                values[self._names[found.measure]][found.query_id] = float(found.value)
        return values


def _descending(ranking: Sequence[str]) -> dict[str, float]:
    """Scores that say nothing but the order; trec_eval would sort equal ones by id."""
    unique = dict.fromkeys(ranking)
    return {document: float(len(unique) - place) for place, document in enumerate(unique)}


def mean(values: Collection[float]) -> float | None:
    """The mean over queries, None without any. Exact, so that the order of the queries does not matter."""
    return fmean(values) if values else None


def p_value(differences: Sequence[float]) -> float:
    """How probable a mean difference at least this far from 0 is, if it were chance which system got which value.

    Fisher's randomisation test over the signs of the paired differences: all patterns up to about 13 queries that
    differ, RESAMPLES random ones beyond, always the same ones.
    """
    # Whole numbers add up exactly, so that equal sums are seen to be equal.
    differing = [whole for whole in (float(round(difference * 1e9)) for difference in differences) if whole]
    if len(differing) < 2:
        return 1.0
    from scipy.stats import permutation_test

    outcome = permutation_test(
        (differing,),
        lambda sample, axis: sample.sum(axis=axis),
        permutation_type="samples",
        n_resamples=RESAMPLES,
        batch=500,
        rng=0,
    )
    return min(1.0, float(outcome.pvalue))


def holm(p_values: Sequence[float]) -> list[float]:
    """The same p-values, corrected for having been looked at together (Holm 1979), in the same order."""
    corrected = [0.0] * len(p_values)
    most = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        most = max(most, min(1.0, p_values[index] * (len(p_values) - rank)))
        corrected[index] = most
    return corrected


def paired(ours: Mapping[str, float], theirs: Mapping[str, float]) -> list[float]:
    """Ours minus theirs for every query that both answered, in the order of the ids."""
    return [round(ours[qid] - theirs[qid], 12) for qid in sorted(ours.keys() & theirs.keys())]
