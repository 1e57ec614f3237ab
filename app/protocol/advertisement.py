"""An engine's advertisement (RCP §6), read once per handshake into values that the planner compares quickly.

Presence means supported. Reading is tolerant: an unknown key is kept, a malformed field counts as not stated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from app.protocol.errors import ProtocolViolation
from app.protocol.filters import FIELD_TYPES
from app.protocol.method_names import PROTOCOL_VERSION
from app.protocol.retrieve_params import FUSION_METHODS, MODALITIES, MODES, RERANK_METHODS, TRANSFORM_METHODS, UNITS
from app.protocol.validators import Shape, either, flag, mapping, number, one_of, reshaped, several, text, whole

MAX_DESCRIPTION: Final = 2000
"""Characters of an engine's description of itself that are kept."""

_COUNT: Final = whole(1)
_MODALITIES: Final = several(one_of(*MODALITIES))

_FIELDS: Final[Mapping[str, Mapping[str, Shape]]] = MappingProxyType(
    {
        "embed": {
            "dimension": _COUNT,
            "identity": text,
            "batchLimit": _COUNT,
            "normalized": flag,
            "modalities": _MODALITIES,
            "encodings": several(text),
        },
        "sparseEmbed": {"identity": text, "vocabulary": _COUNT},
        "multiVector": {
            "dimension": _COUNT,
            "identity": text,
            "similarity": one_of("dot", "cosine"),
            "modalities": _MODALITIES,
        },
        "rerank": {"methods": several(one_of(*RERANK_METHODS)), "maxCandidates": _COUNT, "models": several(text)},
        "retrieve": {
            "maxK": _COUNT,
            "modes": several(one_of(*MODES)),
            "modalities": _MODALITIES,
            "fusion": several(one_of(*FUSION_METHODS)),
            "mmr": flag,
            "rerankBuiltin": flag,
            "deterministic": flag,
            "snapshots": flag,
            "units": several(one_of(*UNITS)),
            "levels": _COUNT,
            "tokenBudget": flag,
            "confidence": flag,
            "scoreScale": one_of("cosine", "dot", "bm25", "probability", "unbounded"),
            "scoreFloor": number,
            "defaultMode": one_of(*MODES),
        },
        "transform": {"methods": several(one_of(*TRANSFORM_METHODS))},
        "graph": {"ops": several(text)},
        "index": {"writable": flag, "chunking": flag, "contextual": flag},
        "session": {"dedup": flag, "ttlSeconds": whole(0)},
        "feedback": {},
        "memory": {"scopes": several(one_of("global", "session")), "clues": flag},
        "filter": {"fields": either(several(text), mapping(text)), "operators": several(text)},
        "streaming": {},
        "pagination": {},
        "citations": {},
        "log": {"levels": several(text)},
        "catalog": {},
    }
)
"""Capability of RCP (§6) -> the shapes of its fields. A field with another shape counts as not stated."""


@dataclass(frozen=True, slots=True)
class RetrieveOffer:
    """The `retrieve` capability of one engine. An empty set means: nothing stated, so nothing may be demanded."""

    max_k: int | None = None
    modes: frozenset[str] = frozenset()
    modalities: frozenset[str] = frozenset({"text"})
    units: frozenset[str] = frozenset()
    fusion: frozenset[str] = frozenset()
    levels: int | None = None
    mmr: bool = False
    rerank_builtin: bool = False
    confidence: bool = False
    deterministic: bool = False
    snapshots: bool = False
    score_floor: float | None = None


@dataclass(frozen=True, slots=True)
class Advertisement:
    """One engine's last known answer to `initialize` or `info` (RCP §7.1, §7.2)."""

    server: Mapping[str, Any]
    capabilities: Mapping[str, Any]
    """As the engine sent them, unknown keys included; what has another shape than RCP's is left out."""
    gateway_id: str | None = None
    """Its identity in `_meta.federation.path` if the engine is itself a gateway."""
    conformance: str | None = None
    """The level it claims for itself (RCP §14)."""
    retrieve: RetrieveOffer | None = None
    filter_fields: Mapping[str, str | None] = field(default_factory=dict)
    """Filterable field -> its type, or None where the engine lists names only, or says what is no type of RCP."""
    filter_operators: frozenset[str] | None = None
    """None: the engine does not restrict them."""
    description: str = ""
    """What the engine says about itself in `server.description`, shortened."""

    def offers(self, capability: str) -> bool:
        """Whether `capability` is present: `{}` counts, null does not, and `false` is taken at its word."""
        value = self.capabilities.get(capability)
        return value is not None and value is not False


def read_advertisement(result: Mapping[str, Any]) -> Advertisement:
    """The result of `initialize` or `info` made an Advertisement. Raises ProtocolViolation if it is neither."""
    version = result.get("protocolVersion")
    if type(version) is not int or version < 1:
        raise ProtocolViolation(f"the handshake names no usable protocolVersion (we speak {PROTOCOL_VERSION})")
    capabilities = result.get("capabilities")
    if type(capabilities) is not dict:
        raise ProtocolViolation("the handshake result has no 'capabilities' object")
    server = result.get("server")
    name = server.get("name") if type(server) is dict else None
    server_version = server.get("version") if type(server) is dict else None
    meta = result.get("_meta")
    meta = meta if type(meta) is dict else {}
    level = meta.get("conformance")
    gateway = meta.get("x-gateway")
    gateway_id = gateway.get("id") if type(gateway) is dict else None
    filters = capabilities.get("filter")
    filters = filters if type(filters) is dict else {}
    operators = filters.get("operators")
    stated = well_formed(capabilities)
    return Advertisement(
        server={
            "name": name if type(name) is str else "unknown",
            "version": server_version if type(server_version) is str else "0",
        },
        capabilities=stated,
        gateway_id=gateway_id if type(gateway_id) is str else None,
        conformance=level if type(level) is str else None,
        retrieve=_read_retrieve(stated.get("retrieve")),
        filter_fields=_read_fields(filters.get("fields")),
        filter_operators=_strings(operators) if type(operators) is list else None,
        description=_description(server),
    )


def _description(server: Any) -> str:
    text = server.get("description") if type(server) is dict else None
    return text[:MAX_DESCRIPTION] if type(text) is str else ""


def _read_retrieve(offer: Any) -> RetrieveOffer | None:
    if offer is None or offer is False:
        return None
    if type(offer) is not dict:
        return RetrieveOffer()
    floor = offer.get("scoreFloor")
    return RetrieveOffer(
        max_k=_positive(offer.get("maxK")),
        modes=_strings(offer.get("modes")),
        modalities=_strings(offer.get("modalities")) or frozenset({"text"}),
        units=_strings(offer.get("units")),
        fusion=_strings(offer.get("fusion")),
        levels=_positive(offer.get("levels")),
        mmr=offer.get("mmr") is True,
        rerank_builtin=offer.get("rerankBuiltin") is True,
        confidence=offer.get("confidence") is True,
        deterministic=offer.get("deterministic") is True,
        snapshots=offer.get("snapshots") is True,
        score_floor=float(floor) if type(floor) is int or type(floor) is float else None,
    )


def _read_fields(fields: Any) -> dict[str, str | None]:
    if type(fields) is dict:
        return {name: kind if type(kind) is str and kind in FIELD_TYPES else None for name, kind in fields.items()}
    if type(fields) is list:
        return {name: None for name in fields if type(name) is str}
    return {}


def _strings(value: Any) -> frozenset[str]:
    return frozenset(item for item in value if type(item) is str) if type(value) is list else frozenset()


def _positive(value: Any) -> int | None:
    return value if type(value) is int and value >= 1 else None


def well_formed(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """The capabilities that are present, without malformed fields; unknown capabilities are kept (RCP §4.4).

    A capability whose value is neither an object, null nor false is present with no fields.
    """
    return {
        name: _stated(offer, _FIELDS[name]) if name in _FIELDS else offer
        for name, offer in capabilities.items()
        if name not in _FIELDS or (offer is not None and offer is not False)
    }


def _stated(offer: Any, fields: Mapping[str, Shape]) -> dict[str, Any]:
    return reshaped(offer, fields) if type(offer) is dict else {}
