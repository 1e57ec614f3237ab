"""The params of `retrieve` as the demo engines read them."""

from typing import Any

import pytest
import rcp

from app.demo.query_params import DemoQuery, read_question
from app.demo.rcp_server import FILTER_OFFER, retrieve_offer

PLAIN: dict[str, Any] = {"retrieve": retrieve_offer("sparse", "bm25", max_k=50)}
FILTERING = PLAIN | {"filter": FILTER_OFFER}
TREE = {"field": "module", "op": "eq", "value": "json"}


def read(**params: Any) -> DemoQuery:
    return read_question({"query": "q", **params}, FILTERING)


def test_what_is_absent_has_its_default() -> None:
    """A bare query is asked for ten hits with text; null counts as absent."""
    assert read() == read(mode=None, filter=None, minScore=None) == DemoQuery("q", 10, None, None, include_text=True)


def test_what_is_offered_is_honoured() -> None:
    """Mode, unit and modality that the engine has, a filter, a least score, no text."""
    question = read(mode="sparse", unit="document", modality="text", k=7, minScore=1, includeText=False, filter=TREE)
    assert (question.k, question.min_score, question.include_text, question.notes) == (7, 1, False, ())
    assert question.where is not None


def test_k_is_clamped() -> None:
    """More than `maxK` is not refused."""
    assert read(k=1000).k == 50


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("words", "words"),
        ({"type": "text", "text": "block"}, "block"),
        (["several", {"type": "text", "text": "blocks"}], "several blocks"),
        ("", ""),
    ],
)
def test_queries_may_be_blocks(query: Any, text: str) -> None:
    """A string, a text block and an array of both mean their words."""
    assert read(query=query).text == text


@pytest.mark.parametrize(
    "query", [None, 7, [], [7], {}, {"type": "text"}, {"type": "text", "text": 7}, {"type": "poem"}]
)
def test_a_query_that_is_none_is_refused(query: Any) -> None:
    """Malformed: -32602 that names the field."""
    with pytest.raises(rcp.RcpError) as refusal:
        read(query=query)
    assert (refusal.value.code, refusal.value.data) == (-32602, {"field": "query"})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("mode", "dense"),
        ("mode", "hybrid"),
        ("unit", "chunk"),
        ("modality", "image"),
        ("rerank", {"method": "colbert"}),
        ("mmr", {}),
        ("fusion", {"method": "rrf"}),
        ("rewrite", "hyde"),
        ("recency", {"field": "date"}),
        ("level", 0),
        ("tokenBudget", 100),
        ("includeVectors", True),
        ("cursor", "abc"),
    ],
)
def test_what_is_not_offered_is_refused_or_noted(option: str, value: Any) -> None:
    """-32005 that names the option; with `strict: false` a note in its place."""
    with pytest.raises(rcp.RcpError) as refusal:
        read(**{option: value})
    assert (refusal.value.code, refusal.value.data) == (-32005, {"option": option})
    notes = read(**{option: value}, strict=False).notes
    assert len(notes) == 1
    assert option in notes[0]


def test_options_that_are_switched_off_are_no_options() -> None:
    """`false` asks for nothing."""
    assert read(rerank=False, rewrite=False, includeVectors=False).notes == ()


@pytest.mark.parametrize("strict", [True, False])
def test_filters_and_snapshots_are_never_dropped(strict: bool) -> None:
    """An engine without them refuses, however lenient the caller is."""
    for option, value in (("filter", TREE), ("indexVersion", "v1")):
        with pytest.raises(rcp.RcpError) as refusal:
            read_question({"query": "q", option: value, "strict": strict}, PLAIN)
        assert (refusal.value.code, refusal.value.data) == (-32005, {"option": option})


def test_pictures_cannot_be_searched() -> None:
    """A block outside the advertised modalities is -32005."""
    with pytest.raises(rcp.RcpError) as refusal:
        read(query={"type": "image", "uri": "https://x/y.png", "mimeType": "image/png"})
    assert refusal.value.code == -32005


@pytest.mark.parametrize("value", ["high", True, [1]])
def test_a_least_score_is_a_number(value: Any) -> None:
    """Malformed: -32602 that names the field."""
    with pytest.raises(rcp.RcpError) as refusal:
        read(minScore=value)
    assert (refusal.value.code, refusal.value.data) == (-32602, {"field": "minScore"})
