"""Single params of the smaller methods: optional or required, strictly typed, null as good as absent (RCP §4.4, §4.6).

What is malformed is refused by its name (-32602). It refuses to know which method a param belongs to.
"""

from collections.abc import Mapping
from typing import Any

from app.protocol.filters import MAX_INTEGER
from app.protocol.param_errors import refuse_value

OURS = frozenset({"_meta", "x-gateway"})
"""Params that are between the caller and this gateway."""


def forwardable(params: Mapping[str, Any], *read: str) -> dict[str, Any]:
    """What engines may be sent as it is: neither what is ours, nor nulls, nor what was `read` and is written anew."""
    return {key: value for key, value in params.items() if value is not None and key not in OURS and key not in read}


def read_text(params: Mapping[str, Any], name: str) -> str | None:
    """An optional string that says something."""
    value = params.get(name)
    if value is not None and (type(value) is not str or not value or value.isspace()):
        refuse_value(name, "a non-empty string", value)
    return value


def required_text(params: Mapping[str, Any], name: str) -> str:
    """A string that must be there and say something."""
    value = read_text(params, name)
    return refuse_value(name, "a non-empty string", value) if value is None else value


def read_count(params: Mapping[str, Any], name: str) -> int | None:
    """An optional integer of at least 1."""
    value = params.get(name)
    if value is not None and (type(value) is not int or not 1 <= value <= MAX_INTEGER):
        refuse_value(name, "an integer of at least 1", value)
    return value


def read_flag(params: Mapping[str, Any], name: str) -> bool:
    """An optional boolean; absent is false."""
    value = params.get(name)
    if value is not None and type(value) is not bool:
        refuse_value(name, "true or false", value)
    return value is True


def read_choice(params: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> str | None:
    """An optional one of a few strings that RCP itself names."""
    value = params.get(name)
    if value is not None and value not in choices:
        refuse_value(name, f"one of {', '.join(choices)}", value)
    return value
