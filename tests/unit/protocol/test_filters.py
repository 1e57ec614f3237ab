"""Filters: what is a well-formed tree, and which engines may be asked with it."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rcp import RcpError as SdkError
from rcp import filter as sdk

from app.protocol.errors import InvalidParams
from app.protocol.filters import MAX_VALUES, OPERATORS, FilterTree, fault_of, json_type, read_filter

LANG = {"field": "lang", "op": "eq", "value": "en"}


def leaf(op: str, value: Any = None, field: str = "f") -> dict[str, Any]:
    return {"field": field, "op": op, "value": value}


def tree_of(filter_: dict[str, Any]) -> FilterTree:
    tree = read_filter(filter_)
    assert tree is not None
    return tree


def refused_field(filter_: Any, **bounds: int) -> Any:
    with pytest.raises(InvalidParams) as caught:
        read_filter(filter_, **bounds)
    assert caught.value.code == -32602
    return caught.value.data["field"]


@pytest.mark.parametrize("absent", [None, {}])
def test_null_and_empty_object_are_no_filter(absent: Any) -> None:
    """Null and {} count as no filter at all."""
    assert read_filter(absent) is None


def test_tree_travels_as_it_was_sent() -> None:
    """The tree is kept as the very object that was sent, its leaves in the order of the tree."""
    sent = {"and": [LANG, {"or": [leaf("gte", 2015, "year"), {"not": leaf("in", ["a", 1], "tag")}]}]}
    tree = tree_of(sent)
    assert tree.raw is sent
    assert [(found.field, found.op) for found in tree.leaves] == [("lang", "eq"), ("year", "gte"), ("tag", "in")]
    assert tree.leaves[2].kinds == {"string", "int"}


@pytest.mark.parametrize(
    ("malformed", "field"),
    [
        ([], "filter"),
        ("lang", "filter"),
        (0, "filter"),
        (False, "filter"),
        ({"lang": "en"}, "filter"),
        ({"and": []}, "filter.and"),
        ({"or": []}, "filter.or"),
        ({"and": {}}, "filter.and"),
        ({"and": LANG}, "filter.and"),
        ({"and": [LANG, {"or": []}]}, "filter.and[1].or"),
        ({"and": [LANG, None]}, "filter.and[1]"),
        ({"and": [LANG, {}]}, "filter.and[1]"),
        ({"not": []}, "filter.not"),
        ({"not": {}}, "filter.not"),
        ({"not": {"or": [LANG, 7]}}, "filter.not.or[1]"),
        ({"and": [LANG], "or": [LANG]}, "filter"),
        ({**LANG, "and": [LANG]}, "filter"),
        ({"not": {**LANG, "not": LANG}}, "filter.not"),
        ({"op": "eq", "value": 1}, "filter.field"),
        ({"field": "", "op": "eq", "value": 1}, "filter.field"),
        ({"field": 3, "op": "eq", "value": 1}, "filter.field"),
        ({"field": "year"}, "filter.year"),
        ({"field": "year", "op": "near", "value": 1}, "filter.year"),
        ({"field": "year", "op": "EQ", "value": 1}, "filter.year"),
        ({"field": "year", "op": ["eq"], "value": 1}, "filter.year"),
        ({"field": "year", "op": True, "value": 1}, "filter.year"),
    ],
)
def test_malformed_tree_names_its_place(malformed: Any, field: str) -> None:
    """A malformed node is -32602 with its path; followed by its field where a leaf has one."""
    assert refused_field(malformed) == field


@pytest.mark.parametrize(
    ("op", "value"),
    [
        *(("eq", value) for value in (None, [], [1], {}, {"lat": 1})),
        *(("ne", value) for value in (None, ["x"], {})),
        *(("contains", value) for value in (None, ["x"], {})),
        *(("gt", value) for value in (None, True, "soon", "", [1], {}, "2015-13-01", "2015-02-30", "20150101")),
        *(("lte", value) for value in (False, "x", "2015-01-01T25:00:00Z", "2015-01-01T10:00Z")),
        *(("in", value) for value in (None, "x", 1, {}, [], [[1]], [None], [{}])),
        *(("nin", value) for value in (True, [], ["x", None])),
        *(("exists", value) for value in (0, 1, "true", "yes", [], {})),
        *(("eq", value) for value in (2**53 + 1, -(2**53) - 1)),
        ("in", [1, 2**53 + 1, 2]),
        ("in", [1] * (MAX_VALUES + 1)),
    ],
)
def test_value_of_the_wrong_shape_names_the_field(op: str, value: Any) -> None:
    """A value whose shape does not fit the operator is -32602 with the path of the leaf and its field."""
    assert refused_field({"and": [LANG, leaf(op, value, "pages")]}) == "filter.and[1].pages"


@pytest.mark.parametrize(
    ("op", "value", "kinds"),
    [
        ("eq", "en", {"string"}),
        ("eq", True, {"bool"}),
        ("ne", 1.5, {"float"}),
        ("eq", 2**53, {"int"}),
        ("eq", "", {"string"}),
        ("gt", 3, {"int"}),
        ("gte", "2017-06-12T00:00:00Z", {"date"}),
        ("lt", "2016-12-31t23:59:60.25+01:30", {"date"}),
        ("lte", "2024-02-29", {"date"}),
        ("eq", "2023-02-29", {"string"}),
        ("in", ["a", 1, 1.5, True], {"string", "int", "float", "bool"}),
        ("nin", ["2024-01-01", "2024-01-02T10:00:00Z"], {"date"}),
        ("in", ["2024-01-01", "never"], {"string"}),
        ("contains", "x", {"string"}),
        ("exists", True, set()),
        ("exists", False, set()),
        ("exists", None, set()),
    ],
)
def test_values_that_fit_are_classified(op: str, value: Any, kinds: set[str]) -> None:
    """Every operator takes the shapes that RCP gives it, and the leaf knows which kind of value it compares with."""
    assert tree_of(leaf(op, value)).leaves[0].kinds == kinds


def test_exists_without_a_value_asks_for_presence() -> None:
    """`exists` may leave its value out, as the published builders' validator allows."""
    assert tree_of({"field": "year", "op": "exists"}).leaves[0].op == "exists"


def test_null_members_and_unknown_members_are_absent() -> None:
    """A combinator that is null counts as absent, and unknown members of a node are ignored."""
    assert len(tree_of({**LANG, "and": None, "boost": 3}).leaves) == 1


def test_nesting_is_bounded() -> None:
    """A filter may nest 32 combinators deep and no deeper, however deep the attack goes."""

    def nested(levels: int) -> dict[str, Any]:
        node: dict[str, Any] = LANG
        for _ in range(levels):
            node = {"not": node}
        return node

    assert tree_of(nested(32)).leaves
    assert refused_field(nested(33)).endswith(".not")
    assert refused_field(nested(900)).startswith("filter.not.not")
    assert refused_field(nested(3), max_depth=2) == "filter.not.not.not"


def test_number_of_comparisons_is_bounded() -> None:
    """A filter may hold 256 comparisons and no more."""
    assert len(tree_of({"or": [LANG] * 256}).leaves) == 256
    assert refused_field({"or": [LANG] * 257}) == "filter.or[256]"
    assert refused_field({"or": [LANG, LANG]}, max_leaves=1) == "filter.or[1]"


def test_engine_without_the_field_is_at_fault() -> None:
    """An engine that does not advertise a field of the tree cannot apply it."""
    fault = fault_of(tree_of({"and": [LANG, leaf("eq", 1, "year")]}), {"lang": "keyword"}, None)
    assert fault is not None
    assert (fault.kind, fault.field, fault.operator) == ("field", "filter.and[1].year", "eq")
    assert "'year'" in fault.message


def test_engine_without_the_operator_is_at_fault() -> None:
    """An engine that restricts its operators cannot apply others."""
    fault = fault_of(tree_of(leaf("gte", 1)), {"f": "int"}, frozenset({"eq"}))
    assert fault is not None
    assert (fault.kind, fault.field, fault.operator) == ("operator", "filter.f", "gte")


FITTING: dict[str, list[tuple[str, Any]]] = {
    "keyword": [("eq", "x"), ("eq", "2024-01-01"), ("in", ["x", "2024-01-01"]), ("contains", "x"), ("exists", True)],
    "text": [("ne", "x"), ("contains", "x"), ("exists", False)],
    "int": [("eq", 1), ("gt", 1), ("lte", 1.5), ("nin", [1, 2.5]), ("contains", 1)],
    "float": [("eq", 1), ("gte", 1.5), ("in", [1, 2.5])],
    "bool": [("eq", True), ("in", [True, False]), ("exists", True)],
    "date": [("eq", "2024-01-01"), ("lt", 1718000000000), ("in", ["2024-01-01", 1]), ("gte", "2024-01-01T00:00:00Z")],
    "geo": [("eq", "u09tvw0"), ("exists", True)],
}
MISFITS: dict[str, list[tuple[str, Any]]] = {
    "keyword": [("eq", 1), ("eq", True), ("in", ["x", 1]), ("gt", 1), ("gt", "2024-01-01"), ("contains", 1)],
    "text": [("eq", 1), ("lte", "2024-01-01")],
    "int": [("eq", "1"), ("eq", True), ("in", [1, "2"]), ("gt", "2024-01-01"), ("contains", "x")],
    "float": [("eq", "1.5"), ("in", [True])],
    "bool": [("eq", 1), ("eq", "true"), ("gt", 1), ("contains", True)],
    "date": [("eq", "soon"), ("gt", 1.5), ("eq", True), ("in", ["2024-01-01", "soon"])],
    "geo": [("eq", 1), ("lt", 1), ("contains", "u09")],
}


@pytest.mark.parametrize(("kind", "op", "value"), [(kind, *case) for kind, cases in FITTING.items() for case in cases])
def test_value_that_fits_the_type_is_allowed(kind: str, op: str, value: Any) -> None:
    """A value that fits the advertised type is no reason to leave an engine out."""
    assert fault_of(tree_of(leaf(op, value)), {"f": kind}, frozenset(OPERATORS)) is None


@pytest.mark.parametrize(("kind", "op", "value"), [(kind, *case) for kind, cases in MISFITS.items() for case in cases])
def test_value_that_does_not_fit_the_type_is_a_shape_fault(kind: str, op: str, value: Any) -> None:
    """A value or an operator that the advertised type does not take is a fault of shape, naming field and type."""
    fault = fault_of(tree_of(leaf(op, value)), {"f": kind}, None)
    assert fault is not None
    assert (fault.kind, fault.field) == ("shape", "filter.f")
    assert kind in fault.message


@pytest.mark.parametrize("kind", [None, "uuid"])
@pytest.mark.parametrize(("op", "value"), [("eq", True), ("gt", 1.5), ("in", ["x", 1]), ("contains", "x")])
def test_field_without_a_known_type_takes_any_shape(kind: str | None, op: str, value: Any) -> None:
    """An engine that lists names only, or a type RCP does not define, takes whatever fits the operator."""
    assert fault_of(tree_of(leaf(op, value)), {"f": kind}, None) is None


def test_first_fault_in_the_order_of_the_tree_is_reported() -> None:
    """Of several faults the first in the tree is named, so that the message does not depend on chance."""
    tree = tree_of({"or": [leaf("eq", 1, "b"), leaf("eq", 1, "a")]})
    fault = fault_of(tree, {}, None)
    assert fault is not None
    assert fault.field == "filter.or[0].b"


def test_json_type_speaks_of_values_as_json_does() -> None:
    """Messages name JSON's types, not Python's."""
    named = [json_type(value) for value in ("", 1, 1.5, True, None, [], {}, object())]
    assert named == [
        *("a string", "a number", "a number", "a boolean", "null", "an array", "an object"),
        "something else",
    ]


_scalars = st.one_of(st.text(max_size=3), st.integers(-5, 5), st.floats(-2, 2), st.booleans(), st.none())
_values = st.one_of(_scalars, st.lists(_scalars, max_size=3), st.sampled_from(["2024-01-01", "2024-01-01T00:00:00Z"]))
_leaves = st.fixed_dictionaries(
    {"field": st.sampled_from(["a", "b"]), "op": st.sampled_from([*OPERATORS, "near"])}, optional={"value": _values}
)
_trees = st.recursive(
    _leaves,
    lambda below: st.one_of(
        st.builds(lambda kids: {"and": kids}, st.lists(below, max_size=3)),
        st.builds(lambda kids: {"or": kids}, st.lists(below, max_size=3)),
        st.builds(lambda kid: {"not": kid}, below),
    ),
    max_leaves=6,
)


@given(_trees)
def test_whatever_we_let_through_the_published_validator_takes(sent: dict[str, Any]) -> None:
    """A filter that is forwarded is never refused for its structure by an engine built on the published SDK."""
    try:
        tree = read_filter(sent)
    except InvalidParams:
        return
    assert tree is not None
    sdk.validate(sent, fields=["a", "b"])


@given(
    st.recursive(_scalars, lambda below: st.one_of(st.lists(below), st.dictionaries(st.text(), below)), max_leaves=8)
)
def test_no_json_value_makes_reading_fall_over(sent: Any) -> None:
    """Whatever JSON comes as a filter is read or refused with -32602, never anything else."""
    with suppress(InvalidParams):
        read_filter(sent)


@given(_trees, st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["keyword", "int", "bool", "date"])))
def test_engine_that_may_be_asked_would_not_refuse(sent: dict[str, Any], fields: dict[str, str]) -> None:
    """If nothing keeps an engine from a tree, the published validator agrees for the same advertised fields."""
    try:
        tree = read_filter(sent)
    except InvalidParams:
        return
    assert tree is not None
    if fault_of(tree, fields, None) is None:
        try:
            sdk.validate(sent, fields=fields)
        except SdkError as refusal:
            pytest.fail(f"{sent} against {fields}: {refusal}")


@pytest.mark.parametrize("leaf", [{"field": "a", "value": 1}, {"field": "a", "op": None, "value": 1}])
def test_a_leaf_without_an_operator_is_told_so(leaf: dict[str, Any]) -> None:
    """A comparison that lacks `op` is told that it does, and what it may be."""
    with pytest.raises(InvalidParams, match=r"'filter\.a' has no operator; its 'op' must be one of eq, ne"):
        read_filter(leaf)
