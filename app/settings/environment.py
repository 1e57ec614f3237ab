"""Environment variables: overrides of `gateway.yaml`, and `${NAME}` in the registry's header values.

Messages never contain the value of a variable.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from app.settings.field_errors import FieldError, SettingsError, dotted, shown
from app.settings.fields import without_annotations
from app.settings.file_syntax import read_yaml

PREFIX = "RCP_GATEWAY__"

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SHELL_SCRIPT = re.compile(r"-[a-z]*c")
_VARIABLE = re.compile(
    r"(?:^|[\s=:/@,\"'])"  # a variable stands at the beginning of a word; `pa$$word` is a secret, not a variable
    r"(?:\$[A-Za-z_]\w*|\$\{|\$\(|%[A-Za-z_]\w*%|\{\{|\$env:)"
)
"""Variable syntax of shells, Windows, PowerShell and templates."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """Settings given by environment variables, by their path of keys, and faults in them."""

    values: dict[tuple[str, ...], Any] = field(default_factory=dict)
    origins: dict[tuple[str, ...], str] = field(default_factory=dict)
    """Path of keys -> the variable that set it."""
    faults: list[FieldError] = field(default_factory=list)


def read_overrides(environ: Mapping[str, str], model: type[BaseModel]) -> Overrides:
    """Read `RCP_GATEWAY__SECTION__KEY`. Values are parsed as YAML, except where the setting is a text."""
    found = Overrides()
    for name in sorted(environ):
        if name.startswith(PREFIX):
            keys = tuple(name[len(PREFIX) :].lower().split("__"))
            annotation = _setting(model, keys)
            if annotation is None:
                found.faults.append(FieldError(shown(name), "there is no such setting", _closest(name, model)))
            else:
                found.values[keys] = environ[name].strip() if _is_text(annotation) else _parsed(environ[name])
                found.origins[keys] = name
    return found


def apply(overrides: Overrides, document: dict[str, Any]) -> None:
    """Put the overrides into `document`. A section of the wrong type is left for validation to report."""
    for keys, value in overrides.values.items():
        section: Any = document
        for key in keys[:-1]:
            section = section.setdefault(key, {}) if isinstance(section, dict) else None
        if isinstance(section, dict):
            section[keys[-1]] = value


def fill_headers(document: Any, environ: Mapping[str, str]) -> tuple[Any, list[FieldError]]:
    """A copy of the registry with `${NAME}` in header values replaced, and a fault for each that cannot be replaced.

    White space around a variable's value is removed. A `$` that is not followed by `{` is kept.
    """
    faults: list[FieldError] = []
    engines = document.get("engines") if isinstance(document, dict) else None
    if not isinstance(engines, list):
        return document, faults
    filled = [_filled_entry(entry, index, environ, faults) for index, entry in enumerate(engines)]
    return {**document, "engines": filled}, faults


def references_in_headers(document: Any) -> Iterator[tuple[str, str]]:
    """Place and name of each `${NAME}` in header values of the registry, whether or not the variable exists."""
    engines = document.get("engines") if isinstance(document, dict) else None
    for index, entry in enumerate(engines if isinstance(engines, list) else []):
        headers = entry.get("headers") if isinstance(entry, dict) else None
        for header, value in headers.items() if isinstance(headers, dict) else ():
            for name in _REFERENCE.findall(value) if isinstance(value, str) else ():
                yield dotted(("engines", index, "headers", header)), name


def stray_references(document: Any) -> list[FieldError]:
    """A fault for each `${NAME}` in the registry outside header values, where it is not replaced.

    The argument after `sh -c` is exempt, since the shell replaces it.
    """
    engines = document.get("engines") if isinstance(document, dict) else None
    faults: list[FieldError] = []
    for index, entry in enumerate(engines if isinstance(engines, list) else []):
        if isinstance(entry, dict):
            for key, value in without_annotations(entry).items():
                if key != "headers":
                    _find_references(value, ("engines", index, key), faults)
    return faults


def literal_variables(written: Any) -> list[FieldError]:
    """A warning for each text of the registry that looks like a variable and is not replaced."""
    found: list[FieldError] = []
    for index, entry in enumerate(written["engines"]):
        # A command may be a shell script with variables of its own. `${NAME}` is replaced in headers, and an error
        # elsewhere, so only other syntax is left to warn about.
        kept = {key: value for key, value in without_annotations(entry).items() if key != "command"}
        kept["headers"] = {name: _REFERENCE.sub("", text) for name, text in kept.get("headers", {}).items()}
        found += unexpanded_variables(kept, ("engines", index), "in a header value write ${NAME}")
    return found


def unexpanded_variables(value: Any, at: tuple[str | int, ...], advice: str) -> Iterator[FieldError]:
    """A warning for each text below `value` that looks like a variable which nobody replaces. Never quotes the text."""
    if isinstance(value, str) and _VARIABLE.search(value):
        yield FieldError(dotted(at), "looks like a variable, but is used as it is written", advice)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from unexpanded_variables(inner, (*at, str(key)), advice)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from unexpanded_variables(inner, (*at, index), advice)


def _find_references(value: Any, at: tuple[str | int, ...], faults: list[FieldError]) -> None:
    if isinstance(value, str) and (found := _REFERENCE.search(value)):
        advice = f'or leave it to a shell: ["sh", "-c", "exec program {found[0]}"]' if "command" in at else ""
        message = f"{found[0]} is not replaced here, only in header values"
        faults.append(FieldError(dotted(at), message, f"write the value itself{advice and ', '}{advice}"))
    elif isinstance(value, dict):
        for key, inner in without_annotations(value).items():
            _find_references(inner, (*at, str(key)), faults)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            if not (index and isinstance(value[index - 1], str) and _SHELL_SCRIPT.fullmatch(value[index - 1])):
                _find_references(inner, (*at, index), faults)


def _filled_entry(entry: Any, index: int, environ: Mapping[str, str], faults: list[FieldError]) -> Any:
    headers = entry.get("headers") if isinstance(entry, dict) else None
    if not isinstance(headers, dict):
        return entry
    filled: dict[str, Any] = {}
    for name, value in headers.items():
        if isinstance(value, str):
            found = [_reference_fault(reference, environ) for reference in re.findall(r"\$\{[^}]*\}?", value)]
            where = dotted(("engines", index, "headers", name))
            faults.extend(FieldError(where, *fault) for fault in found if fault)
            value = _REFERENCE.sub(lambda match: environ.get(match[1], "").strip(), value)
        filled[name] = value
    return {**entry, "headers": filled}


def _reference_fault(reference: str, environ: Mapping[str, str]) -> tuple[str, str] | None:
    name = _REFERENCE.fullmatch(reference)
    if name is None:  # the text is not quoted: it may be a secret
        return "'${' is not followed by a variable name and '}'", "write ${NAME} with letters, digits and _"
    if name[1] not in environ:
        return f"the environment variable {name[1]} is not set", f"set {name[1]} before the start"
    value = environ[name[1]].strip()  # a secret read from a file or `echo` ends with a newline
    if not value:
        return f"the environment variable {name[1]} is empty", f"set {name[1]} before the start"
    if _CONTROL.search(value):
        return (
            f"the environment variable {name[1]} contains a control character, which is not allowed in a header",
            f"set {name[1]} to one line of printable characters",
        )
    return None


def _setting(model: type[BaseModel], keys: tuple[str, ...]) -> Any:
    """The annotation of the setting at `keys`; None if there is none, or if it is a section."""
    annotation: Any = model
    for key in keys:
        fields = annotation.model_fields if _is_section(annotation) else {}
        if key not in fields:
            return None
        annotation = fields[key].annotation
    return None if _is_section(annotation) else annotation


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _is_text(annotation: Any) -> bool:
    if get_origin(annotation) is Literal:
        return all(isinstance(choice, str) for choice in get_args(annotation))
    return annotation is str or str in get_args(annotation)


def _parsed(text: str) -> Any:
    try:
        return read_yaml("", text)
    except SettingsError:
        return text  # validation reports what was expected


def _names(model: type[BaseModel], prefix: str) -> list[str]:
    names: list[str] = []
    for key, info in model.model_fields.items():
        name, annotation = prefix + key.upper(), info.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            names.extend(_names(annotation, f"{name}__"))
        else:
            names.append(name)
    return names


def _closest(name: str, model: type[BaseModel]) -> str:
    close = difflib.get_close_matches(name.upper(), _names(model, PREFIX), n=1, cutoff=0.8)
    return f"did you mean {close[0]}?" if close else f"the form is {PREFIX}SECTION__KEY"
