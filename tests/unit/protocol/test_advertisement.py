"""Advertisements: what is read from a handshake, and how tolerant reading is."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.advertisement import Advertisement, RetrieveOffer, read_advertisement
from app.protocol.errors import ProtocolViolation


def advertised(capabilities: dict[str, Any], **result: Any) -> Advertisement:
    return read_advertisement({"protocolVersion": 1, "capabilities": capabilities, **result})


def test_full_advertisement_is_read() -> None:
    """Everything the plan compares is read once, and well-formed capabilities stay as the engine sent them."""
    capabilities = {
        "retrieve": {
            "maxK": 100,
            "modes": ["dense", "sparse"],
            "modalities": ["text", "image"],
            "units": ["chunk"],
            "fusion": ["rrf"],
            "levels": 3,
            "mmr": True,
            "rerankBuiltin": True,
            "confidence": True,
            "deterministic": True,
            "snapshots": True,
            "scoreFloor": -1,
            "novelty": {},
        },
        "filter": {"fields": {"year": "int", "lang": "keyword"}, "operators": ["eq", "in"]},
        "x-acme": {"a": 1},
    }
    read = advertised(
        capabilities, server={"name": "docs", "version": "2.1", "x": 1}, _meta={"x-gateway": {"id": "gw-1"}}
    )
    assert read.server == {"name": "docs", "version": "2.1"}
    assert read.capabilities == capabilities
    assert read.gateway_id == "gw-1"
    assert read.retrieve == RetrieveOffer(
        max_k=100,
        modes=frozenset({"dense", "sparse"}),
        modalities=frozenset({"text", "image"}),
        units=frozenset({"chunk"}),
        fusion=frozenset({"rrf"}),
        levels=3,
        mmr=True,
        rerank_builtin=True,
        confidence=True,
        deterministic=True,
        snapshots=True,
        score_floor=-1.0,
    )
    assert read.filter_fields == {"year": "int", "lang": "keyword"}
    assert read.filter_operators == {"eq", "in"}


def test_bare_advertisement_has_defaults() -> None:
    """An engine that says only that it retrieves takes text, and nothing else may be demanded of it."""
    read = advertised({"retrieve": {}})
    assert read.retrieve == RetrieveOffer()
    assert read.retrieve.modalities == {"text"}
    assert read.server == {"name": "unknown", "version": "0"}
    assert (read.filter_fields, read.filter_operators, read.gateway_id) == ({}, None, None)


@pytest.mark.parametrize(
    ("value", "offered"), [({}, True), (True, True), ({"x": 1}, True), ([], True), (None, False), (False, False)]
)
def test_presence_means_supported(value: Any, offered: bool) -> None:
    """`{}` counts, null does not, and an engine that says false is taken at its word."""
    assert advertised({"citations": value}).offers("citations") is offered
    assert (advertised({"retrieve": value}).retrieve is not None) is offered


def test_absent_capability_is_not_offered() -> None:
    """A key that is not there is not offered, and no retrieve means none."""
    read = advertised({})
    assert not read.offers("retrieve")
    assert read.retrieve is None


def test_list_of_filter_fields_has_no_types() -> None:
    """Fields given as a list are filterable and untyped; strange members are ignored."""
    read = advertised({"filter": {"fields": ["year", "lang", 3, None], "operators": ["eq", 7]}})
    assert read.filter_fields == {"year": None, "lang": None}
    assert read.filter_operators == {"eq"}
    assert advertised({"filter": {"fields": {"year": 3, "lang": "keyword"}}}).filter_fields == {
        "year": None,
        "lang": "keyword",
    }


@pytest.mark.parametrize("kind", ["string", "integer", "Keyword", "", "uuid"])
def test_a_type_that_rcp_does_not_know_is_none(kind: str) -> None:
    """Such a field is one without a type, as in a list of names: what is no type takes the field from nobody."""
    assert advertised({"filter": {"fields": {"lang": kind}}}).filter_fields == {"lang": None}


def test_malformed_values_count_as_not_stated() -> None:
    """A value of the wrong type inside `retrieve` is as good as absent, and hurts nothing else."""
    read = advertised(
        {
            "retrieve": {
                "maxK": 0,
                "modes": "dense",
                "modalities": [],
                "units": [1, "chunk"],
                "levels": True,
                "mmr": 1,
                "confidence": "yes",
                "scoreFloor": "0",
            },
            "filter": [],
        }
    )
    assert read.retrieve == RetrieveOffer(units=frozenset({"chunk"}))
    assert read.filter_fields == {}
    assert advertised({"retrieve": {"maxK": True, "scoreFloor": False}}).retrieve == RetrieveOffer()
    assert advertised({"retrieve": {"scoreFloor": 0}}).retrieve == RetrieveOffer(score_floor=0.0)


@pytest.mark.parametrize("version", [None, 0, -1, "1", 1.0, True, [1]])
def test_version_that_cannot_be_used_fails_the_handshake(version: Any) -> None:
    """A handshake without a protocolVersion of at least 1 is a protocol violation."""
    with pytest.raises(ProtocolViolation, match="protocolVersion"):
        read_advertisement({"protocolVersion": version, "capabilities": {}})


@pytest.mark.parametrize("capabilities", [None, [], "retrieve", 1])
def test_missing_capabilities_fail_the_handshake(capabilities: Any) -> None:
    """A handshake without an object of capabilities is a protocol violation."""
    with pytest.raises(ProtocolViolation, match="capabilities"):
        read_advertisement({"protocolVersion": 1, "capabilities": capabilities})


@pytest.mark.parametrize("server", [None, [], "docs", {"name": 3}, {}])
def test_identity_is_not_required(server: Any) -> None:
    """A server without a usable identity is unknown, not refused; nor is a strange `_meta`."""
    read = advertised({}, server=server, _meta=server)
    assert read.server == {"name": "unknown", "version": "0"}
    assert read.gateway_id is None


_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda below: st.one_of(st.lists(below, max_size=3), st.dictionaries(st.text(max_size=5), below, max_size=3)),
    max_leaves=5,
)
_retrieve = st.dictionaries(st.sampled_from(["maxK", "modes", "modalities", "levels", "mmr", "scoreFloor"]), _json)
_filter = st.dictionaries(st.sampled_from(["fields", "operators"]), _json)


@given(
    st.fixed_dictionaries(
        {},
        optional={"retrieve": st.one_of(_json, _retrieve), "filter": st.one_of(_json, _filter), "citations": _json},
    )
)
def test_no_advertisement_makes_reading_fall_over(capabilities: dict[str, Any]) -> None:
    """Whatever JSON an engine puts into its capabilities, reading them never raises."""
    read = advertised(capabilities)
    assert (read.retrieve is not None) is read.offers("retrieve")
