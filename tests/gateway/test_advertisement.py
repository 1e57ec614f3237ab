"""What the gateway says it is: capabilities as one server, conformance, catalog, options routed by advertisement."""

from typing import Any

import pytest

from tests.support.ports import free_port
from tests.support.running_gateway import entry, running, until

FULL = {
    "retrieve": {"maxK": 50, "modes": ["dense", "sparse", "hybrid"], "deterministic": True, "snapshots": True},
    "filter": {"fields": {"lang": "keyword", "year": "int"}, "operators": ["eq", "gte"]},
    "citations": {},
    "embed": {"dimension": 8, "identity": "m"},
    "x-acme": {"beta": True},
    "mystery": {"kept": 1},
}
PLAIN = {"retrieve": {"maxK": 500, "modes": ["sparse"]}}


async def test_capabilities_are_merged_as_one_server(engines: Any) -> None:
    """Unions, the largest maxK within our own, flags only if all; what cannot be routed is not advertised (B87)."""
    full, plain = await engines(capabilities=FULL), await engines(capabilities=PLAIN)
    async with running([entry("full", full), entry("plain", plain)]) as gateway:
        info = await gateway.result("info")
    capabilities = info["capabilities"]
    assert capabilities["catalog"] == {"engines": 2}
    retrieve = capabilities["retrieve"]
    assert retrieve["maxK"] == 200
    assert set(retrieve["modes"]) == {"dense", "sparse", "hybrid"}
    assert retrieve["scoreFloor"] == 0
    assert retrieve["fusion"] == ["rrf", "weighted", "convex"]
    assert not retrieve.get("deterministic")
    assert not retrieve.get("snapshots")
    assert capabilities["filter"]["fields"] == {"lang": "keyword", "year": "int"}
    assert "citations" in capabilities
    assert capabilities["embed"] == FULL["embed"]
    assert capabilities["x-acme"] == FULL["x-acme"]
    assert not {"mystery", "rerank"} & capabilities.keys()
    assert info["_meta"]["conformance"] == "L1"


async def test_conformance_is_never_overclaimed(engines: Any) -> None:
    """Without filter and citations it is L0, and with no engine reached: a level is always stated."""
    plain = await engines(capabilities=PLAIN)
    async with running([entry("plain", plain)]) as gateway:
        assert (await gateway.result("info"))["_meta"]["conformance"] == "L0"
    async with running([entry("down", "http://127.0.0.1:1/rcp")], reach=False) as gateway:
        info = await gateway.result("info")
        assert info["_meta"]["conformance"] == "L0"
        assert info["capabilities"] == {"catalog": {"engines": 0}}
        assert (await gateway.result("catalog/list")) == {"engines": []}
        assert (await gateway.error("retrieve", {"query": "q"}))["code"] == -32010


async def test_the_token_budget_is_advertised(engines: Any) -> None:
    """It is ours, whatever engines can: a caller that looks before it asks finds it."""
    async with running([entry("plain", await engines(capabilities=PLAIN))]) as gateway:
        assert (await gateway.result("info"))["capabilities"]["retrieve"]["tokenBudget"] is True
        assert "tokens" in (await gateway.retrieve(tokenBudget=10))["usage"]


async def test_a_level_is_stated_whatever_engines_offer(engines: Any) -> None:
    """Also with engines that have no retrieval capability of the lowest level."""
    for capability in ({"sparseEmbed": {"identity": "m"}}, {"memory": {}}):
        async with running([entry("e", await engines(capabilities=capability))]) as gateway:
            assert (await gateway.result("info"))["_meta"]["conformance"] == "L0"


async def test_the_catalog_lists_engines_as_they_are(engines: Any) -> None:
    """`catalog/list` has each engine's own capabilities, unknown keys included, by priority then id."""
    full, plain = await engines(capabilities=FULL), await engines(capabilities=PLAIN)
    async with running([entry("plain", plain), entry("full", full, priority=5)]) as gateway:
        listing = (await gateway.result("catalog/list"))["engines"]
    assert [engine["id"] for engine in listing] == ["full", "plain"]
    assert listing[0]["capabilities"]["mystery"] == {"kept": 1}
    assert listing[0]["server"] == {"name": "scripted", "version": "1.0"}


async def test_the_catalog_can_be_restricted(engines: Any) -> None:
    """As every method: to the engines that are named; an unknown one, or none, is -32602 with the field."""
    one, two = await engines(capabilities=FULL), await engines(capabilities=PLAIN)
    async with running([entry("one", one), entry("two", two)]) as gateway:
        for wanted in (["two"], ["one", "two"]):
            listing = await gateway.result("catalog/list", {"x-gateway": {"engines": wanted}})
            assert [engine["id"] for engine in listing["engines"]] == wanted
        for refused in (["two", "three"], [], "two"):
            error = await gateway.error("catalog/list", {"x-gateway": {"engines": refused}})
            assert (error["code"], error["data"]["field"]) == (-32602, "x-gateway.engines")


@pytest.mark.parametrize(
    "option",
    [
        {"mode": "dense"},
        {"filter": {"field": "lang", "op": "eq", "value": "en"}},
        {"filter": {"field": "year", "op": "gte", "value": 2020}},
        {"indexVersion": "v1"},
        {"includeVectors": True},
    ],
)
async def test_an_option_is_routed_to_who_can(engines: Any, option: Any) -> None:
    """Only engines whose own advertisement allows the option are asked; the others are skipped with the reason."""
    full, plain = await engines(capabilities=FULL), await engines(capabilities=PLAIN)
    async with running([entry("full", full), entry("plain", plain)]) as gateway:
        result = await gateway.retrieve(**option)
    report = {engine["id"]: engine for engine in result["_meta"]["x-gateway"]["engines"]}
    assert report["full"]["status"] == "ok"
    assert report["plain"]["status"] == "skipped"
    assert report["plain"]["reason"] in ("option", "filter")
    assert report["plain"]["detail"]
    assert {key: full.requests()[0].params[key] for key in option} == option


@pytest.mark.parametrize(
    ("option", "code", "data"),
    [
        ({"filter": {"field": "nope", "op": "eq", "value": 1}}, -32602, ("field", "filter.nope")),
        ({"filter": {"field": "lang", "op": "in", "value": ["en"]}}, -32005, ("option", "filter.operators")),
        ({"filter": {"field": "lang", "op": "gte", "value": 3}}, -32602, ("field", "filter.lang")),
        ({"filter": {"and": []}}, -32602, ("field", "filter.and")),
        ({"unit": "page"}, -32005, ("option", "unit")),
        ({"mmr": {"lambda": 0.5}}, -32005, ("option", "mmr")),
        ({"rerank": {"method": "llm"}}, -32005, ("option", "rerank")),
        ({"rewrite": "hyde"}, -32005, ("option", "rewrite")),
        ({"modality": "image"}, -32005, ("option", "modality")),
    ],
)
async def test_an_option_nobody_has_fails_as_one_engine_would(engines: Any, option: Any, code: int, data: Any) -> None:
    """If no engine can, the request fails with the code and the name that a single engine would give."""
    full = await engines(capabilities=FULL)
    async with running([entry("full", full)]) as gateway:
        error = await gateway.error("retrieve", {"query": "q", **option})
    assert error["code"] == code
    assert error["data"][data[0]] == data[1]
    assert not full.requests()


async def test_a_lenient_request_is_asked_without_the_option(engines: Any) -> None:
    """`strict: false`: the engine is asked without it and the notes say so; a filter is never dropped."""
    plain = await engines(capabilities=PLAIN)
    async with running([entry("plain", plain)]) as gateway:
        result = await gateway.retrieve(mode="dense", strict=False)
        filtered = {"query": "q", "strict": False, "filter": {"field": "x", "op": "eq", "value": 1}}
        error = await gateway.error("retrieve", filtered)
    assert "mode" not in plain.requests()[0].params
    assert any("plain" in note and "mode" in note for note in result["usage"]["notes"])
    assert error["code"] == -32602


async def test_a_type_clash_keeps_the_type_of_the_higher_priority(engines: Any) -> None:
    """Where two engines disagree about a field, the higher priority's type stands and the other is not asked for it."""
    strong = await engines(capabilities={**PLAIN, "filter": {"fields": {"f": "keyword"}}})
    weak = await engines(capabilities={**PLAIN, "filter": {"fields": {"f": "date"}}})
    async with running([entry("strong", strong, priority=1), entry("weak", weak)]) as gateway:
        info = await gateway.result("info")
        result = await gateway.retrieve(filter={"field": "f", "op": "eq", "value": "v"})
    assert info["capabilities"]["filter"]["fields"] == {"f": "keyword"}
    report = {engine["id"]: engine["status"] for engine in result["_meta"]["x-gateway"]["engines"]}
    assert report == {"strong": "ok", "weak": "skipped"}


async def test_a_changed_advertisement_is_taken_over(engines: Any) -> None:
    """An engine that comes back with other capabilities changes ours once, and the epoch with it."""
    port = free_port()
    engine = await engines(port, capabilities=PLAIN)
    async with running([entry("e", engine)], {"engines": {"reconnect_max_seconds": 0.1}}) as gateway:
        before = await gateway.result("info")
        await engine.stop()
        await gateway.error("retrieve", {"query": "q"})
        engine.capabilities = FULL
        await engine.start(port)
        remote = gateway.state.engines.engines[0]
        await remote.check(1e9)
        await until(lambda: remote.up)
        after = await gateway.result("info")
    assert before["capabilities"]["retrieve"]["modes"] == ["sparse"]
    assert "filter" in after["capabilities"]
    assert after["_meta"]["x-gateway"]["epoch"] == before["_meta"]["x-gateway"]["epoch"] + 1


async def test_the_identity_follows_the_registry(engines: Any) -> None:
    """By default the identity is the name and a hash of the registry; it is stated where other gateways look for it."""
    engine = await engines()
    async with running([entry("e", engine)], fingerprint="abcd1234") as gateway:
        info = await gateway.result("info")
    assert info["_meta"]["x-gateway"]["id"] == "rcp-gateway-abcd1234"
