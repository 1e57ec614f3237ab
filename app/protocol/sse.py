"""Server-sent events (RCP §5.2, §9): whether an `Accept` header asks for them, and the format of a frame."""

import re
from typing import Final

MEDIA_TYPE: Final = "text/event-stream"

EVENTS: Final = frozenset({MEDIA_TYPE})
JSON_TYPES: Final = frozenset({"application/json", "application/*", "*/*"})
"""Media ranges that JSON satisfies."""

COMMENT: Final = b": keep-alive\n\n"
"""Keeps proxies from closing a quiet stream."""

# A quoted string may hold any separator; one that never ends reaches to the end, so that nothing is tried twice.
_QUOTED: Final = r'"(?:[^"\\]|\\.)*"?'
_RANGES: Final = re.compile(rf'(?:[^,"]|{_QUOTED})+', re.DOTALL)
_PARTS: Final = re.compile(rf'(?:[^;"]|{_QUOTED})+', re.DOTALL)
_WEIGHT: Final = re.compile(r"0?\.\d*[1-9]\d*|1(?:\.0*)?")
"""A weight above 0."""


def accepted(header: bytes, names: frozenset[str] = EVENTS) -> bool:
    """Whether an `Accept` header (RFC 9110 §12.5.1; several of them joined by commas) names one of these media types.

    By default, whether it asks for events. The header must name that type: `*/*` gets JSON. A range with `q=0` or an
    invalid weight does not count.
    """
    text = header.lower().decode("latin-1")
    if not any(name in text for name in names):
        return False
    return any(_accepts(media_range, names) for media_range in _RANGES.findall(text))


def frame(message: bytes) -> bytes:
    """One JSON-RPC message as an event: one `data:` line and a blank line. The message is compact JSON, so one line."""
    return b"data: " + message + b"\n\n"


def _accepts(media_range: str, names: frozenset[str]) -> bool:
    name, *parameters = _PARTS.findall(media_range)
    if name.strip() not in names:
        return False
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            return _WEIGHT.fullmatch(value.strip()) is not None
    return True
