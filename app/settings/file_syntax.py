"""A file's text made plain values, strictly: JSON for the registry, YAML for the gateway's own settings.

It decides what is well-formed: no key twice, no NaN, UTF-8 only, and in YAML no surprises (`no` is text, `010` is no
number, no tags). It refuses to know what any key means. The only module that knows yaml.
"""

import difflib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from app.settings.field_errors import FieldError, SettingsError, dotted, shown

MAX_DEPTH = 32
"""Levels of nesting in YAML; more is a file that refers to itself."""

Trail = tuple[str | int, ...]

_TAGS = frozenset({"str", "int", "float", "bool", "null", "timestamp", "merge", "value", "map", "seq"})
"""What the library gives to plain words by itself; any other tag was written."""


def read_text(path: Path) -> str:
    """The file's text. Raises SettingsError if it cannot be read or is not UTF-8."""
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        raise SettingsError(str(path), (FieldError("", "there is no such file", _near(path)),)) from None
    except IsADirectoryError:
        raise SettingsError(str(path), (FieldError("", "is a directory, not a file"),)) from None
    except UnicodeDecodeError as fault:
        raise SettingsError(str(path), (FieldError("", f"is not UTF-8 text (byte {fault.start})"),)) from None
    except (OSError, ValueError) as fault:
        reason = getattr(fault, "strerror", None) or str(fault)
        raise SettingsError(str(path), (FieldError("", f"cannot be read: {reason}"),)) from None


def _near(path: Path) -> str | None:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
    except OSError:
        return f"there is no directory '{path.parent}' either"
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean '{path.with_name(close[0])}'?" if close else None


class _Doubled(dict[str, Any]):
    """A JSON object in which keys stand twice."""

    doubled: tuple[str, ...] = ()


class _NotJson(str):
    """NaN, Infinity or -Infinity."""


def read_json(file: str, text: str) -> Any:
    """The value of a JSON text. Raises SettingsError with line and column, or the path of a key that stands twice."""
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_NotJson)
        faults = tuple(_json_faults(value, ()))
    except json.JSONDecodeError as fault:
        where = f"line {fault.lineno}, column {fault.colno}"
        message = fault.msg[:1].lower() + fault.msg[1:]
        raise SettingsError(
            file, (FieldError(where, f"is not JSON: {message}", _json_advice(text, fault.pos)),)
        ) from None
    except RecursionError:
        raise SettingsError(file, (FieldError("", "is nested too deeply"),)) from None
    except ValueError:  # Python's own bound on the digits of a number
        raise SettingsError(file, (FieldError("", "holds a number with too many digits"),)) from None
    if faults:
        raise SettingsError(file, faults)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    names = [name for name, _ in pairs]
    doubled = _Doubled(value)
    doubled.doubled = tuple(name for name in value if names.count(name) > 1)
    return doubled


def _json_faults(value: Any, at: Trail) -> Iterator[FieldError]:
    if isinstance(value, _Doubled):
        yield from (FieldError(dotted((*at, name)), "stands twice", "remove one of them") for name in value.doubled)
    if isinstance(value, _NotJson):
        yield FieldError(dotted(at), f"{value} is not JSON", "write a number")
    if isinstance(value, dict):
        for name, member in value.items():
            yield from _json_faults(member, (*at, name))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _json_faults(member, (*at, index))


def _json_advice(text: str, position: int) -> str | None:
    if not text.strip():
        return 'the file is empty; the least it can hold is {"engines": []}'
    if text.startswith("\ufeff"):
        return "save it as UTF-8 without a byte order mark"
    found = text[position : position + 1]
    if text[:position].rstrip().endswith(",") and found in ("}", "]", ","):
        return "remove the comma before it"
    if found in ("/", "#"):
        return "JSON has no comments"
    return "names and text stand in double quotes" if found == "'" else None


def read_yaml(file: str, text: str) -> Any:
    """The value of a YAML text, None if it holds none. Raises SettingsError with line and column."""
    faults: list[FieldError] = []
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        value = None if node is None else _value(node, (), faults)
    except yaml.MarkedYAMLError as fault:
        mark = fault.problem_mark or fault.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        advice = "indent with spaces, not with tabs" if "'\\t'" in str(fault.problem) else None
        raise SettingsError(file, (FieldError(where, f"is not YAML: {fault.problem}", advice),)) from None
    except yaml.YAMLError:
        raise SettingsError(
            file, (FieldError("", "is not YAML: it holds a character that YAML does not allow"),)
        ) from None
    except RecursionError:
        raise SettingsError(file, (FieldError("", "is nested too deeply"),)) from None
    if faults:
        raise SettingsError(file, tuple(faults))
    return value


def _value(node: yaml.Node, at: Trail, faults: list[FieldError]) -> Any:
    if len(at) > MAX_DEPTH:
        raise RecursionError
    if node.tag.removeprefix("tag:yaml.org,2002:") not in _TAGS:
        faults.append(FieldError(dotted(at), f"the tag '{shown(node.tag)}' has no meaning here", "write a plain value"))
        return None
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, at, faults)
    if isinstance(node, yaml.SequenceNode):
        return [_value(member, (*at, index), faults) for index, member in enumerate(node.value)]
    return plain(node.value) if getattr(node, "style", None) is None else node.value


def _mapping(node: yaml.MappingNode, at: Trail, faults: list[FieldError]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key, member in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            faults.append(FieldError(dotted(at), f"line {line}: a key must be a plain word"))
            continue
        name = key.value
        if name in value:
            message = f"stands twice (lines {lines[name]} and {line})"
            faults.append(FieldError(dotted((*at, name)), message, "remove one of them"))
        lines[name] = line
        value[name] = _value(member, (*at, name), faults)
    return value


def plain(text: str) -> Any:
    """An unquoted YAML scalar by YAML 1.2's core schema, without its octal, hexadecimal and infinite numbers.

    YAML 1.1 as most libraries read it makes `no` false, `010` eight and `1:30` ninety: surprises in a settings file.
    """
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return text[0] in "tT"
    if re.fullmatch(r"[-+]?(0|[1-9][0-9]{0,30})", text):
        return int(text)
    if re.fullmatch(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?", text):
        return float(text)
    return text
