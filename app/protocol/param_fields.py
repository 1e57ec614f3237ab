"""Readers of single params of the smaller methods, and how a malformed param is refused (RCP §4.4, §4.6).

Types are strict, null is as good as absent. What is malformed is refused with the name of its field (-32602).
"""

from collections.abc import Mapping
from typing import Any, Final, NoReturn

from app.protocol.envelope import dumps
from app.protocol.errors import InvalidParams
from app.protocol.filters import MAX_INTEGER, json_type

MAX_NAME: Final = 256
"""Characters of a session id and of other names that callers give."""

GATEWAY_PARAMS = frozenset({"_meta", "x-gateway"})
"""Params for this gateway, never forwarded."""

Id = str | int | float

MAX_IDS: Final = 1000
"""Ids that one param may list."""

_EXACT_DIGITS: Final = 15
"""Significant decimal digits that a double holds whatever they are."""


def refuse_value(name: str, wanted: str, value: Any) -> NoReturn:
    """Raise InvalidParams: `name` must be `wanted`, and what it was."""
    refuse(name, f"'{name}' must be {wanted}, not {shown(value)}")


def shown(value: Any) -> str:
    """A caller's value for an error message: JSON if it is short, else its type."""
    if value is None:
        return "missing"
    if type(value) in (list, dict):
        return json_type(value) if value else json_type(value).replace("an ", "an empty ")
    text = dumps(value).decode() if type(value) is not int else str(value)
    return text if len(text) <= 40 else f"{text[:37]}…"


def refuse(field: str, message: str) -> NoReturn:
    """Raise InvalidParams about `field`."""
    raise InvalidParams(message, field=field)


def forwardable(params: Mapping[str, Any], *read: str) -> dict[str, Any]:
    """The params to forward unchanged: without nulls, the gateway's own, and those in `read`."""
    return {
        key: value
        for key, value in params.items()
        if value is not None and key not in GATEWAY_PARAMS and key not in read
    }


def read_text(params: Mapping[str, Any], name: str) -> str | None:
    """An optional string that is not blank."""
    value = params.get(name)
    if value is not None and (type(value) is not str or not value or value.isspace()):
        refuse_value(name, "a non-empty string", value)
    return value


def required_text(params: Mapping[str, Any], name: str) -> str:
    """A required string that is not blank."""
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


def is_id(value: Any) -> bool:
    """Whether this can be the id of a hit, node or community.

    A float of more digits than a double holds cannot: an integer of 2^64 and above is parsed as one, and two different
    ones would become one hit.
    """
    kind = type(value)
    if kind is str:
        return value != ""  # type: ignore[no-any-return]
    return kind is int or (kind is float and abs(value) < MAX_INTEGER and float(f"{value:.{_EXACT_DIGITS}g}") == value)


def check_id(value: Any, name: str) -> None:
    """Refuse what is no usable id. Raises InvalidParams."""
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
