"""Metrics of rankings (nDCG@10, Recall@50, MRR) per query, and a significance test for paired differences.

The arithmetic is that of `ir_measures` and `scipy`, which the extra `eval` installs.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import fmean
from typing import Any

from app.evaluation.judged_queries import Judgements

NDCG, RECALL, MRR = "nDCG@10", "Recall@50", "MRR"
METRICS = (NDCG, RECALL, MRR)
RECALL_DEPTH = 50

TEST = "paired randomisation test, two-sided"
RESAMPLES = 9999
"""Random sign patterns where there are too many to try all; the smallest possible p is then 2/10000."""

SIGNIFICANT = 0.05
"""A p-value below this is called significant."""

Values = dict[str, float]
"""Query id -> the value of one metric."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean difference of two systems in one metric over the `queries` queries that both answered, and its p-value."""

    mean: float | None
    p: float
    queries: int


def require_libraries() -> None:
    """Check that the extra `eval` is installed, before any query is sent. Raises ModuleNotFoundError."""
    for library in ("ir_measures", "scipy"):
        if find_spec(library) is None:
            raise ModuleNotFoundError(f"No module named {library!r}", name=library)


class Evaluator:
    """Relevance judgements, prepared for measuring many rankings."""

    def __init__(self, judgements: Judgements, metrics: Sequence[str] = METRICS) -> None:
        from ir_measures import RR, R, evaluator, nDCG

        measures = {NDCG: nDCG @ 10, RECALL: R @ RECALL_DEPTH, MRR: RR}
        self.metrics = tuple(metrics)
        self._names = {measures[name]: name for name in metrics}
        self._evaluator: Any = evaluator(list(self._names), judgements)

    def __repr__(self) -> str:
        return f"<Evaluator {', '.join(self.metrics)} over {len(self._evaluator.qrel_qids)} judged queries>"

    def measure(self, rankings: Mapping[str, Sequence[str]]) -> dict[str, Values]:
        """Metric -> value per query, for the judged queries in `rankings`; an empty ranking scores 0.

        As in `trec_eval`: nDCG uses the relevance itself as gain and log2(rank + 1) as discount, MRR considers the
        whole ranking, and a document is relevant if it is judged above 0.
        """
        run = {qid: _descending(ranking) for qid, ranking in rankings.items() if ranking}
        values: dict[str, Values] = {name: {} for name in self.metrics}
        for found in self._evaluator.iter_calc(run):
            if found.query_id in rankings:
                values[self._names[found.measure]][found.query_id] = float(found.value)
        return values


def _descending(ranking: Sequence[str]) -> dict[str, float]:
    """Descending scores in the order of the ranking; trec_eval would sort documents of equal score by id."""
    unique = dict.fromkeys(ranking)
    return {document: float(len(unique) - place) for place, document in enumerate(unique)}


def mean(values: Collection[float]) -> float | None:
    """The mean over queries, None if there are none. fmean is exact: the order of the queries does not matter."""
    return fmean(values) if values else None


def p_value(differences: Sequence[float]) -> float:
    """Two-sided p-value of the mean of paired differences, by Fisher's randomisation test over their signs.

    All sign patterns are tried for up to about 13 differing queries. Beyond that RESAMPLES random patterns are used,
    with a fixed seed, so that the same input gives the same p-value.
    """
    # Whole numbers add up exactly; with floats two equal sums could differ in the last bit and change the count.
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
    """The p-values corrected for multiple comparisons (Holm 1979), in the same order."""
    corrected = [0.0] * len(p_values)
    most = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        most = max(most, min(1.0, p_values[index] * (len(p_values) - rank)))
        corrected[index] = most
    return corrected


def paired(ours: Mapping[str, float], theirs: Mapping[str, float]) -> list[float]:
    """Ours minus theirs for every query that both answered, sorted by query id."""
    # Rounded: differences that are equal on paper must be equal here, or the test would count them as different.
    return [round(ours[qid] - theirs[qid], 12) for qid in sorted(ours.keys() & theirs.keys())]
