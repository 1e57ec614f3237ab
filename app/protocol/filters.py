"""Metadata filters (RCP §8): a tree of `and`, `or`, `not` over `{field, op, value}` leaves.

`read_filter` checks the structure, `fault_of` whether one engine's fields, types and operators allow it. Engines are
sent the tree as the caller sent it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, NoReturn

from app.protocol.errors import InvalidParams

OPERATORS: Final = ("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "contains", "exists")
"""Every operator of RCP, in the order in which they are advertised."""

MAX_INTEGER: Final = 2**53
"""Integers on the wire stay within ± this, so that they survive a double (RCP §4.6)."""

MAX_VALUES: Final = 10_000
"""Values that `in` and `nin` may list."""

COMBINATORS: Final = ("and", "or", "not")

_OPERATORS = frozenset(OPERATORS)
_ORDERED = frozenset({"gt", "gte", "lt", "lte"})
_LISTED = frozenset({"in", "nin"})

_STRINGS = frozenset({"string", "date"})
_NUMBERS = frozenset({"int", "float"})
_ORDERABLE = frozenset({"int", "float", "date"})
_ALONE = MappingProxyType({kind: frozenset({kind}) for kind in ("string", "date", "int", "float", "bool")})
_NOTHING: frozenset[str] = frozenset()
_KINDS: Mapping[type, str] = MappingProxyType({str: "string", int: "int", float: "float", bool: "bool"})

_VALUES: Mapping[str, tuple[frozenset[str], str]] = MappingProxyType(
    {
        "keyword": (_STRINGS, "a string"),
        "text": (_STRINGS, "a string"),
        "int": (_NUMBERS, "a number"),
        "float": (_NUMBERS, "a number"),
        "bool": (_ALONE["bool"], "true or false"),
        "date": (frozenset({"date", "int"}), "an RFC 3339 date or integer milliseconds"),
        "geo": (_STRINGS, "a string"),
    }
)
"""Field type -> the kinds of value that fit it, and how to say so. RCP gives `geo` no shape; a string passes."""

FIELD_TYPES: Final = frozenset(_VALUES)

_UNORDERED_TYPES = frozenset({"keyword", "text", "bool", "geo"})
_UNDIVIDED_TYPES = frozenset({"bool", "geo"})
"""A flag and a place contain nothing; `contains` is for text and for fields that hold several values."""

_DATE = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[Tt ](?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)?)?",
    re.ASCII,
)
_Path = tuple[Any, ...]
"""Path of a node: its parent's path, the key, the index. Formatted only for an error message."""

_JSON_NAMES: Mapping[type, str] = MappingProxyType(
    {str: "a string", bool: "a boolean", int: "a number", float: "a number", list: "an array", dict: "an object"}
)


class FilterLeaf(NamedTuple):
    """One comparison, reduced to what decides whether an engine can make it. `kinds` are the kinds of its value(s)."""

    field: str
    op: str
    kinds: frozenset[str]
    at: _Path = ("filter",)
    """Where it stands in the tree."""

    @property
    def path(self) -> str:
        """The field as a path in the params: `filter.year`, or `filter.and[0].year`."""
        return f"{_path_name(self.at)}.{self.field}"


@dataclass(frozen=True, slots=True)
class FilterTree:
    """A well-formed filter: `raw` as the caller sent it, and its leaves in the order of the tree."""

    raw: dict[str, Any]
    leaves: tuple[FilterLeaf, ...]


@dataclass(frozen=True, slots=True)
class FilterFault:
    """Why an engine cannot apply a filter: -32602 for a field or a shape, -32005 for an operator (RCP §8)."""

    kind: Literal["field", "operator", "shape"]
    field: str
    """As a path in the params."""
    operator: str
    message: str


def read_filter(tree: Any, max_depth: int = 32, max_leaves: int = 256) -> FilterTree | None:
    """Check the structure of `params.filter` (RCP §8), whatever is advertised; None and `{}` are no filter.

    `max_depth` bounds the combinators above a leaf. Raises InvalidParams (-32602) whose `field` is the path of the
    node, followed by the leaf's field where it has one.
    """
    if tree is None:
        return None
    if type(tree) is not dict:
        _refuse("filter", f"'filter' must be an object, not {json_type(tree)}")
    if not tree:
        return None
    leaves: list[FilterLeaf] = []
    _read_node(tree, ("filter",), max_depth, leaves, max_leaves)
    return FilterTree(tree, tuple(leaves))


def fault_of(
    tree: FilterTree, fields: Mapping[str, str | None], operators: frozenset[str] | None
) -> FilterFault | None:
    """Why an engine with these fields, types and operators cannot apply `tree`; None if it can.

    A field without a type (or with one that RCP does not define) takes every value that fits the operator, and
    `operators` None allows all of them.
    """
    for leaf in tree.leaves:
        name, op, kinds, _ = leaf
        if name not in fields:
            return FilterFault("field", leaf.path, op, f"filter field '{name}' is not advertised")
        if operators is not None and op not in operators:
            return FilterFault("operator", leaf.path, op, f"filter operator '{op}' is not advertised")
        kind = fields[name]
        if kind is not None and kind in _VALUES and op != "exists":
            problem = _misfit(op, kinds, kind)
            if problem is not None:
                return FilterFault("shape", leaf.path, op, f"filter field '{name}' is of type {kind}: {problem}")
    return None


def json_type(value: Any) -> str:
    """The JSON type of `value` with its article, for messages."""
    return _JSON_NAMES.get(type(value), "null" if value is None else "something else")


def _misfit(op: str, kinds: frozenset[str], kind: str) -> str | None:
    if (op in _ORDERED and kind in _UNORDERED_TYPES) or (op == "contains" and kind in _UNDIVIDED_TYPES):
        return f"'{op}' does not apply to it"
    fitting, wanted = _VALUES[kind]
    return None if kinds <= fitting else f"its value must be {wanted}"


def _read_node(node: Any, path: _Path, levels: int, leaves: list[FilterLeaf], max_leaves: int) -> None:
    """Collect the leaves under `node`. Recursion is bounded by `levels`, work by `max_leaves`."""
    if type(node) is not dict:
        _refuse_node(path, f"must be an object, not {json_type(node)}")
    if levels < 0:
        _refuse_node(path, "nests too deeply")
    name, op = node.get("field"), node.get("op")
    key = _combinator_of(node, path)
    if name is not None or op is not None:
        if key is not None:
            _refuse_node(path, f"is a comparison and a combinator at once; put the '{key}' around the comparison")
        if len(leaves) == max_leaves:
            _refuse_node(path, f"is one comparison too many; a filter may have {max_leaves}")
        leaves.append(_read_leaf(name, op, node.get("value"), path))
    elif key is None:
        _refuse_node(path, "needs 'and', 'or' or 'not', or else 'field' and 'op'")
    elif key == "not":
        _read_node(node[key], (path, key), levels - 1, leaves, max_leaves)
    else:
        below = node[key]
        if type(below) is not list or not below:
            _refuse_node((path, key), "must be an array of at least one filter")
        for index, child in enumerate(below):
            _read_node(child, (path, key, index), levels - 1, leaves, max_leaves)


def _combinator_of(node: dict[str, Any], path: _Path) -> str | None:
    found = None
    for key in COMBINATORS:
        if node.get(key) is not None:
            if found is not None:
                _refuse_node(path, f"has both '{found}' and '{key}'; nest one in the other")
            found = key
    return found


def _read_leaf(name: Any, op: Any, value: Any, path: _Path) -> FilterLeaf:
    if type(name) is not str or not name:
        _refuse_node((path, "field"), "must be a non-empty string")
    if op is None:
        _refuse_node((path, name), f"has no operator; its 'op' must be one of {', '.join(OPERATORS)}")
    if type(op) is not str or op not in _OPERATORS:
        _refuse_node((path, name), f"needs an 'op' that is one of {', '.join(OPERATORS)}")
    leaf = FilterLeaf(name, op, _NOTHING, path)
    return leaf._replace(kinds=_read_kinds(leaf, value))


def _read_kinds(leaf: FilterLeaf, value: Any) -> frozenset[str]:
    """The kinds of the value of one leaf. Raises InvalidParams where its shape does not fit the operator."""
    if leaf.op == "exists":
        if value is not None and type(value) is not bool:
            _refuse(leaf.path, f"'exists' on '{leaf.path}' takes true or false, not {json_type(value)}")
        return _NOTHING
    if leaf.op in _LISTED:
        if type(value) is not list or not 1 <= len(value) <= MAX_VALUES:
            _refuse(leaf.path, f"'{leaf.op}' on '{leaf.path}' takes an array of 1 to {MAX_VALUES} values")
        return _read_listed(leaf, value)
    kind = _read_kind(leaf, value)
    if leaf.op in _ORDERED and kind not in _ORDERABLE:
        _refuse(leaf.path, f"'{leaf.op}' on '{leaf.path}' takes a number or an RFC 3339 date")
    return _ALONE[kind]


def _read_kind(leaf: FilterLeaf, value: Any) -> str:
    kind = _KINDS.get(type(value))
    if kind is None:
        _refuse(
            leaf.path, f"'{leaf.op}' on '{leaf.path}' takes a string, a number or a boolean, not {json_type(value)}"
        )
    if kind == "string":
        return "date" if _is_date(value) else "string"
    if kind == "int" and not -MAX_INTEGER <= value <= MAX_INTEGER:
        _refuse(leaf.path, f"the value of '{leaf.path}' must be within ±2^53; send longer numbers as strings")
    return kind


def _read_listed(leaf: FilterLeaf, values: list[Any]) -> frozenset[str]:
    """Like `_read_kind` for each of `values`, without a call per value: such lists may be long.

    Strings are dates only if all of them are; where one is not, no date field can take the list anyway.
    """
    found = set(map(type, values))
    for odd_type in found.difference(_KINDS):
        _read_kind(leaf, next(value for value in values if type(value) is odd_type))
    if int in found:
        _read_kind(leaf, max((value for value in values if type(value) is int), key=abs))
    kinds = {_KINDS[kind] for kind in found}
    if str in found and all(_is_date(value) for value in values if type(value) is str):
        kinds ^= {"string", "date"}
    return frozenset(kinds)


def _is_date(value: str) -> bool:
    """Whether `value` is an RFC 3339 date-time or full-date that the calendar knows; a missing offset is tolerated."""
    match = _DATE.fullmatch(value) if value[4:5] == "-" else None
    if match is None:
        return False
    try:
        date(int(match[1]), int(match[2]), int(match[3]))
    except ValueError:
        return False
    return True


def _refuse_node(path: _Path, problem: str) -> NoReturn:
    name = _path_name(path)
    _refuse(name, f"'{name}' {problem}")


def _path_name(path: _Path) -> str:
    if len(path) == 1:
        return str(path[0])
    name = f"{_path_name(path[0])}.{path[1]}"
    return name if len(path) == 2 else f"{name}[{path[2]}]"


def _refuse(field: str, message: str) -> NoReturn:
    raise InvalidParams(message, field=field)
