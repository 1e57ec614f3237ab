"""Translates filter trees (RCP §8), already validated by the SDK, into SQL conditions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import rcp

from app.demo.demo_document import FIELDS

OPERATORS = ("eq", "ne", "in", "nin")
_SQL = {"eq": "{} = ?", "ne": "{} <> ?", "in": "{} IN ({})", "nin": "{} NOT IN ({})"}


@dataclass(frozen=True, slots=True)
class Where:
    """A condition over the columns named in FIELDS, and the values for its question marks."""

    sql: str
    values: tuple[str, ...] = ()


def read_filter(tree: Any) -> Where | None:
    """The condition that `tree` states; None where there is none.

    Raises rcp.RcpError: -32602 with `data.field` for a malformed tree or an unknown field, -32005 for an operator that
    is not offered.
    """
    checked = rcp.filter.validate(tree, fields=FIELDS)
    return None if checked is None else _condition(checked)


def _condition(node: dict[str, Any]) -> Where:
    if "not" in node:
        inner = _condition(node["not"])
        return Where(f"NOT ({inner.sql})", inner.values)
    for combinator in ("and", "or"):
        if combinator in node:
            return _combined(combinator, [_condition(child) for child in node[combinator]])
    return _leaf(node["field"], node["op"], node["value"])


def _combined(combinator: str, parts: Sequence[Where]) -> Where:
    if not parts:
        raise rcp.RcpError(-32602, f"'{combinator}' must not be empty", {"field": combinator})
    sql = f" {combinator.upper()} ".join(f"({part.sql})" for part in parts)
    return Where(sql, tuple(value for part in parts for value in part.values))


def _leaf(field: str, operator: str, value: Any) -> Where:
    if operator not in OPERATORS:
        raise rcp.RcpError(-32005, f"operator '{operator}' is not offered", {"option": "filter.operators"})
    values = tuple(value) if operator in ("in", "nin") else (value,)
    if not all(isinstance(item, str) for item in values):
        raise rcp.RcpError(-32602, f"'{field}' is a keyword and compared with strings", {"field": field})
    return Where(_SQL[operator].format(field, ", ".join("?" * len(values))), values)
