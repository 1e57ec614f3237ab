"""Strict parsing of the configuration files: JSON for the registry, YAML for the others; and the line of each key.

Duplicate keys, NaN and other encodings than UTF-8 are errors. In YAML `no` is text, `010` is text, and tags are errors.
"""

import difflib
import json
import re
from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from app.settings.field_errors import FieldError, SettingsError, Trail, dotted, shown

MAX_DEPTH = 32
"""Levels of nesting in YAML. Deeper is an alias that refers to its own parent."""

_TAGS = frozenset({"str", "int", "float", "bool", "null", "timestamp", "merge", "value", "map", "seq"})
"""Tags that the library assigns itself; any other tag was written in the file."""


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
        return f"there is no directory '{path.parent}'"
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean '{path.with_name(close[0])}'?" if close else None


class _Doubled(dict[str, Any]):
    """A JSON object with duplicate keys."""

    doubled: tuple[str, ...] = ()


class _NotJson(str):
    """NaN, Infinity or -Infinity."""


def read_json(file: str, text: str) -> Any:
    """The value of a JSON text. Raises SettingsError with line and column, or the path of a duplicate key."""
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
    except ValueError:  # Python limits the digits of an int
        raise SettingsError(file, (FieldError("", "contains a number with too many digits"),)) from None
    if faults:
        raise SettingsError(file, locate(faults, text))
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
        yield from (FieldError(dotted((*at, name)), "duplicate key", "remove one of them") for name in value.doubled)
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
        return 'the file is empty; write at least {"engines": []}'
    if text.startswith("\ufeff"):
        return "save it as UTF-8 without a byte order mark"
    found = text[position : position + 1]
    if text[:position].rstrip().endswith(",") and found in ("}", "]", ","):
        return "remove the comma before it"
    if found in ("/", "#"):
        return "JSON has no comments"
    return "write names and text in double quotes" if found == "'" else None


def read_yaml(file: str, text: str) -> Any:
    """The value of a YAML text, None if it is empty. Raises SettingsError with line and column."""
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
            file, (FieldError("", "is not YAML: it contains a character that YAML does not allow"),)
        ) from None
    except RecursionError:
        raise SettingsError(file, (FieldError("", "is nested too deeply"),)) from None
    if faults:
        raise SettingsError(file, locate(faults, text))
    return value


def _value(node: yaml.Node, at: Trail, faults: list[FieldError]) -> Any:
    if len(at) > MAX_DEPTH:
        raise RecursionError
    if node.tag.removeprefix("tag:yaml.org,2002:") not in _TAGS:
        faults.append(FieldError(dotted(at), f"the tag '{shown(node.tag)}' is not supported", "write a plain value"))
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
            faults.append(FieldError(dotted(at), f"line {line}: a key must be plain text"))
            continue
        name = key.value
        if name in value:
            message = f"duplicate key (lines {lines[name]} and {line})"
            faults.append(FieldError(dotted((*at, name)), message, "remove one of them"))
        lines[name] = line
        value[name] = _value(member, (*at, name), faults)
    return value


def plain(text: str) -> Any:
    """An unquoted YAML scalar by YAML 1.2's core schema, without its octal, hexadecimal and infinite numbers.

    YAML 1.1, which most libraries implement, reads `no` as false, `010` as eight and `1:30` as ninety.
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


def locate(faults: Iterable[FieldError], text: str) -> tuple[FieldError, ...]:
    """`faults` with the line of their key in `text`, and in a registry with the id of the engine.

    A fault about a missing key gets the line of the object that lacks it. Called only when there is something to
    report, so the text is parsed a second time rather than keeping positions for every load.
    """
    lines, ids = _positions(text)
    found = []
    for fault in faults:
        place = fault.path
        while place and place not in lines:
            place = re.sub(r"(^|\.)[^.\[]*$|\[[^\[]*$", "", place)
        index = re.match(r"engines\[(\d+)\]", fault.path)
        engine = ids.get(int(index[1])) if index else None
        found.append(replace(fault, line=lines.get(place), engine=engine))
    return tuple(found)


def _positions(text: str) -> tuple[dict[str, int], dict[int, str]]:
    """Path of every key and list item -> its line; and index in `engines` -> engine id, for a JSON registry."""
    try:
        value, found = json.loads(text), dict(_json_positions(text))
    except RecursionError:
        return {}, {}
    except ValueError:
        return _yaml_positions(text), {}
    starts = [match.end() for match in re.finditer("\n", text)]
    lines = {dotted(at): bisect_right(starts, position) + 1 for at, position in found.items()}
    engines = value.get("engines") if isinstance(value, dict) else None
    entries = enumerate(engines if isinstance(engines, list) else [])
    names = {index: entry.get("id") for index, entry in entries if isinstance(entry, dict)}
    return lines, {index: shown(name) for index, name in names.items() if isinstance(name, str)}


def _json_positions(text: str) -> Iterator[tuple[Trail, int]]:
    """(path, offset) of every key and list item of a valid JSON text, which json.loads does not give."""
    scalar, blank = json.JSONDecoder().raw_decode, re.compile(r"[\s,:]*")

    def skip(at: int) -> int:
        found = blank.match(text, at)
        return found.end() if found else at

    def walk(trail: Trail, at: int) -> Generator[tuple[Trail, int], None, int]:
        if text[at] not in "{[":
            return scalar(text, at)[1]
        closing, index = ("}" if text[at] == "{" else "]"), 0
        at = skip(at + 1)
        while text[at] != closing:
            start, part = at, index
            if closing == "}":
                part, at = scalar(text, at)
                at = skip(at)
            yield (*trail, part), start
            at = skip((yield from walk((*trail, part), at)))
            index += 1
        return at + 1

    yield from walk((), skip(0))


def _yaml_positions(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    seen: set[int] = set()

    def walk(node: yaml.Node | None, at: Trail) -> None:
        if id(node) in seen:  # an alias: its lines are those of the anchor
            return
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for key, member in node.value:
                if isinstance(key, yaml.ScalarNode):
                    found[dotted((*at, key.value))] = key.start_mark.line + 1
                    walk(member, (*at, key.value))
        elif isinstance(node, yaml.SequenceNode):
            for index, member in enumerate(node.value):
                found[dotted((*at, index))] = member.start_mark.line + 1
                walk(member, (*at, index))

    try:
        walk(yaml.compose(text, Loader=yaml.SafeLoader), ())
    except (yaml.YAMLError, RecursionError):
        return {}
    return found
