"""The merged advertisement: what all engines offer, stated as if they were one server (RCP §6, §16.4). Pure.

Independent of the order of the registry: engines are ordered by priority (highest first), then by id. Health does
not matter: configuration and the last handshake count (decision 2).
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from app.protocol.advertisement import Advertisement
from app.protocol.filters import OPERATORS
from app.protocol.retrieve_params import LOG_LEVELS

EVERY_EXTENSION = "x-*"
"""In `routable`: vendor extensions are routed."""

ALL_MODES = frozenset({"dense", "sparse", "hybrid"})
BEYOND_RETRIEVAL = frozenset({"rerank", "multiVector", "graph", "transform"})
DELIVERY = frozenset({"streaming", "pagination"})

UNTYPED = "keyword"
"""The type stated for a field whose engines list only names, in a map where others have types: every type can be
compared exactly. Requests are routed by what each engine states, so nothing that such an engine accepts is refused."""

_NUMBERS = frozenset({"int", "float"})

_Rule = Callable[[Sequence[Any]], Any]
"""The engines' values for one key (None where an engine states nothing) -> ours; None or False omits the key."""


@dataclass(frozen=True, slots=True)
class EngineOffer:
    """What one engine of the registry last advertised; None before its first handshake."""

    id: str
    priority: int
    advertisement: Advertisement | None
    writer: bool = False
    """Whether the registry flags it as the default writer."""


def precedence(writer: bool, priority: int, engine_id: str) -> tuple[bool, int, str]:
    """Sort key for the default writer: the smallest is the default."""
    return not writer, -priority, engine_id


def merge(
    offers: Sequence[EngineOffer],
    *,
    max_k: int,
    routable: frozenset[str],
    ours: Mapping[str, Any],
    session_seconds: int = 1800,
) -> dict[str, Any]:
    """Merge the engines' capabilities with what the gateway does itself (`ours`: fields of `retrieve`).

    `session_seconds`: how long the gateway remembers a session.

    | key | rule |
    |---|---|
    | `catalog` | always; `engines` = how many are listed |
    | `retrieve` | if any engine retrieves; only those count below |
    | … `maxK` | the largest, and no more than `max_k`; an engine that states none has no bound of its own |
    | … `modes`, `modalities`, `units` | union; an engine without `modalities` takes text |
    | … `levels` | the largest |
    | … `mmr`, `rerankBuiltin`, `confidence` | if any; `rerankBuiltin` also if the gateway reranks (`ours`) |
    | … `deterministic`, `snapshots` | only if all |
    | … `defaultMode` | only if all agree |
    | … `scoreFloor` | 0: scores are on the gateway's scale |
    | … `fusion` and whatever else is in `ours` | as given |
    | `filter` | if any retrieving engine has a field to filter on |
    | … `fields` | union, see `_merge_fields`; a list if no engine gives types |
    | … `operators` | union of RCP's own; an engine that states none allows all ten |
    | `citations` | if any retrieving engine has it, also inside `retrieve` |
    | `streaming`, `log`, `pagination`, `session` | if any engine retrieves: implemented by the gateway itself |
    | `embed`, `sparseEmbed`, `multiVector` | the first engine's value as it is, embedding spaces are never mixed |
    | `rerank`, `transform`, `graph`, `memory`, `feedback` | lists: union; numbers: largest; flags: if any |
    | `index` | that of the default writer among the engines that may be written to, as far as RCP knows it |
    | `x-*` | the first engine's value as it is |
    | anything else, and what is not `routable` | not advertised; `catalog/list` carries it |

    Unions keep the order of first appearance, by priority, then id.
    """
    ranked = [advertisement for _, advertisement in _ranked(offers)]
    retrieving = [advertisement for advertisement in ranked if advertisement.retrieve is not None]
    merged: dict[str, Any] = {}
    if retrieving:
        merged["retrieve"] = _merge_retrieve(retrieving, max_k, ours)
        merged["filter"] = _merge_filter(offers, retrieving)
        merged["citations"] = {} if any(_cites(advertisement) for advertisement in retrieving) else None
        merged |= {
            "streaming": {},
            "log": {"levels": list(LOG_LEVELS)},
            "pagination": {},
            "session": {"dedup": True, "ttlSeconds": session_seconds},
        }
    for key in _ONE_ENGINES:
        merged[key] = next((_object(offer.capabilities[key]) for offer in ranked if offer.offers(key)), None)
    for key, rules in _JOINED.items():
        stated = [_object(offer.capabilities[key]) for offer in ranked if offer.offers(key)]
        merged[key] = _joined(stated, rules) if stated else None
    merged["index"] = _index(offers)
    advertised = {key: value for key, value in merged.items() if value is not None and key in routable}
    if EVERY_EXTENSION in routable:
        advertised.update(_extensions(ranked))
    return {**advertised, "catalog": {"engines": len(ranked)}}


def excluded_fields(offers: Sequence[EngineOffer]) -> dict[str, frozenset[str]]:
    """Engine id -> filter fields it must not be asked for, because its type for them is not the merged one."""
    return _merge_fields(offers)[1]


def conformance(capabilities: Mapping[str, Any]) -> str:
    """The conformance level (RCP §14) that these capabilities prove; L0 if they prove none."""
    modes = _union([_object(capabilities.get("retrieve")).get("modes")]) or ()
    if not ALL_MODES.issubset(modes) or "filter" not in capabilities or "citations" not in capabilities:
        return "L0"
    return "L2" if BEYOND_RETRIEVAL & capabilities.keys() and DELIVERY & capabilities.keys() else "L1"


def catalog_entries(
    offers: Sequence[EngineOffer], public_url: str | None = None, discovered: Container[str] = ()
) -> list[dict[str, Any]]:
    """`engines` of `catalog/list` (RCP §7.13): every engine that has completed a handshake, with its capabilities.

    If the gateway has a `public_url`, each entry has an endpoint for that engine alone. Engines that were discovered
    through another gateway are marked, so that gateways that discover each other do not repeat them for ever.
    """
    entries: list[dict[str, Any]] = []
    for engine_id, advertisement in _ranked(offers):
        entry: dict[str, Any] = {
            "id": engine_id,
            "server": dict(advertisement.server),
            "capabilities": advertisement.capabilities,
        }
        if public_url is not None:
            entry["endpoint"] = {"transport": "http", "url": f"{public_url}/engines/{engine_id}/rcp"}
        if engine_id in discovered:
            entry["x-gateway"] = {"discovered": True}
        entries.append(entry)
    return entries


def info(
    *, protocol_version: int, name: str, version: str, capabilities: Mapping[str, Any], gateway: Mapping[str, Any]
) -> dict[str, Any]:
    """The result of `initialize` and `info` (RCP §7.1, §7.2); `gateway` is `_meta["x-gateway"]`."""
    return {
        "protocolVersion": protocol_version,
        "server": {"name": name, "version": version},
        "capabilities": capabilities,
        "_meta": {"conformance": conformance(capabilities), "x-gateway": gateway},
    }


def _union(values: Sequence[Any]) -> list[str] | None:
    seen = {item: None for value in values if type(value) is list for item in value if type(item) is str}
    return list(seen) or None


def _largest(values: Sequence[Any]) -> int | None:
    return max((value for value in values if type(value) is int and value >= 1), default=None)


def _any(values: Sequence[Any]) -> bool:
    return any(value is True for value in values)


def _all(values: Sequence[Any]) -> bool:
    return all(value is True for value in values)


def _agreed(values: Sequence[Any]) -> str | None:
    # An engine that states nothing does not agree.
    first = values[0]
    return first if type(first) is str and all(value == first for value in values) else None


_RETRIEVE: Mapping[str, _Rule] = MappingProxyType(
    {
        "modes": _union,
        "modalities": _union,
        "units": _union,
        "levels": _largest,
        "mmr": _any,
        "rerankBuiltin": _any,
        "confidence": _any,
        "deterministic": _all,
        "snapshots": _all,
        "defaultMode": _agreed,
    }
)

_ONE_ENGINES = ("embed", "sparseEmbed", "multiVector")

_JOINED: Mapping[str, Mapping[str, _Rule]] = MappingProxyType(
    {
        "rerank": {"methods": _union, "maxCandidates": _largest, "models": _union},
        "transform": {"methods": _union},
        "graph": {"ops": _union},
        "memory": {"scopes": _union, "clues": _any},
        "feedback": {},
    }
)


def _ranked(offers: Iterable[EngineOffer]) -> list[tuple[str, Advertisement]]:
    """Engines that have completed a handshake, by priority (highest first), then by id."""
    known = [(offer.priority, offer.id, offer.advertisement) for offer in offers if offer.advertisement is not None]
    return [
        (engine_id, advertisement)
        for _, engine_id, advertisement in sorted(known, key=lambda offer: (-offer[0], offer[1]))
    ]


def _index(offers: Iterable[EngineOffer]) -> dict[str, Any] | None:
    """The index that a write without a namespace can rely on: the one of the default writer.

    An index that states nothing is writable.
    """
    # The index with the smallest precedence is that of the default writer.
    writable: list[tuple[tuple[bool, int, str], Mapping[str, Any]]] = []
    for offer in offers:
        advertisement = offer.advertisement
        if advertisement is not None and advertisement.offers("index"):
            index = {"writable": True, **_object(advertisement.capabilities["index"])}
            # An index that states nothing is writable (RCP §7.10).
            if index["writable"] is not False:
                writable.append((precedence(offer.writer, offer.priority, offer.id), index))
    if not writable:
        return None
    _, first = min(writable, key=lambda ranked: ranked[0])
    return _joined([first], {"writable": _any, "chunking": _any, "contextual": _any})


def _joined(stated: Sequence[Mapping[str, Any]], rules: Mapping[str, _Rule]) -> dict[str, Any]:
    joined = {key: rule([value.get(key) for value in stated]) for key, rule in rules.items()}
    return {key: value for key, value in joined.items() if value is not None and value is not False}


def _merge_retrieve(retrieving: Sequence[Advertisement], max_k: int, ours: Mapping[str, Any]) -> dict[str, Any]:
    bounds = [offer.retrieve.max_k for offer in retrieving if offer.retrieve is not None]
    # An engine without `maxK` has no limit of its own.
    largest = max_k if None in bounds else max(bound for bound in bounds if bound is not None)
    stated = [dict(_object(offer.capabilities["retrieve"])) for offer in retrieving]
    for advertisement in stated:
        advertisement["modalities"] = _union([advertisement.get("modalities")]) or ["text"]
    return {"maxK": min(largest, max_k), **_joined(stated, _RETRIEVE), "scoreFloor": 0, **ours}


def _merge_filter(offers: Sequence[EngineOffer], retrieving: Sequence[Advertisement]) -> dict[str, Any] | None:
    fields, _ = _merge_fields(offers)
    if not fields:
        return None
    filtering = [offer for offer in retrieving if offer.filter_fields]
    stated = [OPERATORS if offer.filter_operators is None else offer.filter_operators for offer in filtering]
    # A plain list of names if no engine states types, so that no type is invented.
    typed = any(kind is not None for kind in fields.values())
    return {
        "fields": {name: kind or UNTYPED for name, kind in fields.items()} if typed else list(fields),
        "operators": [operator for operator in OPERATORS if any(operator in allowed for allowed in stated)],
    }


def _merge_fields(offers: Sequence[EngineOffer]) -> tuple[dict[str, str | None], dict[str, frozenset[str]]]:
    """(field -> type, engine id -> its fields with another type).

    int and float become float. In any other conflict the first engine by priority and id wins, and engines with
    another type are not asked for the field; engines that state no type for it still are.
    """
    ranked = [
        (engine_id, advertisement) for engine_id, advertisement in _ranked(offers) if advertisement.retrieve is not None
    ]
    fields: dict[str, str | None] = {}
    for _, advertisement in ranked:
        for name, kind in advertisement.filter_fields.items():
            known = fields.get(name)
            # float includes int, so requests valid for either are accepted.
            both_numbers = known in _NUMBERS and kind in _NUMBERS and known != kind
            fields[name] = "float" if both_numbers else known or kind
    lost = {
        engine_id: frozenset(
            name for name, kind in advertisement.filter_fields.items() if not _agree(kind, fields[name])
        )
        for engine_id, advertisement in ranked
    }
    return fields, {engine_id: names for engine_id, names in lost.items() if names}


def _agree(kind: str | None, merged: str | None) -> bool:
    return kind is None or kind == merged or (kind in _NUMBERS and merged in _NUMBERS)


def _cites(offer: Advertisement) -> bool:
    """Whether its hits carry citations; some servers state so inside `retrieve`."""
    # Some servers advertise citations inside `retrieve`.
    inside = _object(offer.capabilities.get("retrieve")).get("citations")
    return offer.offers("citations") or (inside is not None and inside is not False)


def _extensions(ranked: Sequence[Advertisement]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for offer in ranked:
        for key, value in offer.capabilities.items():
            if key.startswith("x-") and offer.offers(key):
                # The first engine by priority wins; requests go to the same one.
                found.setdefault(key, value)
    return found


def _object(value: Any) -> Mapping[str, Any]:
    return value if type(value) is dict else {}
