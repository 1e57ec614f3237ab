"""Every option of `retrieve` at the engines and in the answer, strict and not; where one has a file of its own (pages,
sessions, snapshots, routing, fused answers) it is not said again here."""

from typing import Any

import pytest

from tests.support.corpora import ids, serving
from tests.support.running_gateway import entry, running
from tests.support.scripted_engine import ScriptedEngine, hit, hits

Json = dict[str, Any]

ABLE: Json = {
    "retrieve": {
        "maxK": 100,
        "modes": ["dense", "sparse", "hybrid"],
        "modalities": ["text", "code", "image"],
        "units": ["chunk", "document"],
        "levels": 3,
        "mmr": True,
        "rerankBuiltin": True,
        "fusion": ["weighted", "convex"],
        "snapshots": True,
    },
    "rerank": {"methods": ["cross-encoder", "llm"], "models": ["m1"], "maxCandidates": 50},
    "transform": {"methods": ["hyde"]},
    "filter": {"fields": {"published": "date", "lang": "keyword"}},
    "embed": {"dimension": 3, "identity": "m"},
}
PLAIN: Json = {"retrieve": {"maxK": 100}}

IMAGE = {"type": "image", "uri": "https://example.org/cat.png", "mimeType": "image/png"}


def reported(result: Json) -> dict[str, Json]:
    """The report of each engine."""
    return {engine["id"]: engine for engine in result["_meta"]["x-gateway"]["engines"]}


def sent(engine: ScriptedEngine) -> Json:
    """The params of the last request."""
    return engine.requests()[-1].params


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("mode", "hybrid"),
        ("modality", "code"),
        ("unit", "document"),
        ("level", 2),
        ("mmr", {"lambda": 0.3}),
        ("rewrite", "hyde"),
        ("recency", {"field": "published", "halfLifeDays": 30}),
        ("rerank", {"method": "llm", "model": "m1"}),
        ("includeVectors", True),
    ],
)
async def test_an_option_for_engines(engines: Any, option: str, value: Any) -> None:
    """Strict: it reaches those that can, as it is, and the others are skipped with the reason. Lenient: these are asked
    without it, and notes and report say so. If nobody can it is -32005, or leniently an answer without it."""
    able, plain = await engines(capabilities=ABLE), await engines(capabilities=PLAIN)
    entries = [entry("able", able), entry("plain", plain)]
    async with running(entries) as gateway:
        strict = await gateway.retrieve(**{option: value})
        lenient = await gateway.retrieve(**{option: value, "strict": False})
        alone = {"query": "q", option: value, "x-gateway": {"engines": ["plain"]}}
        error = await gateway.error("retrieve", alone)
        dropped = await gateway.result("retrieve", {**alone, "strict": False})
    assert [request.params[option] for request in able.requests()] == [value, value]
    assert [option in request.params for request in plain.requests()] == [False, False]
    assert (reported(strict)["plain"]["status"], reported(strict)["plain"]["reason"]) == ("skipped", "option")
    assert reported(lenient)["plain"]["without"] == [option]
    assert "without" not in reported(lenient)["able"]
    for result in (lenient, dropped):
        assert any(note.startswith(f"plain: asked without '{option}'") for note in result["usage"]["notes"])
    assert dropped["hits"]
    assert (error["code"], error["data"]["option"]) == (-32005, option)


@pytest.mark.parametrize("option", ["mode", "modality", "unit", "rewrite", "rerank.method", "fusion.method"])
async def test_a_value_that_rcp_does_not_know(engines: Any, option: str) -> None:
    """Strict it is -32005 with the option's name, before anybody is asked; leniently it is dropped with a note."""
    engine = await engines(capabilities=ABLE)
    head, _, tail = option.partition(".")
    params = {head: {tail: "quantum"} if tail else "quantum"}
    async with running([entry("e", engine)]) as gateway:
        error = await gateway.error("retrieve", {"query": "q", **params})
        assert not engine.requests()
        result = await gateway.retrieve(**params, strict=False)
    assert (error["code"], error["data"]["option"]) == (-32005, option)
    assert any(head in note for note in result["usage"]["notes"])


async def test_strict_must_be_a_boolean(engines: Any) -> None:
    """`strict` is true by default, and nothing but true or false."""
    async with running([entry("e", await engines())]) as gateway:
        error = await gateway.error("retrieve", {"query": "q", "strict": "no"})
    assert (error["code"], error["data"]["field"]) == (-32602, "strict")


async def test_query_blocks_go_to_who_takes_their_modality(engines: Any) -> None:
    """Content blocks are routed by modality, as they are; a `uri` is handed on and never fetched; strict or not, an
    engine that cannot read the question is not asked."""
    able, plain = await engines(capabilities=ABLE), await engines(capabilities=PLAIN)
    query = ["a cat", IMAGE]
    async with running([entry("able", able), entry("plain", plain)]) as gateway:
        results = [await gateway.result("retrieve", {"query": query, "strict": strict}) for strict in (True, False)]
        alone = {"query": query, "strict": False, "x-gateway": {"engines": ["plain"]}}
        error = await gateway.error("retrieve", alone)
    assert [request.params["query"] for request in able.requests()] == [query, query]
    assert not plain.requests()
    assert all(reported(result)["plain"]["reason"] == "option" for result in results)
    assert (error["code"], error["data"]["option"]) == (-32005, "query")


@pytest.mark.parametrize(
    "query",
    [None, "", [], 7, {"type": "image"}, {**IMAGE, "data": "aGk="}, {"type": "image", "uri": "https://x/y.png"}],
)
async def test_a_malformed_query(engines: Any, query: Any) -> None:
    """A missing or malformed query is -32602 with the field, and nobody is asked."""
    engine = await engines(capabilities=ABLE)
    async with running([entry("e", engine)]) as gateway:
        error = await gateway.error("retrieve", {"query": query} if query is not None else {})
    assert error["code"] == -32602
    assert error["data"]["field"].startswith("query")
    assert not engine.requests()


async def test_rerank_keeps_the_funnel_at_each_engine(engines: Any) -> None:
    """`candidateK` and `topN` grow with the over-fetching, within `maxCandidates`, and the answer says what was
    reranked; `rerank: false` is handed on and skips nobody."""
    able, plain = await engines(capabilities=ABLE), await engines(capabilities=PLAIN)
    able.answers["retrieve"] = {"hits": hits("a"), "usage": {"candidates": 90, "reranked": 40}}
    async with running([entry("able", able), entry("plain", plain)]) as gateway:
        result = await gateway.retrieve(k=15, candidateK=40, rerank={"method": "llm", "topN": 20})
        assert (sent(able)["k"], sent(able)["rerank"]["topN"], sent(able)["candidateK"]) == (30, 30, 40)
        wide = await gateway.retrieve(k=40, candidateK=40, rerank={"method": "llm", "topN": 40})
        assert (sent(able)["k"], sent(able)["rerank"]["topN"], sent(able)["candidateK"]) == (50, 50, 50)
        off = await gateway.retrieve(rerank=False)
        unfit = await gateway.error("retrieve", {"query": "q", "rerank": {"method": "colbert"}})
        funnel = await gateway.error("retrieve", {"query": "q", "k": 9, "rerank": {"topN": 5}})
    assert (result["usage"]["candidates"], result["usage"]["reranked"]) == (90, 40)
    assert reported(wide)["able"]["k"] == 50
    assert sent(plain)["rerank"] is False
    assert reported(off)["plain"]["status"] == "ok"
    assert (unfit["code"], unfit["data"]["option"]) == (-32005, "rerank")
    assert (funnel["code"], funnel["data"]["field"]) == (-32602, "rerank.topN")


async def test_candidates_are_no_demand(engines: Any) -> None:
    """`candidateK` alone skips nobody, and never falls below the `k` that an engine is asked for."""
    engine = await engines(capabilities=PLAIN)
    async with running([entry("e", engine)]) as gateway:
        await gateway.retrieve(k=3, candidateK=3)
        error = await gateway.error("retrieve", {"query": "q", "k": 5, "candidateK": 4})
    assert (sent(engine)["k"], sent(engine)["candidateK"]) == (20, 20)
    assert (error["code"], error["data"]["field"]) == (-32602, "candidateK")


async def test_fusion_inside_engines(engines: Any) -> None:
    """What concerns dense and sparse goes to engines that advertise the method; all else stays here."""
    able, plain = await engines(capabilities=ABLE), await engines(capabilities=PLAIN)
    fusion = {"method": "weighted", "weights": {"dense": 2, "sparse": 1, "plain": 3}, "alpha": 0.4}
    async with running([entry("able", able), entry("plain", plain)]) as gateway:
        result = await gateway.retrieve(fusion=fusion)
        await gateway.retrieve(fusion={"rrfK": 10})
    first, second = able.requests()
    assert first.params["fusion"] == {"method": "weighted", "alpha": 0.4, "weights": {"dense": 2, "sparse": 1}}
    assert "fusion" not in second.params
    assert all("fusion" not in request.params for request in plain.requests())
    assert [reported(result)[name]["weight"] for name in ("able", "plain")] == [1.0, 3]


@pytest.mark.parametrize(
    ("params", "applied"),
    [
        ({}, {"method": "rrf", "rrfK": 60, "confidenceWeight": 0.8, "identity": "id"}),
        ({"fusion": {"method": "weighted"}}, {"method": "weighted"}),
        ({"fusion": {"method": "convex", "rrfK": 7}}, {"method": "rrf", "rrfK": 7}),
        ({"x-gateway": {"confidenceWeight": 0, "identity": "uri"}}, {"confidenceWeight": 0, "identity": "uri"}),
        ({"x-gateway": {"mmr": {"lambda": 0.25}}}, {"mmr": {"lambda": 0.25, "pool": 50}}),
    ],
)
async def test_the_answer_names_the_fusion_that_was_applied(engines: Any, params: Json, applied: Json) -> None:
    """Method (also where convex fell back), rrfK, confidence weight, identity, and variety if any."""
    async with running([entry("e", await engines())]) as gateway:
        result = await gateway.retrieve(**params)
    told = result["_meta"]["x-gateway"]["fusion"]
    assert {key: told[key] for key in applied} == applied


async def test_rrf_k_and_confidence_weight_change_the_order(engines: Any) -> None:
    """A small rrfK favours first ranks over agreement; without confidence weight it is plain RRF."""
    one = await engines(results=[hit("first", 9, 0.9), hit("x1", 8, 0.1), hit("both", 7, 0.1)])
    two = await engines(results=[hit("y0", 9, 0.2), hit("x2", 8, 0.1), hit("both", 7, 0.1)])
    async with running([entry("one", one), entry("two", two)]) as gateway:
        plain = await gateway.retrieve(**{"x-gateway": {"confidenceWeight": 0}})
        steep = await gateway.retrieve(**{"x-gateway": {"confidenceWeight": 0}, "fusion": {"rrfK": 1}})
        tempered = await gateway.retrieve(**{"fusion": {"rrfK": 1}})
    assert ids(plain)[0] == "both"
    assert set(ids(steep)[:3]) == {"first", "y0", "both"}
    assert ids(tempered)[0] == "first"


async def test_the_setting_chooses_the_identity(engines: Any) -> None:
    """`retrieve.identity` holds where the request says nothing; the request wins."""
    one = await engines(results=[hit("a", citation={"uri": "http://Example.org/x/"})])
    two = await engines(results=[hit("b", citation={"uri": "https://example.org/x#top"})])
    entries = [entry("one", one), entry("two", two)]
    async with running(entries, {"retrieve": {"identity": "uri"}}) as gateway:
        assert len((await gateway.retrieve())["hits"]) == 1
        assert len((await gateway.retrieve(**{"x-gateway": {"identity": "id"}}))["hits"]) == 2
        assert len((await gateway.retrieve(**{"x-gateway": {"identity": "content"}}))["hits"]) == 2


REPEATING = [
    hit(id, 1 - place / 10, text=text)
    for place, (id, text) in enumerate(
        [
            ("cat", "the cat sat on the mat and slept all day"),
            ("cat again", "the cat sat on the mat and slept all day long"),
            ("cat once more", "the cat sat on the mat and slept all day too"),
            ("ships", "three ships came sailing in on a winter morning"),
        ]
    )
]


@pytest.mark.parametrize("params", [{"x-gateway": {"mmr": {}}}, {"mmr": {"lambda": 0.5}, "strict": False}])
async def test_the_gateway_diversifies_the_fused_list(engines: Any, params: Json) -> None:
    """By `x-gateway.mmr`, or leniently by `mmr` where no engine has it, repeated texts fall behind; scores stay those
    of fusion, and the notes say that they need not descend."""
    engine = await engines(results=REPEATING, capabilities=PLAIN)
    async with running([entry("e", engine)]) as gateway:
        plain = await gateway.retrieve(k=2)
        varied = await gateway.retrieve(**params, k=2)
    assert ids(plain) == ["cat", "cat again"]
    assert ids(varied) == ["cat", "ships"]
    assert "mmr" not in sent(engine)
    assert any("lambda 0.5" in note and "may not descend" in note for note in varied["usage"]["notes"])
    assert varied["_meta"]["x-gateway"]["fusion"]["mmr"] == {"lambda": 0.5, "pool": 50}


async def test_mmr_stays_with_engines_that_have_it(engines: Any) -> None:
    """Where one engine has `mmr` it does it, and the fused list stays as it is."""
    able = await engines(results=REPEATING, capabilities=ABLE)
    plain = await engines(results=[], capabilities=PLAIN)
    async with running([entry("able", able), entry("plain", plain)]) as gateway:
        result = await gateway.retrieve(mmr={"lambda": 0.5}, strict=False)
    assert sent(able)["mmr"] == {"lambda": 0.5}
    assert ids(result)[:2] == ["cat", "cat again"]
    assert "mmr" not in result["_meta"]["x-gateway"]["fusion"]


async def test_lambda_goes_from_relevance_to_variety(engines: Any) -> None:
    """λ = 1 keeps the fused order, λ = 0 wants nothing but variety; others are refused."""
    engine = await engines(results=REPEATING)
    async with running([entry("e", engine)]) as gateway:
        same = await gateway.retrieve(**{"x-gateway": {"mmr": {"lambda": 1}}})
        other = await gateway.retrieve(**{"x-gateway": {"mmr": {"lambda": 0}}})
        error = await gateway.error("retrieve", {"query": "q", "x-gateway": {"mmr": {"lambda": 1.5}}})
    assert ids(same) == [found["id"] for found in REPEATING]
    assert ids(other)[1] == "ships"
    assert (error["code"], error["data"]["field"]) == (-32602, "x-gateway.mmr.lambda")


async def test_pages_of_a_diversified_list(engines: Any) -> None:
    """Pages of a diversified list are slices of one order, though the first knows nothing of the others."""
    topics = ["the sea at night", "a sun in winter", "one sky for all", "sand in both shoes"]
    texts = [hit(n, 1 - n / 100, text=f"{topics[n // 5]}, told {n}") for n in range(20)]
    engine = await engines(results=texts)
    wish = {"x-gateway": {"mmr": {"lambda": 0.4}}}
    async with running([entry("e", engine)]) as gateway:
        whole = await gateway.retrieve(**wish, k=20)
        pages = [await gateway.retrieve(**wish, k=3)]
        while "nextCursor" in pages[-1]:
            pages.append(await gateway.retrieve(**wish, k=3, cursor=pages[-1]["nextCursor"]))
    assert ids(*pages) == ids(whole)
    assert ids(whole) != sorted(ids(whole))


@pytest.mark.parametrize(
    "needs", [{"tokenBudget": 12}, {"x-gateway": {"identity": "content"}}, {"x-gateway": {"mmr": {}}}]
)
async def test_text_is_asked_for_where_it_is_needed_and_not_answered(engines: Any, needs: Json) -> None:
    """`includeText: false` reaches the engines unless the gateway needs the text; the answer has none either way."""
    engine = await engines(results=[hit(n, 1 - n / 10, text="x" * 24) for n in range(5)])
    async with running([entry("e", engine)]) as gateway:
        bare = await gateway.retrieve(includeText=False)
        assert sent(engine)["includeText"] is False
        result = await gateway.retrieve(includeText=False, **needs)
    assert "includeText" not in sent(engine)
    for answer in (bare, result):
        assert all("text" not in found for found in answer["hits"])
    if "tokenBudget" in needs:
        assert (len(result["hits"]), result["usage"]["tokens"]) == (2, 12)


async def test_vectors_come_through(engines: Any) -> None:
    """`includeVectors: true` goes to engines that embed, their vectors come with the hits; false demands nothing."""
    able = await engines(results=[hit("a", vector=[0.1, 0.2, 0.3])], capabilities=ABLE)
    plain = await engines(results=hits("b"), capabilities=PLAIN)
    async with running([entry("able", able), entry("plain", plain)]) as gateway:
        result = await gateway.retrieve(includeVectors=True)
        without = await gateway.retrieve(includeVectors=False)
    assert result["hits"][0]["vector"] == [0.1, 0.2, 0.3]
    assert reported(without)["plain"]["status"] == "ok"


async def test_recency_needs_a_field_that_holds_a_time(engines: Any) -> None:
    """An engine whose field of that name holds no time cannot honour it."""
    engine = await engines(capabilities=ABLE)
    async with running([entry("e", engine)]) as gateway:
        error = await gateway.error("retrieve", {"query": "q", "recency": {"field": "lang", "halfLifeDays": 3}})
        malformed = await gateway.error("retrieve", {"query": "q", "recency": {"field": "lang"}})
    assert (error["code"], error["data"]["option"]) == (-32005, "recency")
    assert (malformed["code"], malformed["data"]["field"]) == (-32602, "recency.halfLifeDays")


async def test_the_rewritten_query_is_returned_if_engines_agree(engines: Any) -> None:
    """With `rewrite`, what the engines made of the query is in the answer if it is one thing."""
    one, two = await engines(capabilities=ABLE), await engines(capabilities=ABLE)
    for engine in (one, two):
        engine.answers["retrieve"] = {"hits": hits("a"), "rewrittenQuery": "better"}
    async with running([entry("one", one), entry("two", two)]) as gateway:
        agreed = await gateway.retrieve(rewrite="hyde")
        two.answers["retrieve"] = {"hits": hits("a"), "rewrittenQuery": "best"}
        differing = await gateway.retrieve(rewrite="hyde")
        off = await gateway.retrieve(rewrite=False)
    assert agreed["rewrittenQuery"] == "better"
    assert "rewrittenQuery" not in differing
    assert sent(one)["rewrite"] is False
    assert off["hits"]


async def test_unknown_params_go_to_engines_as_they_are(engines: Any) -> None:
    """What RCP does not define, and vendors' own, is handed on untouched; `x-gateway` stays here; nulls are absent."""
    engine = await engines()
    strange = {"x-acme": {"boost": [1, None]}, "brandNew": "yes"}
    async with running([entry("e", engine)]) as gateway:
        await gateway.retrieve(**strange, mode=None, **{"x-gateway": {"engines": ["e"], "later": 1}})
    assert {key: value for key, value in sent(engine).items() if key not in ("query", "k", "_meta")} == strange


async def test_what_is_ours_is_never_forwarded(engines: Any) -> None:
    """`minScore`, `tokenBudget`, `cursor`, the caller's `sessionId` and `progressToken` stay here."""
    engine = await engines()
    async with running([entry("e", engine)]) as gateway:
        await gateway.retrieve(minScore=0.1, tokenBudget=99, sessionId="mine", _meta={"progressToken": 1})
    assert not {"minScore", "tokenBudget", "cursor"} & sent(engine).keys()
    assert sent(engine)["sessionId"] != "mine"
    assert "progressToken" not in sent(engine)["_meta"]


async def test_engines_can_be_chosen(engines: Any) -> None:
    """`x-gateway.engines` restricts a request to some engines; the others are skipped, an unknown one is -32602."""
    one, two = await engines(), await engines()
    async with running([entry("one", one), entry("two", two)]) as gateway:
        result = await gateway.retrieve(**{"x-gateway": {"engines": ["two"]}})
        error = await gateway.error("retrieve", {"query": "q", "x-gateway": {"engines": ["three"]}})
    assert not one.requests()
    assert reported(result)["one"]["reason"] == "not_selected"
    assert (error["code"], error["data"]["field"]) == (-32602, "x-gateway.engines")


async def test_every_decision_is_in_the_report(engines: Any) -> None:
    """Of each engine that was asked: for how many hits, at which weight, without what; of each other one why not."""
    able = await engines(capabilities=ABLE)
    short = await serving(engines, *range(5), max_k=7)
    async with running([entry("able", able, weight=2.0), entry("short", short)]) as gateway:
        result = await gateway.retrieve(mode="dense", strict=False)
    report = reported(result)
    assert {key: report["able"][key] for key in ("status", "k", "weight")} == {"status": "ok", "k": 20, "weight": 2.0}
    assert {key: report["short"][key] for key in ("k", "weight", "without")} == {
        "k": 7,
        "weight": 1.0,
        "without": ["mode"],
    }
