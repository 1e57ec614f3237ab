"""Errors of configuration files: what is wrong, where (file, line, key), and what to write instead.

Also translates findings of pydantic into these errors. Imports no pydantic, so that reporting an error stays cheap.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args, get_origin

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

Trail = tuple[str | int, ...]
"""Keys and list places that lead to a value."""

MAX_SHOWN = 60
"""Longest part of a key or value that a message quotes, in characters."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One fault. `path` is like `engines[2].timeoutMs`, empty for the file as a whole."""

    path: str
    message: str
    suggestion: str | None = None
    line: int | None = None
    """Line of the key in its file, from 1."""
    engine: str | None = None
    """Id of the engine in whose registry entry the key is."""

    def __str__(self) -> str:
        place = ", ".join([f"line {self.line}"] * bool(self.line) + [f"engine '{self.engine}'"] * bool(self.engine))
        where = "".join(f"{part}: " for part in (place, self.path) if part)
        return f"{where}{self.message}" + (f"; {self.suggestion}" if self.suggestion else "")


class SettingsError(Exception):
    """A file, or the environment, that cannot be used. Carries every fault found, not only the first."""

    def __init__(self, file: str, faults: tuple[FieldError, ...]) -> None:
        super().__init__(file, faults)
        self.file = file
        self.faults = faults

    def __str__(self) -> str:
        return "\n".join([f"{self.file}: {_count(len(self.faults))}", *(f"  {fault}" for fault in self.faults)])

    def __repr__(self) -> str:
        return f"SettingsError({self.file!r}, {_count(len(self.faults))}: {', '.join(f.path for f in self.faults)})"


def dotted(parts: Iterable[str | int]) -> str:
    """`("engines", 2, "timeoutMs")` as `engines[2].timeoutMs`."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{_key(part)}" if path else _key(part)
    return path


def shown(text: str) -> str:
    """`text` for one line of a terminal: control characters replaced, at most MAX_SHOWN characters."""
    clean = "".join(c if c.isprintable() else "�" for c in text[: MAX_SHOWN + 1])
    return clean if len(clean) <= MAX_SHOWN else clean[: MAX_SHOWN - 1] + "…"


def _key(key: str) -> str:
    """A key, cut at the first character no key has: people paste whole header lines, with secrets, as names."""
    name = re.split(r"[^\w$.@/<~+*-]", key, maxsplit=1)[0]
    return shown(key if name == key else f"{name}…")


def _count(faults: int) -> str:
    return "1 fault" if faults == 1 else f"{faults} faults"


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

_CONTAINERS = frozenset({"list_type", "tuple_type", "dict_type", "model_type", "model_attributes_type"})
"""Kinds of finding where an object or a list was expected."""

_WORDS_ONLY = re.compile(r"[\w ,.*-]{0,40}")

_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}

_SECRET = re.compile(r"header|url|replica|command|secret|token|password|key|credential", re.IGNORECASE)
"""Keys whose values are not quoted in messages."""

_UNITS = {"ms": 1, "s": 1000, "sec": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}
_SIZES = {"": 0, "k": 1, "m": 2, "g": 3}


def faults_of(
    error: "ValidationError", model: "type[BaseModel]", origins: Mapping[tuple[str, ...], str] | None = None
) -> tuple[FieldError, ...]:
    """The findings of `error` about `model`; `origins` maps a key to the environment variable that set it."""
    return tuple(_fault(item, model, origins or {}) for item in error.errors(include_url=False))


def _fault(item: Any, model: "type[BaseModel]", origins: Mapping[tuple[str, ...], str]) -> FieldError:
    at: Trail = tuple(part for part in item["loc"] if part != "[key]")
    cause = item.get("ctx", {}).get("error")
    at += getattr(cause, "at", ())  # a MisplacedKey: the fault is at a key below the validated object
    origin = origins.get(at)  # type: ignore[arg-type]
    message = _message(item, at) + (f" (set by {origin})" if origin else "")
    return FieldError(dotted(at), message, _suggestion(item, at, model))


def _message(item: Any, at: Trail) -> str:
    kind, context, found = item["type"], item.get("ctx", {}), item["input"]
    if kind in _CONTAINERS and isinstance(found, str) and not _WORDS_ONLY.fullmatch(found):
        return f"expected {_EXPECTED[kind]}, found text"  # the text contains the values meant for it, possibly secrets
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
    """The value found, for a message; only its type if it may be a secret."""
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


def _suggestion(item: Any, at: Trail, model: "type[BaseModel]") -> str | None:
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
    """How to write this text as a list, in YAML and JSON alike; a general example if it may be a secret."""
    open_word = re.fullmatch(r"[\w.*-]{1,40}", text) and _found(text, at) != "text"
    return f'write ["{text}"]' if open_word else 'write a list, such as ["a", "b"]'


def _closest_key(key: str, model: "type[BaseModel]", at: Trail) -> str | None:
    level = _model_at(model, at)
    if level is None:
        return None
    known = list(_fields(level))
    close = difflib.get_close_matches(key, known, n=1) or [name for name in known if name.startswith(key.lower())]
    if close:
        return f"did you mean '{close[0]}'?"
    for name in known:
        section = _model_at(level, (name,))
        if section is not None and key in section.model_fields:
            return f"did you mean '{name}.{key}'?"
    return f"allowed here: {', '.join(known)}"


def _model_at(model: "type[BaseModel]", at: Trail) -> "type[BaseModel] | None":
    level: type[BaseModel] | None = model
    named = False
    for part in at:
        if named:  # a key chosen in the file, such as a tenant's id: not a field of a model
            named = False
        elif isinstance(part, str) and level is not None:
            known = _fields(level)
            named = part in known and get_origin(known[part].annotation) is dict
            level = _model_in(known[part].annotation) if part in known else None
    return level


def _fields(model: "type[BaseModel]") -> dict[str, Any]:
    """Key as written in the file -> its field."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


def _model_in(annotation: Any) -> "type[BaseModel] | None":
    if hasattr(annotation, "model_fields"):  # a pydantic model
        held: type[BaseModel] = annotation
        return held
    return next((model for inner in get_args(annotation) if (model := _model_in(inner)) is not None), None)


def _written_as_number(text: str, key: str) -> str | None:
    """How to write a number that was given as text: `5s` for milliseconds, `08080`, `16MiB`, `"5"`."""
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
