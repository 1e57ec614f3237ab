"""Equal spellings of a text (RCP §4.8) are one request: engines see the string, which every engine must take."""

from typing import Any

import pytest

from tests.support.running_gateway import entry, running
from tests.support.scripted_engine import DEFAULT_CAPABILITIES

TEXT = {"type": "text", "text": "paris"}
IMAGE = {"type": "image", "mimeType": "image/png", "data": "aGk="}

SPELLINGS = [
    TEXT,
    [TEXT],
    ["paris"],
    {**TEXT, "data": None, "x-lang": "fr", "_meta": {"a": 1}},
    {**TEXT, "mimeType": "text/plain"},
]


@pytest.mark.parametrize("query", SPELLINGS)
async def test_text_block_is_the_string_for_engines(engine: Any, query: Any) -> None:
    """In retrieve with and without options, and at the engine's own endpoint."""
    async with running([entry("e", engine)]) as gateway:
        await gateway.result("retrieve", {"query": query})
        await gateway.result("retrieve", {"query": query, "mode": "dense", "minScore": 0.1})
        await gateway.result("retrieve", {"query": query}, base="/engines/e/rcp")
    assert [asked.params["query"] for asked in engine.requests()] == ["paris"] * 3


async def test_several_texts_are_one_of_several_lines(engine: Any) -> None:
    """A server of strings can take no array."""
    async with running([entry("e", engine)]) as gateway:
        await gateway.result("retrieve", {"query": [TEXT, "in spring", {"type": "text", "text": "or autumn"}]})
    assert engine.requests()[0].params["query"] == "paris\nin spring\nor autumn"


async def test_mixed_content_reaches_those_who_advertise_it(engines: Any) -> None:
    """As an array; an engine of text alone is skipped with a reason."""
    seeing = {"retrieve": {**DEFAULT_CAPABILITIES["retrieve"], "modalities": ["text", "image"]}}
    sighted, text_only = await engines(capabilities=seeing), await engines()
    async with running([entry("sighted", sighted), entry("blind", text_only)]) as gateway:
        answer = await gateway.result("retrieve", {"query": ["paris", {**IMAGE, "uri": None}]})
        alone = await gateway.result("retrieve", {"query": [IMAGE]})
    assert [asked.params["query"] for asked in sighted.requests()] == [["paris", IMAGE], IMAGE]
    assert not text_only.requests()
    for each in (answer, alone):
        (skipped,) = [known for known in each["_meta"]["x-gateway"]["engines"] if known["id"] == "blind"]
        assert skipped["status"] == "skipped"
        assert "image" in skipped["detail"]


@pytest.mark.parametrize("query", SPELLINGS)
@pytest.mark.parametrize(
    ("method", "params", "capability", "result"),
    [
        ("query/transform", {"method": "rewrite"}, {"transform": {"methods": ["rewrite"]}}, {"queries": ["x"]}),
        ("graph", {"op": "local"}, {"graph": {"ops": ["local"]}}, {"hits": []}),
        ("memory/recall", {}, {"memory": {"scopes": ["global"]}}, {"clues": []}),
        ("rerank", {"passages": ["p"]}, {"rerank": {"methods": ["llm"]}}, {"scores": [1.0]}),
        ("feedback", {"signals": [{"hitId": "a", "used": True}]}, {"feedback": {}}, {"accepted": 1}),
    ],
)
async def test_query_of_every_method(
    engines: Any, method: str, params: Any, capability: Any, result: Any, query: Any
) -> None:
    """Whoever takes a query takes all its spellings."""
    engine = await engines(capabilities=capability)
    engine.answers[method] = result
    async with running([entry("e", engine)]) as gateway:
        await gateway.result(method, {**params, "query": query})
    assert engine.requests(method)[0].params["query"] == "paris"


@pytest.mark.parametrize(
    ("method", "name", "capability", "result"),
    [
        ("rerank", "passages", {"rerank": {}}, {"scores": [1.0, 0.5, 0.1]}),
        ("rerank", "documents", {"rerank": {}}, {"scores": [1.0, 0.5, 0.1]}),
        ("embed", "inputs", {"embed": {"dimension": 1}}, {"vectors": [[1.0]] * 3}),
        ("embed", "texts", {"embed": {"dimension": 1}}, {"vectors": [[1.0]] * 3}),
        ("embed/sparse", "texts", {"sparseEmbed": {}}, {"sparse": [{"indices": [], "values": []}] * 3}),
        ("embed/multi", "inputs", {"multiVector": {"dimension": 1}}, {"matrices": [[[1.0]]] * 3}),
    ],
)
async def test_lists_of_texts(engines: Any, method: str, name: str, capability: Any, result: Any) -> None:
    """Passages and inputs are strings for engines, empty ones too; other content is refused by its param (-32005)."""
    engine = await engines(capabilities=capability)
    engine.answers[method] = result
    query = {"query": "q"} if method == "rerank" else {}
    async with running([entry("e", engine)]) as gateway:
        await gateway.result(method, {**query, name: [TEXT, "london", {"type": "text", "text": ""}]})
        error = await gateway.error(method, {**query, name: [TEXT, IMAGE]})
    (asked,) = engine.requests(method)
    assert asked.params[name] == ["paris", "london", ""]
    assert error["code"] == -32005


async def test_image_for_a_method_of_text_is_malformed(engines: Any) -> None:
    """-32602 by its field, and no engine is asked."""
    engine = await engines(capabilities={"transform": {"methods": ["rewrite"]}})
    async with running([entry("e", engine)]) as gateway:
        error = await gateway.error("query/transform", {"query": IMAGE, "method": "rewrite"})
    assert (error["code"], error["data"]["field"]) == (-32602, "query")
    assert not engine.requests("query/transform")


async def test_methods_of_vendors_are_handed_on_as_they_are(engines: Any) -> None:
    """What they mean by a query is theirs."""
    engine = await engines(capabilities={"x-acme": {}})
    engine.answers["x-acme/rank"] = {}
    async with running([entry("e", engine)]) as gateway:
        await gateway.result("x-acme/rank", {"query": [TEXT]})
    assert engine.requests("x-acme/rank")[0].params["query"] == [TEXT]


async def test_cursor_of_one_spelling_is_good_for_another(engines: Any) -> None:
    """They ask for pages of one answer."""
    engine = await engines()
    async with running([entry("e", engine)]) as gateway:
        first = await gateway.result("retrieve", {"query": "paris", "k": 1})
        for query in SPELLINGS:
            page = await gateway.result("retrieve", {"query": query, "k": 1, "cursor": first["nextCursor"]})
            assert page["hits"][0]["id"] == "b"


async def test_cursor_of_mixed_content(engines: Any) -> None:
    """The texts among images may be written in both ways as well."""
    engine = await engines(
        capabilities={"retrieve": {**DEFAULT_CAPABILITIES["retrieve"], "modalities": ["text", "image"]}}
    )
    async with running([entry("e", engine)]) as gateway:
        first = await gateway.result("retrieve", {"query": ["paris", IMAGE], "k": 1})
        page = await gateway.result("retrieve", {"query": [TEXT, IMAGE], "k": 1, "cursor": first["nextCursor"]})
    assert page["hits"][0]["id"] == "b"
