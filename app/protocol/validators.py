"""Shapes that RCP gives to what an engine sends, and what counts of a value that has another one. Pure.

A shape is a function: the value itself if it is well formed, a copy without its malformed parts, or None if nothing
of it counts. Unknown fields are kept (RCP §4.4). It refuses to know which values these are and who is told.
"""

from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Any, Final

from app.protocol.filters import MAX_INTEGER

Shape = Callable[[Any], Any]

MAX_MEMBERS: Final = 10_000
"""Members of one array or object that are looked at; what comes after them does not count."""


def text(value: Any) -> Any:
    """A string."""
    return value if type(value) is str else None


def flag(value: Any) -> Any:
    """True or false."""
    return value if type(value) is bool else None


def number(value: Any) -> Any:
    """Any number; booleans are none."""
    return value if type(value) is int or type(value) is float else None


def share(value: Any) -> Any:
    """A number from 0 to 1."""
    return value if (type(value) is int or type(value) is float) and 0 <= value <= 1 else None


def anything(value: Any) -> Any:
    """Whatever it is."""
    return value


def whole(least: int = -MAX_INTEGER) -> Shape:
    """An integer (RCP §4.6) of at least so much; 2.0 is one."""

    def read(value: Any) -> Any:
        if type(value) is float and value.is_integer():
            value = int(value)
        return value if type(value) is int and least <= value <= MAX_INTEGER else None

    return read


def one_of(*names: str) -> Shape:
    """One of these strings."""
    known = frozenset(names)
    return lambda value: value if type(value) is str and value in known else None


def several(shape: Shape) -> Shape:
    """An array; its malformed members do not count."""

    def read(value: Any) -> Any:
        if type(value) is not list:
            return None
        kept = [(member, shape(member)) for member in value[:MAX_MEMBERS]]
        if len(kept) == len(value) and all(made is member and made is not None for member, made in kept):
            return value
        return [made for _, made in kept if made is not None]

    return read


def numbers(value: Any) -> Any:
    """An array of numbers, all or nothing: without one of them it would be another vector."""
    return value if type(value) is list and _NUMBERS.issuperset(map(type, value)) else None


def mapping(shape: Shape) -> Shape:
    """An object whose members all have one shape; the malformed ones do not count."""

    def read(value: Any) -> Any:
        if type(value) is not dict:
            return None
        made = {name: shape(member) for name, member in islice(value.items(), MAX_MEMBERS)}
        if len(made) == len(value) and all(
            made[name] is member and member is not None for name, member in value.items()
        ):
            return value
        return {name: member for name, member in made.items() if member is not None}

    return read


def record(fields: Mapping[str, Shape], needed: Collection[str] = ()) -> Shape:
    """An object with these fields, any of which may be missing unless it is `needed`; malformed ones do not count."""

    def read(value: Any) -> Any:
        if type(value) is not dict:
            return None
        kept = reshaped(value, fields)
        return kept if all(name in kept for name in needed) else None

    return read


def either(*shapes: Shape) -> Shape:
    """What the first of these makes of it."""
    return lambda value: next((made for made in (shape(value) for shape in shapes) if made is not None), None)


def reshaped(value: dict[str, Any], fields: Mapping[str, Shape]) -> dict[str, Any]:
    """The object as far as these fields are well formed; `value` itself if all of them are."""
    changes = {}
    for name, member in value.items():
        shape = fields.get(name)
        if shape is not None and ((made := shape(member)) is None or made is not member):
            changes[name] = made
    if not changes:
        return value
    kept = {name: changes.get(name, member) for name, member in value.items()}
    return {name: member for name, member in kept.items() if member is not None or name not in changes}


_NUMBERS = frozenset({int, float})
