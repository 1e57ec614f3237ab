"""How a malformed param is refused (-32602): the field by its name, what it must be, and what it was.

Shared by all that read params. It refuses to know any of them.
"""

from typing import Any, NoReturn

from app.protocol.envelope import dumps
from app.protocol.errors import InvalidParams
from app.protocol.filters import json_type


def refuse_value(name: str, wanted: str, value: Any) -> NoReturn:
    """Raise InvalidParams: `name` must be `wanted`, and what it was."""
    refuse(name, f"'{name}' must be {wanted}, not {shown(value)}")


def shown(value: Any) -> str:
    """A caller's value fit for a message: JSON if it is short, else its type."""
    if value is None:
        return "missing"
    if type(value) in (list, dict):
        return json_type(value) if value else json_type(value).replace("an ", "an empty ")
    text = dumps(value).decode() if type(value) is not int else str(value)
    return text if len(text) <= 40 else f"{text[:37]}…"


def refuse(field: str, message: str) -> NoReturn:
    """Raise InvalidParams about `field`."""
    raise InvalidParams(message, field=field)
