"""Validators for what engines send: the shapes that RCP gives to values. Pure.

A shape is a function. It returns the value itself if it is well formed, a copy without its malformed parts, or None if
nothing of it is usable. Unknown fields are kept (RCP §4.4).
"""

from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Any, Final

from app.protocol.filters import MAX_INTEGER

Shape = Callable[[Any], Any]

MAX_MEMBERS: Final = 10_000
"""Members of one array or object that are validated; later ones are dropped."""


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
    """An integer (RCP §4.6) of at least `least`; 2.0 counts as one."""

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
    """An array; malformed members are dropped."""

    def read(value: Any) -> Any:
        if type(value) is not list:
            return None
        kept = [(member, shape(member)) for member in value[:MAX_MEMBERS]]
        if len(kept) == len(value) and all(made is member and made is not None for member, made in kept):
            return value
        return [made for _, made in kept if made is not None]

    return read


def numbers(value: Any) -> Any:
    """An array of numbers, all or nothing: without one of them it would be a different vector."""
    return value if type(value) is list and _NUMBERS.issuperset(map(type, value)) else None


def mapping(shape: Shape) -> Shape:
    """An object whose members all have one shape; malformed members are dropped."""

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
    """An object with these fields. `needed` ones must be there; malformed ones are dropped."""

    def read(value: Any) -> Any:
        if type(value) is not dict:
            return None
        kept = reshaped(value, fields)
        return kept if all(name in kept for name in needed) else None

    return read


def either(*shapes: Shape) -> Shape:
    """The first of these shapes that fits."""
    return lambda value: next((made for made in (shape(value) for shape in shapes) if made is not None), None)


def reshaped(value: dict[str, Any], fields: Mapping[str, Shape]) -> dict[str, Any]:
    """The object without malformed fields; `value` itself if all are well formed."""
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
