"""Repair of JSON that the fast parser refuses. Pure.

Real engines cut emoji in half, write NaN, forget to escape control characters, or mix encodings. One invalid value must
not cost the other hits of a response: it is left out, with a line in `usage.notes`. Runs only after the fast parser
failed, and only for bodies small enough to parse in some tens of milliseconds.
"""

import json
import re
from collections import Counter
from typing import Any, Final

from app.protocol.parse_cost import is_heavy

MAX_LENIENT_BYTES: Final = 1_000_000
MAX_LENIENT_WEIGHT: Final = 100_000
"""A larger or heavier body would block the event loop for too long. At these limits it takes 20 to 75 ms."""

MAX_LENIENT_DEPTH: Final = 200
"""What nests deeper is cut off: the standard library's parser recurses, and answers are written no deeper."""

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"

_HALVES: Final = re.compile("[\ud800-\udfff]")

_IDENTIFIERS: Final = frozenset(
    {"id", "ids", "hitId", "docId", "memoryId", "seedIds", "nodes", "src", "dst", "uri", "nextCursor", "indexVersion"}
)
"""Members whose strings name something. With a character replaced they would name something else."""

# Possessive quantifiers: an unterminated string must not make the scan quadratic.
_BRACKETS: Final = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\Z)|[\[\]{}]', re.DOTALL)


class _Unusable:
    """Stands for a value that is left out."""

    def __repr__(self) -> str:
        return "<unusable>"


_UNUSABLE: Final = _Unusable()


Repairs = Counter[str]
"""What was changed -> how often."""

_IDENTIFIER: Final = "identifier(s) with broken characters left out"
_TEXT: Final = "text(s) with broken characters replaced"
_NUMBER: Final = "number(s) that JSON cannot say left out"
_NESTED: Final = "part(s) nested too deep cut off"


def repaired_answer(body: bytes | bytearray) -> Any:
    """An engine's message, cleaned, with a note in `result.usage.notes`. Raises ValueError if it is no JSON at all."""
    if len(body) > MAX_LENIENT_BYTES or is_heavy(body, MAX_LENIENT_WEIGHT):
        raise ValueError("too large to be repaired")
    repairs = Repairs()
    # Invalid bytes become lone surrogates here, and are treated as those that were written as escapes.
    text = body.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    if text.count("[") + text.count("{") > MAX_LENIENT_DEPTH:
        text = _cut_deep(text, repairs)
    try:
        message = json.loads(
            text, strict=False, parse_int=_integer, parse_float=_number, parse_constant=lambda _: _UNUSABLE
        )
    except RecursionError:
        raise ValueError("nested too deep") from None
    message = _cleaned(message, "", repairs)
    result = message.get("result") if type(message) is dict else None
    if type(result) is dict:
        changes = ", ".join(f"{count} {what}" for what, count in repairs.items())
        _add_note(result, f"the answer was not sound JSON: {changes or 'control characters or a byte order mark'}")
    return message


def read_with_halves(body: bytes) -> Any:
    """A caller's JSON that may hold halves of surrogate pairs (valid JSON, but no text). Raises ValueError."""
    try:
        return json.loads(
            body.decode("utf-8"), parse_constant=_refused, parse_int=_strict_integer, parse_float=_strict_number
        )
    except RecursionError:
        raise ValueError("nested too deep") from None


def without_halves(value: Any) -> Any:
    """`value` with U+FFFD for each half of a surrogate pair, and without the identifiers that hold one."""
    return _cleaned(value, "", Repairs())


def path_of_half(value: Any, path: str = "") -> str | None:
    """Where in `value` the first half of a surrogate pair stands, as `filter.value` or `signals[0].hitId`."""
    if type(value) is str:
        return path if _is_broken(value) else None
    if type(value) is list:
        members = [(f"{path}[{index}]", member) for index, member in enumerate(value)]
    elif type(value) is dict:
        members = [(f"{path}.{name}" if path else name, member) for name, member in value.items()]
        if any(map(_is_broken, value)):
            return path
    else:
        return None
    return next((found for place, member in members if (found := path_of_half(member, place)) is not None), None)


def _cleaned(value: Any, name: str, repairs: Repairs) -> Any:
    """`value` without what cannot be used; `name` is the member that holds it, or holds the array it is in."""
    kind = type(value)
    if kind is dict:
        members = {}
        for key, member in value.items():
            clean = _cleaned(member, key, repairs)
            if clean is not _UNUSABLE:
                members[_HALVES.sub(REPLACEMENT, key) if _is_broken(key) else key] = clean
        return members
    if kind is list:
        # An array keeps its length: what it lists may belong to other things by its place.
        cleaned = [_cleaned(member, name, repairs) for member in value]
        return [None if member is _UNUSABLE else member for member in cleaned]
    if value is _UNUSABLE:
        repairs[_NUMBER] += 1
    elif kind is str and _is_broken(value):
        if name in _IDENTIFIERS:
            repairs[_IDENTIFIER] += 1
            return _UNUSABLE
        repairs[_TEXT] += 1
        return _HALVES.sub(REPLACEMENT, value)
    return value


def _is_broken(text: str) -> bool:
    if text.isascii():
        return False
    try:
        text.encode()  # several times faster than a search
    except UnicodeEncodeError:
        return True
    return False


def _cut_deep(text: str, repairs: Repairs) -> str:
    """`text` with null for each object and array that nests deeper than MAX_LENIENT_DEPTH."""
    kept: list[str] = []
    depth = since = 0
    for found in _BRACKETS.finditer(text):
        mark = text[found.start()]
        if mark in "[{":
            depth += 1
            if depth == MAX_LENIENT_DEPTH + 1:
                kept.append(text[since : found.start()])
        elif mark in "]}":
            if depth == MAX_LENIENT_DEPTH + 1:
                kept.append("null")
                since = found.end()
                repairs[_NESTED] += 1
            depth -= 1
    if not repairs or depth:
        return text
    return "".join([*kept, text[since:]])


def _integer(digits: str) -> Any:
    """As the fast parser reads it: what does not fit into 64 bits is a float, too rough for an id."""
    if len(digits) < 19:
        return int(digits)
    number = _number(digits)
    if type(number) is float and -(2.0**63) <= number <= 2.0**64:
        exact = int(digits)
        return exact if -(2**63) <= exact < 2**64 else number
    return number


def _number(digits: str) -> Any:
    number = float(digits)
    return _UNUSABLE if number in (float("inf"), float("-inf")) else number


def _strict_integer(digits: str) -> Any:
    number = _integer(digits)
    return number if number is not _UNUSABLE else _refused(digits)


def _strict_number(digits: str) -> Any:
    number = _number(digits)
    return number if number is not _UNUSABLE else _refused(digits)


def _refused(text: str) -> Any:
    raise ValueError(f"{text[:20]} is no JSON")


def _add_note(result: dict[str, Any], note: str) -> None:
    usage = result.get("usage")
    usage = usage if type(usage) is dict else {}
    said = usage.get("notes")
    result["usage"] = {**usage, "notes": [note, *(said if type(said) is list else ())]}
