"""Params of `retrieve`, `_meta` and `x-gateway`: what is refused, with which field, and what travels on."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.errors import InvalidParams, OptionUnsupported, RcpError
from app.protocol.param_fields import MAX_NAME
from app.protocol.retrieve_params import (
    MAX_ENGINES,
    MAX_PATH,
    CallMeta,
    RetrieveParams,
    read_gateway,
    read_meta,
    read_retrieve,
)

BIG = 2**53


def read(**params: Any) -> RetrieveParams:
    return read_retrieve({"query": "q", **params})


def refusal(params: dict[str, Any]) -> InvalidParams:
    with pytest.raises(InvalidParams) as caught:
        read_retrieve({"query": "q", **params})
    assert caught.value.code == -32602
    return caught.value


def test_bare_query_takes_the_defaults() -> None:
    """Only a query is required: k is 10, strict is on, and nothing else is demanded."""
    params = read()
    assert (params.k, params.strict, params.filter) == (10, True, None)
    assert params.query_modalities == {"text"}
    assert params.raw == {"query": "q"}
    assert params.options.mode is None
    assert params.gateway.engines is None


def test_every_option_is_read_and_travels_as_it_was_sent() -> None:
    """All options of RCP §7.7 are typed for the plan, and `raw` forwards them and unknown fields untouched."""
    sent: dict[str, Any] = {
        "query": ["q", {"type": "image", "mimeType": "image/png", "data": "aGk="}],
        "k": 5,
        "mode": "hybrid",
        "modality": "multimodal",
        "candidateK": 100,
        "fusion": {"method": "weighted", "weights": {"dense": 1, "docs": 0.5}, "rrfK": 60, "alpha": 0, "x-acme": [1]},
        "rerank": {"method": "cross-encoder", "model": "m", "topN": 50},
        "mmr": {"lambda": 0.5},
        "rewrite": "step-back",
        "filter": {"field": "year", "op": "gte", "value": 2017},
        "minScore": 1,
        "recency": {"field": "date", "halfLifeDays": 30},
        "unit": "tree-node",
        "level": 0,
        "tokenBudget": 1,
        "sessionId": "s",
        "includeText": False,
        "includeVectors": True,
        "seed": -7,
        "indexVersion": "v",
        "strict": False,
        "cursor": "c",
        "x-acme": {"deep": None},
        "novelty": [None, 1],
    }
    params = read_retrieve(sent)
    assert params.raw == sent
    assert params.query_modalities == {"text", "image"}
    assert (params.k, params.strict) == (5, False)
    assert params.filter is not None
    assert params.filter.raw is sent["filter"]
    options = params.options
    assert options.fusion is not None
    assert options.rerank is not None
    assert options.mmr is not None
    assert options.recency is not None
    assert (options.mode, options.modality, options.candidate_k) == ("hybrid", "multimodal", 100)
    assert (options.fusion.method, options.fusion.rrf_k, options.fusion.alpha) == ("weighted", 60, 0)
    assert options.fusion.weights == {"dense": 1, "docs": 0.5}
    assert (options.rerank.method, options.rerank.model, options.rerank.top_n) == ("cross-encoder", "m", 50)
    assert (options.mmr.lambda_, options.rewrite, options.min_score) == (0.5, "step-back", 1)
    assert (options.recency.field, options.recency.half_life_days) == ("date", 30)
    assert (options.unit, options.level, options.token_budget) == ("tree-node", 0, 1)
    assert (options.session_id, options.seed, options.index_version, options.cursor) == ("s", -7, "v", "c")
    assert (options.include_text, options.include_vectors) == (False, True)


def test_null_counts_as_absent_everywhere_in_the_options() -> None:
    """Null means absent at the top and inside option objects and blocks, and is not forwarded."""
    params = read_retrieve(
        {
            "query": [{"type": "text", "text": "q", "uri": None}],
            "k": None,
            "mode": None,
            "strict": None,
            "filter": None,
            "fusion": {"method": None, "weights": {"docs": None, "code": 2}},
            "rerank": {"topN": None},
            "mmr": {"lambda": None},
            "_meta": None,
            "x-gateway": None,
            "x-acme": None,
        }
    )
    assert (params.k, params.strict) == (10, True)
    assert params.raw == {
        "query": [{"type": "text", "text": "q"}],
        "fusion": {"weights": {"code": 2}},
        "rerank": {},
        "mmr": {},
    }


def test_what_is_ours_is_not_forwarded() -> None:
    """`_meta`, `x-gateway` and an empty filter stay here; the caller's object is not changed."""
    sent = {"query": "q", "_meta": {"deadlineMs": 5}, "x-gateway": {"engines": ["a"]}, "filter": {}}
    assert read_retrieve(sent).raw == {"query": "q"}
    assert set(sent) == {"query", "_meta", "x-gateway", "filter"}


def test_false_switches_rerank_and_rewrite_off() -> None:
    """`rerank: false` and `rewrite: false` are well formed, travel on, and demand nothing."""
    params = read(rerank=False, rewrite=False)
    assert params.raw == {"query": "q", "rerank": False, "rewrite": False}
    assert params.options.rerank is None
    assert params.options.rewrite is None


COUNTS = ["k", "candidateK", "tokenBudget"]
NO_COUNTS = [0, -1, 1.0, 1.5, "1", True, False, [], {}, BIG + 1, 2**63, 1e300]


@pytest.mark.parametrize("field", COUNTS)
@pytest.mark.parametrize("value", NO_COUNTS)
def test_counts_are_integers_of_at_least_one(field: str, value: Any) -> None:
    """A count that is no integer within 1 and 2^53 is -32602: no booleans, no fractions, no strings."""
    assert refusal({field: value}).data == {"field": field}


@pytest.mark.parametrize(
    ("params", "field"),
    [
        *(({"mode": value}, "mode") for value in (1, True, False, [], {})),
        ({"modality": 1}, "modality"),
        ({"unit": ["chunk"]}, "unit"),
        *(({"fusion": value}, "fusion") for value in (False, "rrf", [], 1)),
        ({"fusion": {"method": 1}}, "fusion.method"),
        ({"fusion": {"weights": []}}, "fusion.weights"),
        ({"fusion": {"weights": {str(n): 1 for n in range(MAX_ENGINES + 1)}}}, "fusion.weights"),
        *(({"fusion": {"weights": {"a.b": value}}}, "fusion.weights.a.b") for value in (-0.1, 1e7, "1", True, [])),
        *(({"fusion": {"rrfK": value}}, "fusion.rrfK") for value in (0, -60, 60.0, "60", True)),
        *(({"fusion": {"alpha": value}}, "fusion.alpha") for value in (-0.1, 1.1, "0.5", True)),
        *(({"rerank": value}, "rerank") for value in (True, "llm", [], 1)),
        ({"rerank": {"method": 1}}, "rerank.method"),
        ({"rerank": {"model": 1}}, "rerank.model"),
        *(({"rerank": {"topN": value}}, "rerank.topN") for value in (0, "50", 50.0, True)),
        *(({"mmr": value}, "mmr") for value in (True, False, 0.5)),
        *(({"mmr": {"lambda": value}}, "mmr.lambda") for value in (-0.1, 1.01, "1", False)),
        *(({"rewrite": value}, "rewrite") for value in (True, 1, {})),
        *(({"minScore": value}, "minScore") for value in ("0.5", True, [], float("nan"), float("inf"))),
        *(({"recency": value}, "recency") for value in (False, "date")),
        ({"recency": {"halfLifeDays": 1}}, "recency.field"),
        ({"recency": {"field": "", "halfLifeDays": 1}}, "recency.field"),
        ({"recency": {"field": "date"}}, "recency.halfLifeDays"),
        *(({"recency": {"field": "d", "halfLifeDays": v}}, "recency.halfLifeDays") for v in (0, -1, "30", True)),
        *(({"level": value}, "level") for value in (-1, 1.0, "0", True)),
        *(({"sessionId": value}, "sessionId") for value in ("", "x" * (MAX_NAME + 1), 7, True)),
        *(({"includeText": value}, "includeText") for value in (0, 1, "true", "false")),
        ({"includeVectors": 1}, "includeVectors"),
        ({"strict": "no"}, "strict"),
        *(({"seed": value}, "seed") for value in (1.5, "1", True, BIG + 1, -BIG - 1)),
        ({"indexVersion": 3}, "indexVersion"),
        ({"cursor": 3}, "cursor"),
        ({"filter": []}, "filter"),
        ({"filter": {"field": "year", "op": "gt", "value": "soon"}}, "filter.year"),
        ({"query": None}, "query"),
        ({"query": [{"type": "image", "data": "aGk="}]}, "query[0].mimeType"),
        *(({"x-gateway": value}, "x-gateway") for value in ([], "a", False)),
    ],
)
def test_malformed_option_names_its_field(params: dict[str, Any], field: str) -> None:
    """A malformed option is -32602 whatever the capabilities, with the path of the field in data and message."""
    fault = refusal(params)
    assert fault.data == {"field": field}
    assert field in fault.message


def test_message_says_what_was_wanted_and_what_came() -> None:
    """Messages name the field, the remedy and the value, in RCP's words and not in those of a library."""
    assert refusal({"k": "ten"}).message == "'k' must be an integer of at least 1, not \"ten\""
    assert refusal({"strict": 0}).message == "'strict' must be true or false, not 0"
    assert refusal({"fusion": {"rrfK": True}}).message == "'fusion.rrfK' must be an integer of at least 1, not true"
    assert refusal({"rerank": True}).message == "'rerank' must be an object, or false, not true"
    assert refusal({"k": BIG + 1}).message == f"'k' must be within ±2^53, not {BIG + 1}"
    assert refusal({"recency": {"field": "d"}}).message == "'recency.halfLifeDays' is required: a number above 0"
    assert refusal({"mode": ["x"] * 99}).message == "'mode' must be a string, not an array"
    assert len(refusal({"seed": "x" * 10_000}).message) < 100


@pytest.mark.parametrize(
    ("params", "option"),
    [
        ({"mode": "Dense"}, "mode"),
        ({"modality": "video"}, "modality"),
        ({"unit": "sentence"}, "unit"),
        ({"rewrite": "expand"}, "rewrite"),
        ({"fusion": {"method": "borda"}}, "fusion.method"),
        ({"rerank": {"method": "bm25"}}, "rerank.method"),
    ],
)
def test_value_outside_rcp_is_an_unsupported_option(params: dict[str, Any], option: str) -> None:
    """A value that RCP does not know is in nobody's advertised set: -32005 if strict, left to the plan if not."""
    with pytest.raises(OptionUnsupported) as caught:
        read(**params)
    assert caught.value.data == {"option": option}
    assert read(**params, strict=False).raw == {"query": "q", "strict": False, **params}


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"k": 10, "candidateK": 9}, "candidateK"),
        ({"candidateK": 9}, "candidateK"),
        ({"k": 10, "rerank": {"topN": 9}}, "rerank.topN"),
        ({"k": 10, "rerank": {"topN": 50}, "candidateK": 49}, "candidateK"),
        ({"k": 10, "rerank": {"topN": 9}, "candidateK": 50}, "rerank.topN"),
    ],
)
def test_funnel_must_hold_as_it_was_sent(params: dict[str, Any], field: str) -> None:
    """candidateK >= rerank.topN >= k, where an absent k is 10; a violation is -32602 and names the field."""
    assert refusal(params).data == {"field": field}


@pytest.mark.parametrize(
    "params", [{"k": 10, "candidateK": 10, "rerank": {"topN": 10}}, {"k": 2, "candidateK": 5}, {"k": BIG}]
)
def test_funnel_may_be_even(params: dict[str, Any]) -> None:
    """Equal numbers satisfy the funnel, and a huge k is clamped later, not refused."""
    assert read(**params).k == params["k"]


def test_gateway_options_are_read_and_unknown_ones_kept() -> None:
    """`x-gateway` restricts engines, chooses identity and blend, and keeps keys that other methods use."""
    gateway = read(
        **{
            "x-gateway": {
                "engines": ["docs", "code"],
                "identity": "uri",
                "confidenceWeight": 0,
                "mmr": {"lambda": 1},
                "engine": "docs",
                "later": 1,
            }
        }
    ).gateway
    assert gateway.engines == ["docs", "code"]
    assert (gateway.identity, gateway.confidence_weight) == ("uri", 0)
    assert gateway.mmr is not None
    assert gateway.mmr.lambda_ == 1
    assert gateway.engine == "docs"
    assert gateway.model_extra == {"later": 1}
    assert read_gateway(None) == read_gateway({})


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"engines": []}, "x-gateway.engines"),
        ({"engines": "docs"}, "x-gateway.engines"),
        ({"engines": ["a"] * (MAX_ENGINES + 1)}, "x-gateway.engines"),
        ({"engines": ["docs", 7]}, "x-gateway.engines[1]"),
        ({"engines": [""]}, "x-gateway.engines[0]"),
        ({"identity": "hash"}, "x-gateway.identity"),
        ({"confidenceWeight": 1.5}, "x-gateway.confidenceWeight"),
        ({"confidenceWeight": True}, "x-gateway.confidenceWeight"),
        ({"mmr": {"lambda": 2}}, "x-gateway.mmr.lambda"),
        ({"mmr": True}, "x-gateway.mmr"),
    ],
)
def test_malformed_gateway_option_names_its_field(options: dict[str, Any], field: str) -> None:
    """A malformed `x-gateway` is -32602 with its path, for any method."""
    with pytest.raises(InvalidParams) as caught:
        read_gateway(options)
    assert caught.value.data == {"field": field}


@pytest.mark.parametrize(
    ("engines", "what"),
    [
        ([], "not an empty array"),
        ({}, "not an empty object"),
        ([1] * (MAX_ENGINES + 1), f"not one of {MAX_ENGINES + 1}"),
    ],
)
def test_what_was_sent_is_told(engines: Any, what: str) -> None:
    """An array that is refused for its length is not told that it is one."""
    with pytest.raises(InvalidParams, match=f"{what}$"):
        read_gateway({"engines": engines})


def test_meta_is_read() -> None:
    """`_meta` gives the deadline, the way through the federation and the progress token."""
    sent = {
        "deadlineMs": 500,
        "federation": {"depth": 2, "path": ["a", "b"], "x": 1},
        "progressToken": "t",
        "traceId": "4bf9",
        "unknown": {},
    }
    meta = read_meta(sent)
    assert (meta.deadline_ms, meta.depth, meta.path) == (500, 2, ("a", "b"))
    assert meta.progress_token == "t"


@pytest.mark.parametrize(
    "sent", [None, {}, {"deadlineMs": None, "federation": None}, {"federation": {"depth": None, "path": None}}]
)
def test_absent_meta_says_nothing(sent: Any) -> None:
    """An absent or null `_meta`, or nulls in it, say nothing."""
    assert read_meta(sent) == CallMeta()


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        *((value, "_meta") for value in ([], "x", 1, True)),
        *(({"deadlineMs": value}, "_meta.deadlineMs") for value in (0, -5, "500", 500.5, 500.0, True, [], BIG + 1)),
        *(({"federation": value}, "_meta.federation") for value in ([], "a", 3)),
        *(({"federation": {"depth": value}}, "_meta.federation.depth") for value in (-1, 1.0, "3", True)),
        *(({"federation": {"path": value}}, "_meta.federation.path") for value in ("a", {}, ["a"] * (MAX_PATH + 1))),
        *(
            ({"federation": {"path": ["a", value]}}, "_meta.federation.path[1]")
            for value in (None, 1, "", "x" * (MAX_NAME + 1))
        ),
        *(({"progressToken": value}, "_meta.progressToken") for value in (1.5, True, [], {})),
        ({"traceId": 7}, "_meta.traceId"),
    ],
)
def test_malformed_meta_names_its_field(sent: Any, field: str) -> None:
    """What we act on in `_meta` is checked: a wrong type is -32602 with its path."""
    with pytest.raises(InvalidParams) as caught:
        read_meta(sent)
    assert caught.value.data == {"field": field}


@pytest.mark.parametrize("token", [0, -1, "", "t2"])
def test_progress_token_keeps_its_type(token: str | int) -> None:
    """A progress token is a string or an integer and stays what it is."""
    assert read_meta({"progressToken": token}).progress_token == token


_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda below: st.one_of(st.lists(below, max_size=3), st.dictionaries(st.text(max_size=5), below, max_size=3)),
    max_leaves=5,
)
_named = st.sampled_from(
    ["k", "mode", "fusion", "rerank", "mmr", "filter", "recency", "x-gateway", "_meta", "rewrite", "sessionId", "new"]
)


@given(st.dictionaries(_named, _json), _json)
def test_any_json_is_read_or_refused(params: dict[str, Any], query: Any) -> None:
    """Whatever JSON comes as params, the answer is a reading or an RCP error, never a crash."""
    with suppress(RcpError):
        read = read_retrieve({**params, "query": query})
        assert None not in read.raw.values()
        assert read.k >= 1
