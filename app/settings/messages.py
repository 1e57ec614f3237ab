"""Pydantic's findings told in this room's words: the only place where a ValidationError is read.

It decides what is said about each kind of finding and what is suggested. Values that may be secrets are never repeated.
"""

import difflib
import re
from collections.abc import Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from app.settings.field_errors import FieldError, dotted, shown
from app.settings.schema import file_name
from app.settings.section import MisplacedKey

Trail = tuple[str | int, ...]

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}

_HOLDERS = frozenset({"list_type", "tuple_type", "dict_type", "model_type", "model_attributes_type"})
"""Where other values were to stand in."""

_WORDS_ONLY = re.compile(r"[\w ,.*-]{0,40}")

_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}

_SECRET = re.compile(r"header|url|replica|command|secret|token|password|key|credential", re.IGNORECASE)
"""Keys whose values are not repeated in messages."""

_UNITS = {"ms": 1, "s": 1000, "sec": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}
_SIZES = {"": 0, "k": 1, "m": 2, "g": 3}


def faults_of(
    error: ValidationError, model: type[BaseModel], origins: Mapping[tuple[str, ...], str] | None = None
) -> tuple[FieldError, ...]:
    """Every finding of `error` about `model`; `origins` names the variable that set a key, where one did."""
    return tuple(_fault(item, model, origins or {}) for item in error.errors(include_url=False))


def _fault(item: Any, model: type[BaseModel], origins: Mapping[tuple[str, ...], str]) -> FieldError:
    at: Trail = tuple(part for part in item["loc"] if part != "[key]")
    cause = item.get("ctx", {}).get("error")
    if isinstance(cause, MisplacedKey):
        at += cause.at
    origin = origins.get(at)  # type: ignore[arg-type]
    message = _message(item, at) + (f" (set by {origin})" if origin else "")
    return FieldError(dotted(at), message, _suggestion(item, at, model))


def _message(item: Any, at: Trail) -> str:
    kind, context, found = item["type"], item.get("ctx", {}), item["input"]
    if kind in _HOLDERS and isinstance(found, str) and not _WORDS_ONLY.fullmatch(found):
        return f"expected {_EXPECTED[kind]}, found text"  # what was to stand in it is in there, secrets as well
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, found {_found(found, at)}"
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return f"must be {words} {_number(context[bound])}, found {_found(found, at)}"
    match kind:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return "unknown key"
        case "literal_error":
            return f"expected {context['expected']}, found {_found(found, at)}"
        case "string_too_short" | "too_short":
            least = context["min_length"]
            return "must not be empty" if least == 1 else f"must not be shorter than {least}"
        case "string_too_long" | "too_long":
            return f"must not be longer than {context['max_length']}"
        case "value_error":
            return str(context["error"])
    return f"is not usable: {_found(found, at)}"


def _found(value: Any, at: Trail) -> str:
    """What stands there, for a message: never a value that may be a secret."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    if any(_SECRET.search(part) for part in at if isinstance(part, str)):
        return "text" if isinstance(value, str) else "a number"
    return f"text '{shown(value)}'" if isinstance(value, str) else _number(value)


def _number(value: Any) -> str:
    return shown(str(int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value))


def _suggestion(item: Any, at: Trail, model: type[BaseModel]) -> str | None:
    kind, found = item["type"], item["input"]
    if kind == "extra_forbidden":
        return _closest_key(str(at[-1]), model, at[:-1])
    if kind == "literal_error" and isinstance(found, str):
        choices = re.findall(r"'([^']*)'", item["ctx"]["expected"])
        close = difflib.get_close_matches(found.lower(), choices, n=1)
        return f"did you mean '{close[0]}'?" if close else None
    if kind in _EXPECTED and found is None:
        return "leave the key out for its default"
    if kind in ("list_type", "tuple_type") and isinstance(found, str):
        return _written_as_list(found, at)
    if kind == "bool_type" and isinstance(found, str) and found.lower() in _WORDS:
        return f"write {_WORDS[found.lower()]}"
    if kind in ("int_type", "float_type") and isinstance(found, str):
        return _written_as_number(found.strip(), str(at[-1]))
    return None


_WORDS = {"yes": "true", "on": "true", "true": "true", "no": "false", "off": "false", "false": "false"}


def _written_as_list(text: str, at: Trail) -> str:
    """What a list of this one text should look like, in YAML and JSON alike; of a secret, what any should."""
    open_word = re.fullmatch(r"[\w.*-]{1,40}", text) and _found(text, at) != "text"
    return f'write ["{text}"]' if open_word else 'write a list, such as ["a", "b"]'


def _closest_key(key: str, model: type[BaseModel], at: Trail) -> str | None:
    level = _model_at(model, at)
    if level is None:
        return None
    known = [file_name(level, name) for name in level.model_fields]
    close = difflib.get_close_matches(key, known, n=1) or [name for name in known if name.startswith(key.lower())]
    if close:
        return f"did you mean '{close[0]}'?"
    for name in known:
        section = _model_at(level, (name,))
        if section is not None and key in section.model_fields:
            return f"did you mean '{name}.{key}'?"
    return f"known here: {', '.join(known)}"


def _model_at(model: type[BaseModel], at: Trail) -> type[BaseModel] | None:
    level: type[BaseModel] | None = model
    named = False
    for part in at:
        if named:  # a name that the file gives, such as a tenant's
            named = False
        elif isinstance(part, str) and level is not None:
            known = {file_name(level, name): info for name, info in level.model_fields.items()}
            named = part in known and get_origin(known[part].annotation) is dict
            level = _model_in(known[part].annotation) if part in known else None
    return level


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for inner in get_args(annotation) if (model := _model_in(inner)) is not None), None)


def _written_as_number(text: str, key: str) -> str | None:
    """What a number written as text should look like: `5s` where milliseconds are wanted, `08080`, `16MiB`, `"5"`."""
    if re.fullmatch(r"-?0*[0-9]{1,15}", text):
        return f"write {int(text)}, without quotes or leading zeros"
    if re.fullmatch(r"-?[0-9]+\.[0-9]+", text):
        return f"write {text}, without quotes"
    length = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(ms|s|sec|m|min|h)", text, re.IGNORECASE)
    if length and key.lower().replace("_", "").endswith("ms"):
        return f"write {_number(float(length[1]) * _UNITS[length[2].lower()])} (milliseconds)"
    if length and key.endswith("seconds"):
        return f"write {_number(float(length[1]) * _UNITS[length[2].lower()] / 1000)} (seconds)"
    size = re.fullmatch(r"([0-9]{1,6}) ?([kmg]?)i?b?", text, re.IGNORECASE)
    if size and key.endswith("bytes"):
        return f"write {int(size[1]) * 1024 ** _SIZES[size[2].lower()]} (bytes)"
    return None
