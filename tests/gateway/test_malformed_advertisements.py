"""What engines say of themselves in other shapes than RCP's reaches no caller, and fails no request."""

from typing import Any

from tests.support.running_gateway import entry, running

ODD = {
    "retrieve": {"maxK": [], "modes": [["dense"], "dense"], "units": [{}, "chunk"], "defaultMode": 7},
    "embed": {"dimension": {}, "identity": "m", "modalities": [["text"], "text"], "batchLimit": "8"},
    "rerank": {"methods": "llm"},
    "citations": "yes",
}
READ = {
    "retrieve": {"modes": ["dense"], "units": ["chunk"]},
    "embed": {"identity": "m", "modalities": ["text"]},
    "rerank": {},
    "citations": {},
}


async def test_only_what_is_well_formed_is_advertised_on(engines: Any) -> None:
    """In `info`, in `catalog/list` and at the engine's own endpoint: a caller with types can read them all."""
    async with running([entry("odd", await engines(capabilities=ODD))]) as gateway:
        assert (await gateway.result("info"))["capabilities"]["embed"] == READ["embed"]
        (listed,) = (await gateway.result("catalog/list"))["engines"]
        assert listed["capabilities"] == READ
        alone = await gateway.result("info", base="/engines/odd/rcp")
        assert alone["capabilities"]["retrieve"] == READ["retrieve"]


async def test_a_malformed_list_in_an_offer_fails_no_request(engines: Any) -> None:
    """`embed` compares the modalities it is given with those that engines state, whatever these are."""
    engine = await engines(capabilities=ODD)
    engine.answers["embed"] = {"vectors": [[0.5]]}
    async with running([entry("odd", engine)]) as gateway:
        assert (await gateway.result("embed", {"inputs": ["a"]}))["vectors"] == [[0.5]]
