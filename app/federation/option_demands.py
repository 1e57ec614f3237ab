"""Which options of a `retrieve` an engine must honour, and whether its own advertisement allows them. Pure.

An option is routed, not diluted: an engine that cannot honour one is skipped (`strict`), or asked without it. What the
gateway does itself is not checked here. It refuses to know engines; it compares values with advertisements.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.protocol.advertisement import Advertisement, RetrieveOffer

Check = Callable[[Any, Advertisement, RetrieveOffer], str | None]
"""(value, advertisement, its retrieve part) -> what is missing, or None if the option is allowed."""


@dataclass(frozen=True, slots=True)
class OptionDemand:
    """One option of a request that engines must honour; `keys` are the params that carry it."""

    option: str
    value: Any
    check: Check
    keys: tuple[str, ...]


def demands_of(params: Mapping[str, Any], query_modalities: frozenset[str]) -> list[OptionDemand]:
    """The demands in these params, in a fixed order; usually none."""
    demands = [
        OptionDemand(key, params[key], check, (key,))
        for key, check in CHECKS.items()
        if key in params and params[key] is not False
    ]
    if query_modalities and query_modalities != _TEXT:
        demands.append(OptionDemand("query", query_modalities, _query_blocks, ()))
    return demands


_TEXT = frozenset({"text"})
_TIMELY = frozenset({"date", "int", "float", None})
"""Types of a field that may hold a time; None: the engine names no type."""


def _mode(value: Any, _: Advertisement, offer: RetrieveOffer) -> str | None:
    return None if value in offer.modes else f"mode {value} is not advertised"


def _modality(value: Any, _: Advertisement, offer: RetrieveOffer) -> str | None:
    return None if value in offer.modalities else f"modality {value} is not advertised"


def _query_blocks(value: Any, _: Advertisement, offer: RetrieveOffer) -> str | None:
    missing = value - offer.modalities
    return f"query blocks of modality {', '.join(sorted(missing))} are not advertised" if missing else None


def _unit(value: Any, _: Advertisement, offer: RetrieveOffer) -> str | None:
    return None if value in offer.units else f"unit {value} is not advertised"


def _level(value: Any, _: Advertisement, offer: RetrieveOffer) -> str | None:
    return None if offer.levels is not None and value < offer.levels else f"level {value} is not advertised"


def _rerank(value: Any, advertisement: Advertisement, offer: RetrieveOffer) -> str | None:
    return rerank_fault(value, advertisement) if offer.rerank_builtin else "rerank inside retrieve is not advertised"


def rerank_fault(value: Mapping[str, Any], advertisement: Advertisement) -> str | None:
    """What of a `rerank` (its `method`, its `model`) this engine's reranker lacks, if anything."""
    reranker = advertisement.capabilities.get("rerank")
    reranker = reranker if type(reranker) is dict else {}
    for key, listed in (("method", "methods"), ("model", "models")):
        wanted = value.get(key)
        if wanted is not None and wanted not in _listed(reranker, listed):
            return f"rerank {key} {wanted} is not advertised"
    return None


def reranked_modalities(advertisement: Advertisement) -> frozenset[str]:
    """What this engine's reranker reads: what its `rerank` lists, else what its `retrieve` takes; text in any case."""
    reranker = advertisement.capabilities.get("rerank")
    own = _listed(reranker, "modalities") if type(reranker) is dict else ()
    if own:
        return _TEXT.union(name for name in own if type(name) is str)
    return _TEXT if advertisement.retrieve is None else _TEXT | advertisement.retrieve.modalities


def _rewrite(value: Any, advertisement: Advertisement, _: RetrieveOffer) -> str | None:
    transform = advertisement.capabilities.get("transform")
    methods = _listed(transform, "methods") if type(transform) is dict else ()
    return None if value in methods else f"rewrite {value} is not advertised"


def _listed(capability: Mapping[str, Any], key: str) -> Sequence[Any]:
    """A list of a capability; whatever else an engine may have put there states nothing."""
    value = capability.get(key)
    return value if type(value) is list else ()


def _mmr(_: Any, __: Advertisement, offer: RetrieveOffer) -> str | None:
    return None if offer.mmr else "mmr is not advertised"


def _recency(value: Any, advertisement: Advertisement, _: RetrieveOffer) -> str | None:
    field = value.get("field")
    if field is None:
        timely = not _TIMELY.isdisjoint(advertisement.filter_fields.values())
        return None if timely else "recency is not possible: no date or number field is advertised"
    if advertisement.filter_fields.get(field, "absent") in _TIMELY:
        return None
    return f"recency on {field} is not possible: no such date or number field is advertised"


def _index_version(_: Any, __: Advertisement, offer: RetrieveOffer) -> str | None:
    return None if offer.snapshots else "snapshots are not advertised"


def _include_vectors(_: Any, advertisement: Advertisement, __: RetrieveOffer) -> str | None:
    return None if advertisement.offers("embed") else "vectors are not advertised (no embed capability)"


CHECKS: Mapping[str, Check] = {
    "mode": _mode,
    "modality": _modality,
    "unit": _unit,
    "level": _level,
    "rerank": _rerank,
    "rewrite": _rewrite,
    "mmr": _mmr,
    "recency": _recency,
    "indexVersion": _index_version,
    "includeVectors": _include_vectors,
}
