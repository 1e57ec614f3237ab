"""One engine's odd fields must not make the whole answer unreadable to a caller that has types (RCP §7.7)."""

from typing import Any

from tests.support.running_gateway import entry, running
from tests.support.scripted_engine import hit

ODD = {"text": 7, "unit": [], "citation": {"uri": 3, "title": "t"}, "trust": {"level": "root"}}
NOTE = "odd: malformed fields removed from 1 hit(s): citation, text, trust, unit"


def fields(found: dict[str, Any]) -> dict[str, Any]:
    """What is left of the odd ones."""
    return {name: found[name] for name in ODD if name in found}


LEFT = {"citation": {"title": "t"}, "trust": {"level": "untrusted"}}


async def test_odd_fields_of_a_hit_are_left_out_with_a_note(engines: Any) -> None:
    """The hit is served, and so are those of the others, untouched."""
    odd, well = await engines(results=[hit("a", **ODD)]), await engines(results=[hit("b", text="fine")])
    async with running([entry("odd", odd), entry("well", well)]) as gateway:
        answer = await gateway.retrieve()
    found = {each["id"]: each for each in answer["hits"]}
    assert fields(found["a"]) == LEFT
    assert found["b"]["text"] == "fine"
    assert answer["usage"]["notes"] == [NOTE]


async def test_hits_of_a_graph_are_held_to_the_same(engines: Any) -> None:
    """Whatever method answers them."""
    odd = await engines(capabilities={"graph": {"ops": ["local"]}})
    odd.answers["graph"] = {"hits": [hit("a", **ODD)]}
    async with running([entry("odd", odd)]) as gateway:
        answer = await gateway.result("graph", {"op": "local", "query": "q"})
    assert fields(answer["hits"][0]) == LEFT
    assert answer["usage"]["notes"] == [NOTE]
