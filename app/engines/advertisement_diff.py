"""What changed between two advertisements of one engine, for the log: bounded, whatever the engine says.

Engines room. Pure. It refuses to know what a change means for requests.
"""

from collections.abc import Mapping
from typing import Any

from app.protocol.advertisement import Advertisement
from app.protocol.errors import clip

MAX_CHANGES = 20
MAX_VALUE = 80
MAX_DEPTH = 2
"""Capabilities and their fields; what lies deeper is compared as a whole."""


def difference(before: Advertisement, after: Advertisement) -> dict[str, Any]:
    """`server` if its name or version changed, and the capabilities that were `added`, `removed` and `changed`."""
    told: dict[str, Any] = {}
    if dict(before.server) != dict(after.server):
        told["server"] = f"{_server(before)} -> {_server(after)}"
    old, new = _flat(before.capabilities), _flat(after.capabilities)
    added, removed = sorted(new.keys() - old.keys()), sorted(old.keys() - new.keys())
    changed = [f"{key}: {old[key]} -> {new[key]}" for key in sorted(old.keys() & new.keys()) if old[key] != new[key]]
    for name, lines in (("added", added), ("removed", removed), ("changed", changed)):
        if lines:
            told[name] = [clip(line) for line in lines[:MAX_CHANGES]]
    return told


def _server(said: Advertisement) -> str:
    return clip(f"{said.server['name']} {said.server['version']}")


def _flat(value: Mapping[str, Any], prefix: str = "", depth: int = 1) -> dict[str, str]:
    """Dotted key -> value as text."""
    flat: dict[str, str] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping) and depth < MAX_DEPTH:
            flat[f"{prefix}{key}"] = "{}"
            flat |= _flat(inner, f"{prefix}{key}.", depth + 1)
        else:
            flat[f"{prefix}{key}"] = _shown(inner)
    return flat


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:  # it was read deeper than it can be written
        return "(too deep)"
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 1]}…"
