"""`query/transform` as written (RCP §7.8): one question made several, or the document that would answer it.

It decides what is malformed, and how many variants may be asked for. It refuses to know engines.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from app.protocol.errors import ProtocolViolation
from app.protocol.param_fields import forwardable, read_count, required_text
from app.protocol.validators import reshaped, text

MAX_VARIANTS: Final = 8
"""Largest `n` that engines are asked for; more is clamped, as `k` is."""


class Transform(NamedTuple):
    """One well-formed call: its method, and what an engine is sent."""

    method: str
    sent: dict[str, Any]


def read_transform(params: Mapping[str, Any]) -> Transform:
    """Check the params. Raises InvalidParams (-32602)."""
    required_text(params, "query")
    method = required_text(params, "method")
    variants = read_count(params, "n")
    sent = forwardable(params)
    if variants is not None:
        sent["n"] = min(variants, MAX_VARIANTS)
    return Transform(method, sent)


def transformed(result: dict[str, Any]) -> dict[str, Any]:
    """`result` as it came, without a `hypothetical` that is no text. Raises ProtocolViolation if it has no queries."""
    queries = result.get("queries")
    if type(queries) is not list or not all(type(query) is str for query in queries):
        raise ProtocolViolation("the result has no 'queries' array of strings")
    return reshaped(result, {"hypothetical": text})
