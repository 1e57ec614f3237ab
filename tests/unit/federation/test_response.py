"""From fused list to result: what is cut and packed, and what the caller is told."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.federation.outcome import Outcome, answered, degraded, failed, skipped
from app.federation.planner import Plan
from app.federation.response import RetrieveResponse, build_result
from app.federation.result_set import NOTHING, ResultSet, estimate_tokens, pack, page_of
from app.fusion.merge import FusedList
from app.fusion.ranked_lists import FusionConfig, RankedList
from app.fusion.rrf import fuse
from app.protocol.errors import BadStatus
from tests.support.fake_engine import Json, call_of, hit, hits, members_of

MEMBERS = members_of(identity="us-1234")


def fused(**lists: list[Json]) -> FusedList:
    """The fusion of these lists, by plain RRF."""
    ranked = [RankedList(engine=engine, hits=sent, fetch_k=20) for engine, sent in lists.items()]
    return fuse(ranked, FusionConfig(confidence_weight=0))


def built(
    fusion: FusedList | None,
    outcomes: list[Outcome] | None = None,
    *,
    k: int = 10,
    passed_over: tuple[Outcome, ...] = (),
    notes: tuple[str, ...] = (),
    **params: Any,
) -> Json:
    """The result of a request with these params."""
    plan = Plan((), passed_over, k, FusionConfig(), notes)
    read = call_of("q", **params).params
    outcomes = outcomes or []
    if fusion is None:
        return build_result(read, MEMBERS, RetrieveResponse(plan, outcomes, None, NOTHING), 0.01234)
    result_set = ResultSet((), fusion, FusionConfig(), degraded=degraded(outcomes))
    return build_result(
        read, MEMBERS, RetrieveResponse(plan, outcomes, result_set, page_of(fusion, read.options, k)), 0.01234
    )


def ids(result: Json) -> list[Any]:
    """The ids of the hits, in order."""
    return [found["id"] for found in result["hits"]]


def test_top_k_and_no_more() -> None:
    """At most k hits are answered, the best first (RCP §7.7)."""
    assert ids(built(fused(a=hits("x", "y", "z")), k=2)) == ["x", "y"]
    assert ids(built(fused(a=hits("x")), k=2)) == ["x"]


def test_min_score_is_on_our_scale() -> None:
    """`minScore` cuts by the fused score, whatever scores the engines gave (decision 4)."""
    fusion = fused(a=[hit("x", 9000.0), hit("y", 8000.0)], b=[hit("x", 0.1), hit("z", 0.05)])
    scores = dict(zip(fusion.keys(), fusion.scores(), strict=True))
    assert scores["x"] == 1.0
    assert ids(built(fusion, minScore=1.0)) == ["x"]
    assert ids(built(fusion, minScore=scores["y"])) == ["x", "y", "z"]
    assert ids(built(fusion, minScore=0)) == ["x", "y", "z"]
    assert ids(built(fusion, minScore=1.1)) == []
    assert ids(built(fusion, minScore=0, k=1)) == ["x"]


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("äöü", 2), ("\ud800", 1), (None, 0), (7, 0)]
)
def test_tokens_are_estimated_from_bytes(text: Any, tokens: int) -> None:
    """Four UTF-8 bytes of text are one token, rounded up; what has no text takes none."""
    assert estimate_tokens(hit("a", text=text)) == tokens


def test_hit_without_text_takes_no_tokens() -> None:
    """No text, no tokens."""
    assert estimate_tokens(hit("a")) == 0


def texts(*sizes: int) -> list[Json]:
    """Hits whose texts take so many tokens each."""
    return [hit(str(place), 1.0 - place / 100, text="abcd" * size) for place, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "budget", "count", "tokens"),
    [
        pytest.param((3, 3, 3), 6, 2, 6, id="exactly full"),
        pytest.param((3, 3, 3), 8, 2, 6, id="next would not fit"),
        pytest.param((3, 9, 1), 5, 1, 3, id="no filling up with smaller ones"),
        pytest.param((9, 1), 5, 1, 9, id="at least one"),
        pytest.param((3, 3), 100, 2, 6, id="everything fits"),
        pytest.param((), 5, 0, 0, id="nothing to pack"),
        pytest.param((0, 0), 1, 2, 0, id="hits without text"),
    ],
)
def test_packing(sizes: tuple[int, ...], budget: int, count: int, tokens: int) -> None:
    """Whole hits from the top until the next would not fit, at least one."""
    packed, taken = pack(texts(*sizes), budget)
    assert (len(packed), taken) == (count, tokens)


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 40))
def test_packed_hits_are_a_prefix_that_fits(sizes: list[int], budget: int) -> None:
    """What is packed is a prefix, fits unless it is a single hit, and one more would not have fitted."""
    sent = texts(*sizes)
    packed, taken = pack(sent, budget)
    assert packed == sent[: len(packed)]
    assert taken == sum(sizes[: len(packed)])
    assert taken <= budget or len(packed) == 1
    assert len(packed) == len(sent) or taken + sizes[len(packed)] > budget


def test_budget_is_reported_and_whichever_binds_first_binds() -> None:
    """With `tokenBudget` the tokens are told; k and the budget hold both (RCP §7.7)."""
    fusion = fused(a=texts(3, 3, 3, 3))
    assert "tokens" not in built(fusion)["usage"]
    assert built(fusion, tokenBudget=7)["usage"]["tokens"] == 6
    assert len(built(fusion, tokenBudget=7)["hits"]) == 2
    by_k = built(fusion, tokenBudget=1000, k=1)
    assert (len(by_k["hits"]), by_k["usage"]["tokens"]) == (1, 3)
    assert built(None, tokenBudget=7)["hits"] == []


def test_text_is_left_out_on_request() -> None:
    """`includeText: false` leaves text out of the answer, after it has been counted; engines' hits are untouched."""
    sent = texts(3, 3)
    result = built(fused(a=sent), includeText=False, tokenBudget=3)
    assert [found.keys() & {"text"} for found in result["hits"]] == [set()]
    assert result["usage"]["tokens"] == 3
    assert all("text" in found for found in sent)
    assert all("text" in found for found in built(fused(a=sent), includeText=True)["hits"])
    assert all("text" in found for found in built(fused(a=sent))["hits"])


def test_usage_sums_up_what_engines_said() -> None:
    """Candidates and reranked are summed over those who answered, the time is ours."""
    outcomes = [
        answered("a", {"hits": hits("x"), "usage": {"candidates": 50, "reranked": 7}}, 0.001, 1),
        answered("b", {"hits": hits("x", "y")}, 0.001, 1),
        failed("c", BadStatus("503"), 0.1),
    ]
    usage = built(fused(a=hits("x"), b=hits("x", "y")), outcomes)["usage"]
    assert (usage["candidates"], usage["reranked"], usage["latencyMs"]) == (52, 7, 12.34)


def test_notes_stand_in_a_stable_order() -> None:
    """First what the plan said, then the engines by id, then the blend."""
    outcomes = [failed("z", BadStatus("503"), 0.1), failed("b", BadStatus("500"), 0.1)]
    ranked = RankedList(engine="a", hits=hits("x"), fetch_k=20)
    fusion = fuse([ranked], FusionConfig(method="convex"))
    notes = built(fusion, outcomes, notes=("planned",))["usage"]["notes"]
    assert [note.split(":")[0] for note in notes] == ["planned", "b", "z", "fusion"]


def test_whole_success_says_nothing_more() -> None:
    """Where nothing is to be told there are no notes, nothing degraded, and no rewritten query."""
    result = built(fused(a=hits("x")), [answered("a", {"hits": hits("x")}, 0.001, 1)])
    assert "notes" not in result["usage"]
    assert "degraded" not in result["_meta"]
    assert result.keys() == {"hits", "usage", "_meta"}


def test_partial_answer_is_degraded() -> None:
    """Engines that were asked and dropped are named in `_meta.degraded`; those not asked are not (RCP §16.2)."""
    result = built(
        fused(a=hits("x")),
        [answered("a", {"hits": hits("x")}, 0.001, 1), failed("b", BadStatus("503"), 0.1)],
        passed_over=(skipped("c", "option", "mmr is not advertised"),),
    )
    assert result["_meta"]["degraded"] == ["b"]


def test_everybody_is_in_the_report() -> None:
    """The report holds our identity and every engine, also those not asked, and why."""
    result = built(
        fused(a=hits("x")),
        [answered("z", {"hits": hits("x")}, 0.001, 1)],
        passed_over=(skipped("c", "option", "mmr is not advertised"),),
    )
    told = result["_meta"]["x-gateway"]
    assert told["id"] == "us-1234"
    assert [(engine["id"], engine["status"], engine.get("reason")) for engine in told["engines"]] == [
        ("c", "skipped", "option"),
        ("z", "ok", None),
    ]


def test_nobody_asked_is_an_empty_success() -> None:
    """Without a fusion there are no hits, as a list, and the plan's note says why (decision 3)."""
    result = built(None, notes=("no engine was asked: the federation depth is exhausted",))
    assert result["hits"] == []
    assert result["usage"]["notes"] == ["no engine was asked: the federation depth is exhausted"]


@pytest.mark.parametrize(
    ("said", "told"),
    [(["better", "better"], "better"), (["better", None], "better"), (["better", "best"], None), ([None, None], None)],
)
def test_rewritten_query_if_engines_agree(said: list[str | None], told: str | None) -> None:
    """A rewritten query is told if those who rewrote it agree."""
    outcomes = [
        answered(f"e{place}", {"hits": [], "rewrittenQuery": query}, 0.001, 1) for place, query in enumerate(said)
    ]
    assert built(fused(a=[]), outcomes).get("rewrittenQuery") == told
