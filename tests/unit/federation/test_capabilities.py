"""The merged advertisement: each rule of its table, and what holds for any set of engines."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.federation.capabilities import EngineOffer, catalog_entries, conformance, excluded_fields, info, merge
from app.protocol.advertisement import read_advertisement
from app.protocol.envelope import dumps
from app.protocol.filters import OPERATORS

NOW = frozenset({"retrieve", "filter", "citations", "catalog"})
LATER = NOW | {
    "embed",
    "sparseEmbed",
    "multiVector",
    "rerank",
    "transform",
    "graph",
    "index",
    "memory",
    "feedback",
    "x-*",
}
OURS = {"fusion": ["rrf", "weighted", "convex"]}


def offer(name: str, capabilities: dict[str, Any], priority: int = 0) -> EngineOffer:
    server = {"name": f"{name}-server", "version": "1.0"}
    said = read_advertisement({"protocolVersion": 1, "server": server, "capabilities": capabilities})
    return EngineOffer(name, priority, said)


def merged(*offers: EngineOffer, routable: frozenset[str] = NOW, max_k: int = 200) -> dict[str, Any]:
    return merge(offers, max_k=max_k, routable=routable, ours=OURS)


def retrieving(*said: dict[str, Any]) -> dict[str, Any]:
    """The merged `retrieve` of engines a, b, c, … that say this about theirs."""
    offers = [offer(name, {"retrieve": value}) for name, value in zip("abcdef", said, strict=False)]
    retrieve = merged(*offers)["retrieve"]
    assert isinstance(retrieve, dict)
    return retrieve


def filtering(*said: dict[str, Any], priorities: tuple[int, ...] = (0, 0, 0, 0)) -> list[EngineOffer]:
    """Engines a, b, c, … that retrieve and say this about their filter."""
    return [
        offer(name, {"retrieve": {}, "filter": value}, priority)
        for name, value, priority in zip("abcd", said, priorities, strict=False)
    ]


def test_without_engines_only_the_catalog_is_left() -> None:
    """No engine, or none that has shaken hands, gives a valid, nearly empty advertisement."""
    assert merged() == {"catalog": {"engines": 0}}
    assert merged(EngineOffer("a", 0, None)) == {"catalog": {"engines": 0}}


def test_one_engine_is_advertised_as_ours() -> None:
    """A single engine's offer comes out as ours: our fusion, our score scale, our catalog."""
    capabilities = {
        "retrieve": {
            "maxK": 50,
            "modes": ["sparse"],
            "scoreScale": "bm25",
            "scoreFloor": -3,
            "fusion": ["x"],
            "new": 1,
        },
        "filter": {"fields": {"year": "int"}, "operators": ["gte", "eq"]},
        "citations": True,
        "embed": {"dimension": 3, "identity": "m"},
        "x-acme": {},
        "surprise": {},
    }
    assert merged(offer("a", capabilities)) == {
        "retrieve": {
            "maxK": 50,
            "modes": ["sparse"],
            "modalities": ["text"],
            "scoreFloor": 0,
            "fusion": ["rrf", "weighted", "convex"],
        },
        "filter": {"fields": {"year": "int"}, "operators": ["eq", "gte"]},
        "citations": {},
        "catalog": {"engines": 1},
    }


@pytest.mark.parametrize(
    ("bounds", "max_k"),
    [((10, 50), 50), ((10, 500), 200), ((10, None), 200), ((None,), 200), ((10, 0), 200), ((7,), 7)],
)
def test_max_k_is_the_largest_but_no_more_than_ours(bounds: tuple[int | None, ...], max_k: int) -> None:
    """maxK is the largest engine's, capped by the setting; an engine without one does not bound it."""
    said = [{} if bound is None else {"maxK": bound} for bound in bounds]
    assert retrieving(*said)["maxK"] == max_k


def test_lists_are_united_in_order_of_priority() -> None:
    """Modes, modalities and units are united in first-seen order by priority, then id."""
    offers = [
        offer("b", {"retrieve": {"modes": ["sparse"], "units": ["chunk"], "modalities": ["image"]}}),
        offer("a", {"retrieve": {"modes": ["hybrid", "sparse"], "units": ["page"]}}),
        offer("z", {"retrieve": {"modes": ["dense"], "units": ["page", "chunk", 7]}}, priority=9),
    ]
    retrieve = merged(*offers)["retrieve"]
    assert retrieve["modes"] == ["dense", "hybrid", "sparse"]
    assert retrieve["units"] == ["page", "chunk"]
    assert retrieve["modalities"] == ["text", "image"]


def test_nothing_stated_is_nothing_advertised() -> None:
    """Keys that no engine states, or states wrongly, are left out."""
    retrieve = retrieving({"modes": None, "levels": None}, {"modes": "dense", "units": [], "mmr": 1, "modalities": []})
    assert retrieve == {"maxK": 200, "modalities": ["text"], "scoreFloor": 0, **OURS}


def test_levels_are_the_deepest() -> None:
    """levels is the largest engine's."""
    assert retrieving({"levels": 2}, {"levels": 5}, {})["levels"] == 5


@pytest.mark.parametrize("flag", ["mmr", "rerankBuiltin", "confidence"])
def test_what_one_engine_can_do_can_be_had(flag: str) -> None:
    """mmr, rerankBuiltin and confidence are advertised if any engine has them."""
    assert retrieving({flag: True}, {flag: False}, {})[flag] is True
    assert flag not in retrieving({flag: False}, {})


@pytest.mark.parametrize("flag", ["deterministic", "snapshots"])
def test_promises_hold_only_if_all_keep_them(flag: str) -> None:
    """deterministic and snapshots are advertised only if every retrieving engine has them."""
    assert retrieving({flag: True}, {flag: True})[flag] is True
    assert flag not in retrieving({flag: True}, {})
    others = merged(offer("a", {"retrieve": {flag: True}}), offer("b", {"embed": {}}))
    assert others["retrieve"][flag] is True


def test_default_mode_is_said_only_if_all_agree() -> None:
    """defaultMode is what every engine says, or it is not said."""
    assert retrieving({"defaultMode": "hybrid"}, {"defaultMode": "hybrid"})["defaultMode"] == "hybrid"
    assert "defaultMode" not in retrieving({"defaultMode": "hybrid"}, {"defaultMode": "dense"})
    assert "defaultMode" not in retrieving({"defaultMode": "hybrid"}, {})


def test_what_we_do_ourselves_is_ours_to_say() -> None:
    """Fields of `ours` win over whatever engines say of the same name."""
    offers = [offer("a", {"retrieve": {"tokenBudget": False, "fusion": ["dbsf"]}})]
    retrieve = merge(offers, max_k=9, routable=NOW, ours={"fusion": ["rrf"], "tokenBudget": True})["retrieve"]
    assert (retrieve["fusion"], retrieve["tokenBudget"]) == (["rrf"], True)


def test_engine_that_does_not_retrieve_adds_neither_filter_nor_citations() -> None:
    """A filter or citations that no retrieving engine has cannot be had, so they are not claimed."""
    other = offer("b", {"graph": {}, "filter": {"fields": {"year": "int"}}, "citations": {}})
    assert merged(offer("a", {"retrieve": {}}), other).keys() == {"retrieve", "catalog"}


@pytest.mark.parametrize(
    ("capabilities", "cited"),
    [
        ({"citations": {}}, True),
        ({"citations": True}, True),
        ({"citations": False}, False),
        ({"citations": None}, False),
        ({"retrieve": {"citations": True}}, True),
        ({"retrieve": {"citations": False}}, False),
    ],
)
def test_citations_count_wherever_they_are_said(capabilities: dict[str, Any], cited: bool) -> None:
    """citations may sit beside or inside `retrieve`; false and null are no offer."""
    assert ("citations" in merged(offer("a", {"retrieve": {}, **capabilities}))) is cited


def test_integer_and_float_make_float() -> None:
    """A field that is int at one engine and float at another is float, and both are asked."""
    offers = filtering({"fields": {"price": "int"}}, {"fields": {"price": "float"}}, {"fields": {"price": "int"}})
    assert merged(*offers)["filter"]["fields"] == {"price": "float"}
    assert excluded_fields(offers) == {}


def test_clash_of_types_is_settled_by_priority() -> None:
    """In any other clash the engine with the highest priority keeps its type, and the others are not asked."""
    offers = filtering(
        {"fields": {"date": "int", "lang": "keyword"}},
        {"fields": {"date": "date", "lang": "keyword"}},
        {"fields": ["date", "lang"]},
        {"fields": {"date": "float"}},
        priorities=(0, 1, 0, 0),
    )
    assert merged(*offers)["filter"]["fields"] == {"date": "date", "lang": "keyword"}
    assert excluded_fields(offers) == {"a": {"date"}, "d": {"date"}}


def test_clash_at_equal_priority_is_settled_by_id() -> None:
    """At equal priority the smaller id keeps its type."""
    offers = filtering({"fields": {"date": "int"}}, {"fields": {"date": "date"}}, {"fields": {"date": "float"}})
    assert merged(*reversed(offers))["filter"]["fields"] == {"date": "float"}
    assert excluded_fields(offers) == {"b": {"date"}}


def test_fields_without_any_type_stay_a_list() -> None:
    """If no engine gives types the fields are a list, as the engines gave them."""
    offers = filtering({"fields": ["year"]}, {"fields": ["lang", "year"]})
    assert merged(*offers)["filter"]["fields"] == ["year", "lang"]
    assert excluded_fields(offers) == {}


def test_field_without_a_type_among_typed_ones_is_a_keyword() -> None:
    """In a map of types, a field that is only ever listed is said to be a keyword; a typed engine's word wins."""
    offers = filtering({"fields": ["year", "lang"]}, {"fields": {"year": "int"}})
    assert merged(*offers)["filter"]["fields"] == {"year": "int", "lang": "keyword"}
    assert excluded_fields(offers) == {}


@pytest.mark.parametrize(
    ("said", "operators"),
    [
        ((["lt", "eq"], ["in", "eq"]), ["eq", "lt", "in"]),
        ((["eq"], None), list(OPERATORS)),
        ((["near", "eq"],), ["eq"]),
        (([],), []),
    ],
)
def test_operators_are_united(said: tuple[list[str] | None, ...], operators: list[str]) -> None:
    """Operators are united; an engine that states none allows all ten; those that RCP does not define are left out."""
    offers = filtering(*({"fields": ["f"]} if ops is None else {"fields": ["f"], "operators": ops} for ops in said))
    assert merged(*offers)["filter"]["operators"] == operators


def test_filter_without_a_field_is_no_filter() -> None:
    """An engine whose filter has no fields lends it neither its operators nor its presence."""
    assert "filter" not in merged(*filtering({}, {"fields": []}))
    assert merged(*filtering({"fields": ["f"], "operators": ["eq"]}, {}))["filter"]["operators"] == ["eq"]


def test_embedding_space_is_one_engines() -> None:
    """Of two embedding spaces the one with the highest priority is advertised as it is, never a mixture."""
    offers = [
        offer("a", {"embed": {"dimension": 3, "identity": "m", "batchLimit": 8}, "multiVector": {"dimension": 1}}),
        offer("b", {"embed": {"dimension": 4, "identity": "n"}, "sparseEmbed": {"identity": "s"}}, priority=1),
    ]
    ours = merged(*offers, routable=LATER)
    assert ours["embed"] == {"dimension": 4, "identity": "n"}
    assert (ours["sparseEmbed"], ours["multiVector"]) == ({"identity": "s"}, {"dimension": 1})
    assert "embed" not in merged(*offers)


def test_methods_of_several_engines_are_joined() -> None:
    """Capabilities whose calls can go to whoever fits are joined: lists united, numbers the largest, flags if any."""
    offers = [
        offer("a", {"rerank": {"methods": ["llm"], "maxCandidates": 10, "models": ["m"]}, "feedback": {}}),
        offer("b", {"rerank": {"methods": ["colbert"]}, "index": {"writable": True}, "graph": {"ops": ["local"]}}),
        offer("c", {"rerank": True, "index": {"writable": False, "chunking": True}, "graph": {"ops": ["drift"]}}),
    ]
    ours = merged(*offers, routable=LATER)
    assert ours["rerank"] == {"methods": ["llm", "colbert"], "maxCandidates": 10, "models": ["m"]}
    assert ours["index"] == {"writable": True}
    assert ours["graph"] == {"ops": ["local", "drift"]}
    assert ours["feedback"] == {}
    assert "retrieve" not in ours


def test_vendor_keys_are_the_first_engines() -> None:
    """x- keys are kept where they are routed, the highest priority's value wins, and unknown keys are not ours."""
    offers = [
        offer("a", {"x-acme": {"v": 1}, "x-beta": None, "novel": {}}),
        offer("b", {"x-acme": {"v": 2}, "x-beta": {"b": 1}}, priority=1),
    ]
    assert merged(*offers, routable=LATER) == {"x-acme": {"v": 2}, "x-beta": {"b": 1}, "catalog": {"engines": 2}}
    assert merged(*offers) == {"catalog": {"engines": 2}}


ALL = {
    "retrieve": {"modes": ["dense", "sparse", "hybrid"]},
    "filter": {"fields": ["f"]},
    "citations": {},
    "catalog": {"engines": 1},
}


@pytest.mark.parametrize(
    ("capabilities", "level"),
    [
        ({}, "L0"),
        ({"catalog": {"engines": 0}}, "L0"),
        ({"filter": {}, "citations": {}, "streaming": {}, "transform": {}, "sparseEmbed": {}}, "L0"),
        ({"embed": {}}, "L0"),
        ({"graph": {}, "rerank": {}, "streaming": {}}, "L0"),
        ({"retrieve": {}}, "L0"),
        ({**ALL, "retrieve": {"modes": ["dense", "sparse"]}}, "L0"),
        ({key: value for key, value in ALL.items() if key != "filter"}, "L0"),
        ({key: value for key, value in ALL.items() if key != "citations"}, "L0"),
        ({**ALL, "retrieve": {"modes": "dense sparse hybrid"}}, "L0"),
        (ALL, "L1"),
        ({**ALL, "rerank": {}}, "L1"),
        ({**ALL, "streaming": {}, "pagination": {}}, "L1"),
        ({**ALL, "embed": {}, "sparseEmbed": {}, "streaming": {}}, "L1"),
        ({**ALL, "rerank": {}, "streaming": {}}, "L2"),
        ({**ALL, "multiVector": {}, "pagination": {}}, "L2"),
        ({**ALL, "graph": {}, "pagination": {}}, "L2"),
        ({**ALL, "transform": {}, "streaming": {}}, "L2"),
    ],
)
def test_conformance_never_overclaims(capabilities: dict[str, Any], level: str) -> None:
    """A level is claimed only if everything it asks for is advertised; the lowest is stated at least."""
    assert conformance(capabilities) == level


def test_catalog_lists_engines_with_all_they_say() -> None:
    """catalog/list gives every known engine by priority then id, its capabilities as it sent them."""
    said = {"retrieve": {"novel": 1}, "novel": {"x": None}, "x-acme": {}}
    offers = [offer("b", said), offer("c", {}, priority=1), EngineOffer("d", 9, None), offer("a", {"embed": {}})]
    entries = catalog_entries(offers)
    assert [entry["id"] for entry in entries] == ["c", "a", "b"]
    assert entries[2] == {"id": "b", "server": {"name": "b-server", "version": "1.0"}, "capabilities": said}
    dumps(entries)


def test_the_catalog_tells_where_engines_are() -> None:
    """Where callers reach us each entry has its endpoint; what we only discovered is marked."""
    listed = catalog_entries([offer("team/b", {}), offer("a", {})], "https://rcp.example", {"a"})
    assert [(entry["endpoint"], entry.get("x-gateway")) for entry in listed] == [
        ({"transport": "http", "url": "https://rcp.example/engines/a/rcp"}, {"discovered": True}),
        ({"transport": "http", "url": "https://rcp.example/engines/team/b/rcp"}, None),
    ]


def test_info_is_the_result_of_a_handshake() -> None:
    """info has version, identity, capabilities and the level they prove, the lowest at least."""
    gateway = {"id": "gw-1", "epoch": 2}
    result = info(protocol_version=1, name="gw", version="0.1", capabilities=ALL, gateway=gateway)
    assert result == {
        "protocolVersion": 1,
        "server": {"name": "gw", "version": "0.1"},
        "capabilities": ALL,
        "_meta": {"conformance": "L1", "x-gateway": gateway},
    }
    bare = info(protocol_version=1, name="gw", version="0.1", capabilities={}, gateway=gateway)
    assert bare["_meta"] == {"conformance": "L0", "x-gateway": gateway}


_names = st.sampled_from(["year", "lang", "price"])
_types = st.sampled_from(["int", "float", "keyword", "date", "uuid", None])
_retrieve = st.fixed_dictionaries(
    {},
    optional={
        "maxK": st.integers(0, 500),
        "modes": st.lists(st.sampled_from(["dense", "sparse", "hybrid", "novel"]), max_size=3),
        "modalities": st.lists(st.sampled_from(["text", "image"]), max_size=2),
        "units": st.lists(st.sampled_from(["chunk", "page"]), max_size=2),
        "levels": st.integers(0, 4),
        **{flag: st.booleans() for flag in ("mmr", "confidence", "deterministic", "snapshots", "citations")},
    },
)
_filter = st.fixed_dictionaries(
    {},
    optional={
        "fields": st.one_of(st.lists(_names, max_size=3), st.dictionaries(_names, _types, max_size=3)),
        "operators": st.lists(st.sampled_from([*OPERATORS, "near"]), max_size=4),
    },
)
_capabilities = st.fixed_dictionaries(
    {},
    optional={
        "retrieve": st.one_of(_retrieve, st.none()),
        "filter": _filter,
        "citations": st.sampled_from([{}, True, False]),
        "embed": st.fixed_dictionaries({"dimension": st.integers(1, 9)}),
        "rerank": st.fixed_dictionaries({"methods": st.lists(st.sampled_from(["llm", "colbert"]))}),
        "x-acme": st.integers(0, 3),
    },
)
_offers = st.dictionaries(
    st.sampled_from("abcdef"), st.tuples(_capabilities, st.integers(-1, 1)), min_size=1, max_size=5
).map(lambda engines: [offer(name, said, priority) for name, (said, priority) in engines.items()])


@given(_offers, st.randoms(use_true_random=False))
def test_order_of_the_registry_does_not_matter(offers: list[EngineOffer], chance: random.Random) -> None:
    """Any permutation of the registry gives the very same bytes."""
    shuffled = list(offers)
    chance.shuffle(shuffled)
    assert dumps(merged(*shuffled, routable=LATER)) == dumps(merged(*offers, routable=LATER))
    assert dumps(catalog_entries(shuffled)) == dumps(catalog_entries(offers))
    assert excluded_fields(shuffled) == excluded_fields(offers)


@given(_offers)
def test_everything_advertised_is_somebodys(offers: list[EngineOffer]) -> None:
    """Each mode, unit, modality, field, operator and promise we make is kept by the engines that must keep it."""
    ours = merged(*offers)
    engines = [one.advertisement for one in offers if one.advertisement and one.advertisement.retrieve]
    retrieve = ours.get("retrieve", {})
    assert ("retrieve" in ours) is bool(engines)
    stated = [engine.retrieve for engine in engines if engine.retrieve is not None]
    assert set(retrieve.get("modes", ())) == {mode for said in stated for mode in said.modes}
    assert set(retrieve.get("units", ())) == {unit for said in stated for unit in said.units}
    assert set(retrieve.get("modalities", ())) == {modality for said in stated for modality in said.modalities}
    assert retrieve.get("deterministic", False) is (bool(stated) and all(said.deterministic for said in stated))
    assert retrieve.get("snapshots", False) is (bool(stated) and all(said.snapshots for said in stated))
    assert retrieve.get("maxK", 1) <= 200
    assert set(ours.get("filter", {}).get("fields", ())) == {
        name for engine in engines for name in engine.filter_fields
    }
    for operator in ours.get("filter", {}).get("operators", ()):
        assert any(engine.filter_operators is None or operator in engine.filter_operators for engine in engines)
    assert ours["catalog"]["engines"] == len(offers)


@given(_offers)
def test_every_advertised_field_can_be_asked_for(offers: list[EngineOffer]) -> None:
    """For each advertised field an engine is left that may be asked, and those that may agree with its type."""
    fields = merged(*offers).get("filter", {}).get("fields", {})
    excluded = excluded_fields(offers)
    for name in fields:
        kinds = [
            one.advertisement.filter_fields[name]
            for one in offers
            if one.advertisement
            and one.advertisement.retrieve
            and name in one.advertisement.filter_fields
            and name not in excluded.get(one.id, ())
        ]
        assert kinds
        typed = {kind for kind in kinds if kind is not None}
        assert len(typed) <= 1 or typed == {"int", "float"}
        if typed and isinstance(fields, dict):
            assert fields[name] == ("float" if len(typed) == 2 else next(iter(typed)))


@given(_offers)
def test_merging_changes_no_engines_words(offers: list[EngineOffer]) -> None:
    """Merging reads advertisements and leaves them as they were."""
    before = dumps(catalog_entries(offers))
    merged(*offers, routable=LATER)
    excluded_fields(offers)
    assert dumps(catalog_entries(offers)) == before
