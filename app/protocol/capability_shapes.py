"""The shape of every capability that RCP knows (RCP §6), as engines may state it.

What has another shape counts as not stated, so that nobody who reads an advertisement meets a value of a wrong type,
and none is advertised on. Presence stays support, whatever the value. Capabilities that RCP does not know are kept.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from app.protocol.retrieve_params import FUSION_METHODS, MODALITIES, MODES, RERANK_METHODS, TRANSFORM_METHODS, UNITS
from app.protocol.validators import Shape, either, flag, mapping, number, one_of, reshaped, several, text, whole

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
"""Capability -> its fields."""


def well_formed(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """The capabilities that are present, with what counts of each: `{}` where the value is no object, but something."""
    return {
        name: _stated(offer, _FIELDS[name]) if name in _FIELDS else offer
        for name, offer in capabilities.items()
        if name not in _FIELDS or (offer is not None and offer is not False)
    }


def _stated(offer: Any, fields: Mapping[str, Shape]) -> dict[str, Any]:
    return reshaped(offer, fields) if type(offer) is dict else {}
