"""One half to search on, the other to judge by."""

from typing import Any

import pytest

from app.cli.tuning_report import conclusion, report_of
from app.evaluation import tuning
from app.evaluation.fusion_search import FusionParameters, TrialPool, trials_of
from app.evaluation.tuning import Tuning, split, tune_pool
from tests.support.judged_gateway import hits

pytest.importorskip("ir_measures", reason="its binary part is not built for this kind of machine")

PRESENT = FusionParameters({"a": 1.0, "b": 1.0}, 60, 0.8)
RIGHT = {"a": hits("a-junk"), "b": hits("right")}
"""With equal weights the smaller id is first, which is wrong; b is right."""
LEFT = {"a": hits("a-junk", "left"), "b": hits("right", "left")}


def tuned(queries: dict[str, Any], judged: dict[str, str], seed: int = 0) -> Tuning:
    """The tuning of these lists with one relevant document each."""
    judgements = {qid: {document: 1} for qid, document in judged.items()}
    return tune_pool(TrialPool(queries, {}, 50), PRESENT, judgements, seed, lambda: None)


def many(number: int) -> list[str]:
    """Query ids."""
    return [f"q{place}" for place in range(number)]


def test_the_split_depends_on_the_seed_alone() -> None:
    """Two halves of everything; not on the order in which queries come."""
    one, other = split(many(21), 3)
    assert (len(one), len(other)) == (10, 11)
    assert sorted(one + other) == sorted(many(21))
    assert split(many(21)[::-1], 3) == (one, other)
    assert split(many(21), 4) != (one, other)


def test_a_gain_that_holds_on_the_other_half_is_recommended() -> None:
    """The engine that is right gets more weight, and the held-out half agrees."""
    outcome = tuned(dict.fromkeys(many(40), RIGHT), dict.fromkeys(many(40), "right"))
    assert outcome.verdict == "better"
    assert outcome.found.weights["b"] > outcome.found.weights["a"]
    ndcg, recall, mrr = outcome.changes
    assert (ndcg.metric, recall.metric, mrr.metric) == ("nDCG@10", "Recall@50", "MRR")
    assert (ndcg.present, ndcg.found) == (pytest.approx(0.6309, abs=1e-4), 1.0)
    assert (mrr.present, mrr.found) == (0.5, 1.0)
    assert recall.difference.mean == 0
    assert conclusion(outcome) == "the gain of +0.3691 in nDCG@10 on the held-out queries is significant (p <0.001)"


def test_a_gain_that_may_be_chance_is_called_that() -> None:
    """Four held-out queries cannot show anything, however well they go."""
    outcome = tuned(dict.fromkeys(many(8), RIGHT), dict.fromkeys(many(8), "right"))
    assert outcome.verdict == "unproven"
    assert "keep your settings: the gain of +0.3691" in conclusion(outcome)
    assert "chance (p 0.125)" in conclusion(outcome)


def test_a_gain_that_does_not_hold_is_not_recommended() -> None:
    """What helps the tuning half and harms the other one is refused."""
    one, other = split(many(20), 0)
    outcome = tuned(dict.fromkeys(many(20), RIGHT), {**dict.fromkeys(one, "right"), **dict.fromkeys(other, "a-junk")})
    assert outcome.on_tuning[1] > outcome.on_tuning[0]
    assert outcome.verdict == "no_better"
    assert conclusion(outcome).startswith("keep your settings: on the held-out queries those found are no better (-0.3")


def test_nothing_found_is_said() -> None:
    """Where the present settings are as good as any, they stay."""
    outcome = tuned(dict.fromkeys(many(8), RIGHT), dict.fromkeys(many(8), "nowhere"))
    assert (outcome.verdict, outcome.found) == ("unchanged", PRESENT)
    assert conclusion(outcome) == "keep your settings: the search found nothing better"


def test_the_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many queries only some are searched on, which is told; all of the other half judge."""
    monkeypatch.setattr(tuning, "MOST_FUSIONS", 5 * trials_of(2))
    outcome = tuned(dict.fromkeys(many(40), RIGHT), dict.fromkeys(many(40), "right"))
    assert (outcome.searched, outcome.tuning_half, outcome.held_out) == (5, 20, 20)
    assert list(outcome.notes()) == ["the search used 5 of the 20 queries of its half, to end in time"]


def test_the_same_seed_gives_the_same_outcome() -> None:
    """Whatever order queries come in."""
    queries = {qid: RIGHT if place % 3 else LEFT for place, qid in enumerate(many(30))}
    judged = {qid: "right" if place % 2 else "left" for place, qid in enumerate(many(30))}
    backwards = dict(reversed(queries.items()))
    assert report_of(tuned(queries, judged)) == report_of(tuned(backwards, judged))
    assert list(tuned(queries, judged).notes()) == []
