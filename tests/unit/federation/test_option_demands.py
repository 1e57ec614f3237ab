"""Which options engines must honour, and whether one advertisement allows them."""

from typing import Any

import pytest

from app.federation.option_demands import CHECKS, demands_of
from tests.support.fake_engine import advertised

TEXT = frozenset({"text"})


def missing(capabilities: dict[str, Any], modalities: frozenset[str] = TEXT, **params: Any) -> list[str]:
    """What an engine with these capabilities lacks for these params."""
    advertisement = advertised({"retrieve": {}, **capabilities})
    assert advertisement.retrieve is not None
    found = [
        demand.check(demand.value, advertisement, advertisement.retrieve) for demand in demands_of(params, modalities)
    ]
    return [lack for lack in found if lack is not None]


def test_plain_request_demands_nothing() -> None:
    """What the gateway does itself, and what is merely handed on, is no demand on any engine."""
    params = {"k": 3, "minScore": 0.5, "tokenBudget": 9, "seed": 1, "includeText": False, "fusion": {}, "x-acme": 1}
    assert demands_of(params, TEXT) == []


def test_switched_off_options_demand_nothing() -> None:
    """`false` switches an option off, and so demands nothing."""
    assert demands_of({"rerank": False, "rewrite": False, "includeVectors": False}, TEXT) == []


def test_demands_stand_in_a_fixed_order() -> None:
    """The order of demands does not depend on the order of params."""
    params: dict[str, Any] = {key: {} for key in reversed(list(CHECKS))}
    demands = demands_of(params, frozenset({"image"}))
    assert [demand.option for demand in demands] == [*CHECKS, "query"]
    assert [demand.keys for demand in demands] == [*[(key,) for key in CHECKS], ()]


def test_level_zero_is_a_demand() -> None:
    """0 is a level and not an option that is disabled."""
    assert [demand.option for demand in demands_of({"level": 0}, TEXT)] == ["level"]


ALLOWED = [
    pytest.param({"retrieve": {"modes": ["dense"]}}, {"mode": "dense"}, id="mode"),
    pytest.param({}, {"modality": "text"}, id="text without modalities"),
    pytest.param({"retrieve": {"modalities": ["text", "code"]}}, {"modality": "code"}, id="modality"),
    pytest.param({"retrieve": {"units": ["chunk"]}}, {"unit": "chunk"}, id="unit"),
    pytest.param({"retrieve": {"levels": 3}}, {"level": 2}, id="level"),
    pytest.param({"retrieve": {"rerankBuiltin": True}}, {"rerank": {}}, id="rerank"),
    pytest.param(
        {"retrieve": {"rerankBuiltin": True}, "rerank": {"methods": ["colbert"], "models": ["m"]}},
        {"rerank": {"method": "colbert", "model": "m", "topN": 5}},
        id="rerank method and model",
    ),
    pytest.param({"transform": {"methods": ["hyde"]}}, {"rewrite": "hyde"}, id="rewrite"),
    pytest.param({"retrieve": {"mmr": True}}, {"mmr": {"lambda": 0.5}}, id="mmr"),
    pytest.param({"filter": {"fields": {"at": "date"}}}, {"recency": {"field": "at"}}, id="recency on a date"),
    pytest.param({"filter": {"fields": {"year": "int"}}}, {"recency": {"field": "year"}}, id="recency on a number"),
    pytest.param({"filter": {"fields": ["at"]}}, {"recency": {"field": "at"}}, id="recency on an untyped field"),
    pytest.param({"filter": {"fields": {"at": "date"}}}, {"recency": {"halfLifeDays": 3}}, id="recency, any field"),
    pytest.param({"retrieve": {"snapshots": True}}, {"indexVersion": "v1"}, id="snapshot"),
    pytest.param({"embed": {"dimension": 3}}, {"includeVectors": True}, id="vectors"),
]

REFUSED = [
    pytest.param({"retrieve": {"modes": ["dense"]}}, {"mode": "sparse"}, "mode sparse", id="mode"),
    pytest.param({}, {"mode": "dense"}, "mode dense", id="no modes at all"),
    pytest.param({}, {"modality": "image"}, "modality image", id="modality"),
    pytest.param({"retrieve": {"units": ["chunk"]}}, {"unit": "page"}, "unit page", id="unit"),
    pytest.param({"retrieve": {"levels": 3}}, {"level": 3}, "level 3", id="level"),
    pytest.param({}, {"level": 0}, "level 0", id="no levels at all"),
    pytest.param({"rerank": {"methods": ["colbert"]}}, {"rerank": {}}, "rerank inside", id="rerank apart"),
    pytest.param(
        {"retrieve": {"rerankBuiltin": True}}, {"rerank": {"method": "llm"}}, "rerank method llm", id="rerank method"
    ),
    pytest.param(
        {"retrieve": {"rerankBuiltin": True}, "rerank": {"methods": ["llm"]}},
        {"rerank": {"method": "llm", "model": "m"}},
        "rerank model m",
        id="rerank model",
    ),
    pytest.param({"transform": {"methods": ["hyde"]}}, {"rewrite": "rewrite"}, "rewrite rewrite", id="rewrite"),
    pytest.param({"transform": {}}, {"rewrite": "hyde"}, "rewrite hyde", id="no rewrite methods"),
    pytest.param({}, {"mmr": {}}, "mmr", id="mmr"),
    pytest.param(
        {"filter": {"fields": {"at": "keyword"}}}, {"recency": {"field": "at"}}, "recency on at", id="keyword"
    ),
    pytest.param({}, {"recency": {"field": "at"}}, "recency on at", id="recency on no field"),
    pytest.param({}, {"recency": {}}, "recency is not possible", id="recency, no field at all"),
    pytest.param({}, {"indexVersion": "v1"}, "snapshots", id="snapshot"),
    pytest.param({}, {"includeVectors": True}, "vectors", id="vectors"),
]


@pytest.mark.parametrize(("capabilities", "params"), ALLOWED)
def test_advertised_is_allowed(capabilities: dict[str, Any], params: dict[str, Any]) -> None:
    """An option whose value the engine advertises is allowed."""
    assert missing(capabilities, **params) == []


@pytest.mark.parametrize(("capabilities", "params", "text"), REFUSED)
def test_unadvertised_is_named(capabilities: dict[str, Any], params: dict[str, Any], text: str) -> None:
    """An option whose value the engine does not advertise is refused with a reason that names it."""
    (lack,) = missing(capabilities, **params)
    assert lack.startswith(text)


def test_blocks_of_a_query_are_a_demand() -> None:
    """Every modality of the query's blocks must be advertised; a text query needs nothing."""
    both = frozenset({"image", "audio"})
    assert missing({"retrieve": {"modalities": ["text", "image", "audio"]}}, both) == []
    (lack,) = missing({"retrieve": {"modalities": ["text"]}}, both)
    assert lack == "query blocks of modality audio, image are not advertised"


def test_text_block_beside_an_image_is_a_demand_too() -> None:
    """A mixed query needs text as well as image."""
    (lack,) = missing({"retrieve": {"modalities": ["image"]}}, frozenset({"text", "image"}))
    assert "text" in lack
