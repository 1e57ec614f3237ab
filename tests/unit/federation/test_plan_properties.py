"""The plan as a whole: whatever is advertised and asked, nobody is forgotten and nothing of ours leaks."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.federation.planner import EngineCall
from app.protocol.errors import RcpError
from tests.support.fake_engine import FakeEngine, members_of
from tests.support.planning import asked, planned

OFFERS = st.fixed_dictionaries(
    {},
    optional={
        "maxK": st.integers(1, 300),
        "modes": st.lists(st.sampled_from(["dense", "sparse", "hybrid"]), max_size=3),
        "modalities": st.lists(st.sampled_from(["text", "image", "code"]), max_size=3),
        "units": st.lists(st.sampled_from(["chunk", "page"]), max_size=2),
        "levels": st.integers(1, 4),
        "mmr": st.booleans(),
        "rerankBuiltin": st.booleans(),
        "fusion": st.lists(st.sampled_from(["rrf", "weighted", "convex"]), max_size=3),
        "snapshots": st.booleans(),
        "scoreFloor": st.floats(-1, 1),
    },
)
ADVERTISEMENTS = st.fixed_dictionaries(
    {},
    optional={
        "retrieve": OFFERS,
        "rerank": st.fixed_dictionaries({"methods": st.just(["llm"])}, optional={"maxCandidates": st.integers(1, 60)}),
        "filter": st.fixed_dictionaries(
            {"fields": st.dictionaries(st.sampled_from(["lang", "year"]), st.sampled_from(["keyword", "int"]))},
            optional={"operators": st.lists(st.sampled_from(["eq", "in", "gte"]))},
        ),
        "transform": st.just({"methods": ["hyde"]}),
        "embed": st.just({"dimension": 3}),
    },
)
LEAVES = st.sampled_from(
    [
        {"field": "lang", "op": "eq", "value": "de"},
        {"field": "year", "op": "gte", "value": 2020},
        {"field": "year", "op": "in", "value": [1, 2]},
        {"field": "nosuch", "op": "exists", "value": True},
    ]
)
PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "k": st.integers(1, 400),
        "mode": st.sampled_from(["dense", "sparse", "hybrid"]),
        "modality": st.sampled_from(["text", "image", "code"]),
        "unit": st.sampled_from(["chunk", "page"]),
        "level": st.integers(0, 4),
        "mmr": st.just({"lambda": 0.5}),
        "rerank": st.sampled_from([{"method": "llm"}, {"method": "llm", "topN": 400}, {}, False]),
        "candidateK": st.integers(400, 500),
        "rewrite": st.sampled_from(["hyde", "rewrite", False]),
        "recency": st.sampled_from([{"field": "year"}, {}, {"field": "nosuch"}]),
        "indexVersion": st.just("v"),
        "includeVectors": st.booleans(),
        "filter": LEAVES | st.lists(LEAVES, min_size=1, max_size=3).map(lambda leaves: {"and": leaves}),
        "fusion": st.sampled_from(
            [{"method": "weighted", "weights": {"dense": 1}}, {"rrfK": 5}, {"weights": {"e0": 2}}]
        ),
        "minScore": st.floats(0, 1),
        "tokenBudget": st.integers(1, 99),
        "includeText": st.booleans(),
    },
)


@settings(max_examples=300)
@given(
    advertisements=st.lists(ADVERTISEMENTS | st.none(), min_size=1, max_size=5),
    params=PARAMS,
    strict=st.booleans(),
    chosen=st.none() | st.sets(st.integers(0, 4), min_size=1),
    meta=st.none()
    | st.fixed_dictionaries({"federation": st.sampled_from([{"depth": 0}, {"path": ["g"]}, {"path": ["us"]}])}),
)
def test_everybody_is_asked_or_skipped_exactly_once(
    advertisements: list[dict[str, Any] | None],
    params: dict[str, Any],
    strict: bool,
    chosen: set[int] | None,
    meta: dict[str, Any] | None,
) -> None:
    """Whatever is advertised and asked: an RcpError, or a plan in which every engine of the registry stands exactly
    once, each skip has a reason, the funnel holds, and nothing of ours leaks."""
    engines = [
        FakeEngine(f"e{number}", capabilities=said, reached=said is not None, gateway_id="g" if number == 1 else None)
        for number, said in enumerate(advertisements)
    ]
    members = members_of(*engines, disabled=["off"])
    names = {engine.id for engine in engines} | {"off"}
    selection: dict[str, Any] = (
        {} if chosen is None else {"x_gateway": {"engines": [f"e{number % len(engines)}" for number in chosen]}}
    )
    try:
        plan = planned(members, meta=meta, strict=strict, **selection, **params)
    except RcpError as fault:
        refusal = fault
        assert refusal.code in (-32003, -32005, -32010, -32602)
        assert refusal.message
        return
    stood = asked(plan) + [outcome.engine for outcome in (*plan.skipped, *plan.lost)]
    assert len(stood) == len(set(stood))
    assert set(stood) == names
    assert all(outcome.status == "skipped" and outcome.kind and outcome.detail for outcome in plan.skipped)
    for engine_call in plan.engine_calls:
        check_engine_call(engine_call, params, strict)
        assert repr(engine_call.engine) in repr(plan)


def check_engine_call(engine_call: EngineCall, params: dict[str, Any], strict: bool) -> None:
    """What holds for whatever an engine is sent."""
    sent = engine_call.params
    rerank = sent.get("rerank") or {}
    top = rerank.get("topN", sent["k"])
    assert sent.get("candidateK", top) >= top >= sent["k"] >= 1
    offer = engine_call.engine.advertisement.retrieve if engine_call.engine.advertisement else None
    assert offer is not None
    assert offer.max_k is None or sent["k"] <= offer.max_k
    assert not {"minScore", "tokenBudget", "x-gateway", "cursor", "sessionId"} & sent.keys()
    assert sent.get("filter") == params.get("filter")
    if strict:
        assert not {key for key in ("mode", "unit", "level", "mmr", "indexVersion") if params.get(key) != sent.get(key)}
