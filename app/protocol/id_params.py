"""Ids, sessions and levels among the params of the smaller methods: strictly typed, null as good as absent.

What is malformed is refused by its name (-32602). It refuses to know whose ids they are.
"""

from collections.abc import Mapping
from typing import Any, Final

from app.protocol.filters import MAX_INTEGER
from app.protocol.param_errors import refuse, refuse_value
from app.protocol.retrieve_params import MAX_NAME

Id = str | int | float

MAX_IDS: Final = 1000
"""Ids that one param may list."""

_EXACT_DIGITS: Final = 15
"""Significant decimal digits that a double holds whatever they are."""


def is_id(value: Any) -> bool:
    """Whether this can name a hit, a node, a community.

    A float of more digits than a double holds cannot: an integer of 2^64 and above is parsed as one, and two different
    ones would become one hit.
    """
    kind = type(value)
    if kind is str:
        return value != ""  # type: ignore[no-any-return]
    return kind is int or (kind is float and abs(value) < MAX_INTEGER and float(f"{value:.{_EXACT_DIGITS}g}") == value)


def check_id(value: Any, name: str) -> None:
    """Refuse what can name nothing."""
    if not is_id(value):
        refuse_value(name, "a non-empty string or an exact number", value)


def read_ids(params: Mapping[str, Any], name: str) -> list[Id] | None:
    """An optional array of at least one id."""
    ids = params.get(name)
    if ids is None:
        return None
    if type(ids) is not list or not 1 <= len(ids) <= MAX_IDS:
        refuse(name, f"'{name}' must be an array of 1 to {MAX_IDS} ids")
    for index, member in enumerate(ids):
        check_id(member, f"{name}[{index}]")
    return ids


def read_session(params: Mapping[str, Any]) -> str | None:
    """`sessionId`, if there is one."""
    session = params.get("sessionId")
    if session is not None and (type(session) is not str or not 1 <= len(session) <= MAX_NAME):
        refuse_value("sessionId", f"a string of 1 to {MAX_NAME} characters", session)
    return session


def read_level(params: Mapping[str, Any]) -> int | None:
    """`level` of a hierarchy, if there is one."""
    level = params.get("level")
    if level is not None and (type(level) is not int or not 0 <= level <= MAX_INTEGER):
        refuse_value("level", "an integer of at least 0", level)
    return level
