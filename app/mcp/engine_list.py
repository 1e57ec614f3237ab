"""The engines that a caller may use, described for a model: their methods and the fields that filters can name. Pure.

Separate from the tools, since it only reshapes the result of `catalog/list`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from app.mcp.rendering import quoted

MAX_FIELDS = 200
"""Filter fields that are named of one engine."""

Entry = dict[str, Any]


def listed(catalog: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """One entry for each engine of `catalog/list` (RCP §7.13)."""
    return [_entry(engine) for engine in catalog]


def lines(entries: Sequence[Entry]) -> str:
    """The same for a model: an engine a line, and quoted what the engine itself says."""
    if not entries:
        return "There is no engine that you may use now."
    return "\n\n".join([f"{len(entries)} engine{'' if len(entries) == 1 else 's'}.", *map(_paragraph, entries)])


def _entry(engine: Mapping[str, Any]) -> Entry:
    capabilities: Mapping[str, Any] = engine["capabilities"]
    entry: Entry = {"id": engine["id"], "name": engine["server"]["name"], "capabilities": sorted(capabilities)}
    retrieve = _object(capabilities, "retrieve")
    for key in ("modes", "maxK"):
        if key in retrieve:
            entry[key] = retrieve[key]
    said = _object(capabilities, "filter")
    fields = said.get("fields")
    if type(fields) is dict:
        entry["filterFields"] = dict(list(fields.items())[:MAX_FIELDS])
    elif type(fields) is list:
        entry["filterFields"] = dict.fromkeys(fields[:MAX_FIELDS], "keyword")
    if "operators" in said:
        entry["filterOperators"] = said["operators"]
    return entry


def _paragraph(entry: Entry) -> str:
    said = [f"name: {entry['name']}", f"can: {', '.join(map(str, entry['capabilities']))}"]
    if type(entry.get("modes")) is list:
        said.append(f"modes: {', '.join(map(str, entry['modes']))}")
    if entry.get("filterFields"):
        said.append("filter on: " + ", ".join(f"{name} ({kind})" for name, kind in entry["filterFields"].items()))
    return f"{entry['id']}\n{quoted(chr(10).join(said))}"


def _object(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = value.get(key)
    return inner if type(inner) is dict else {}
