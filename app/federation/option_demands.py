"""Options of a `retrieve` that an engine must honour, checked against its advertisement (RCP §12). Pure.

An engine that cannot honour an option is skipped (`strict`) or asked without it. If no engine is left, the error is the
one that a single engine would send: an unknown filter field first, then an option, then a capability."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.federation.outcome import Outcome
from app.protocol.advertisement import Advertisement, RetrieveOffer
from app.protocol.errors import BackendUnavailable, CapabilityMissing, InvalidParams, OptionUnsupported, RcpError
from app.protocol.filters import FilterFault, FilterTree

Check = Callable[[Any, Advertisement, RetrieveOffer], str | None]
"""(value, advertisement, its retrieve part) -> what is missing, or None if the engine supports the option."""


@dataclass(frozen=True, slots=True)
class OptionDemand:
    """One option of a request that engines must honour; `keys` are the params that carry it."""

    option: str
    value: Any
    check: Check
    keys: tuple[str, ...]


def demands_of(params: Mapping[str, Any], query_modalities: frozenset[str]) -> list[OptionDemand]:
    """The demands of these params, in a fixed order; usually none."""
    demands = [
        OptionDemand(key, params[key], check, (key,))
        for key, check in CHECKS.items()
        if key in params and params[key] is not False
    ]
    # Every engine takes text.
    if query_modalities and query_modalities != _TEXT:
        demands.append(OptionDemand("query", query_modalities, _query_blocks, ()))
    return demands


_TEXT = frozenset({"text"})
_TIMELY = frozenset({"date", "int", "float", None})
"""Types of a field that may hold a time; None: the engine states no type."""


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
    """What of a `rerank` (its `method`, its `model`) this engine's reranker does not advertise, if anything."""
    reranker = advertisement.capabilities.get("rerank")
    reranker = reranker if type(reranker) is dict else {}
    for key, listed in (("method", "methods"), ("model", "models")):
        wanted = value.get(key)
        if wanted is not None and wanted not in _listed(reranker, listed):
            return f"rerank {key} {wanted} is not advertised"
    return None


def reranked_modalities(advertisement: Advertisement) -> frozenset[str]:
    """Modalities that this engine's reranker reads: those its `rerank` lists, else those its `retrieve` takes;
    always text."""
    reranker = advertisement.capabilities.get("rerank")
    # An engine that does not list modalities reads what its own retrieve accepts.
    own = _listed(reranker, "modalities") if type(reranker) is dict else ()
    if own:
        return _TEXT.union(name for name in own if type(name) is str)
    return _TEXT if advertisement.retrieve is None else _TEXT | advertisement.retrieve.modalities


def _rewrite(value: Any, advertisement: Advertisement, _: RetrieveOffer) -> str | None:
    transform = advertisement.capabilities.get("transform")
    methods = _listed(transform, "methods") if type(transform) is dict else ()
    return None if value in methods else f"rewrite {value} is not advertised"


def _listed(capability: Mapping[str, Any], key: str) -> Sequence[Any]:
    """A list of a capability; a value of any other type states nothing."""
    value = capability.get(key)
    return value if type(value) is list else ()


def _mmr(_: Any, __: Advertisement, offer: RetrieveOffer) -> str | None:
    return None if offer.mmr else "mmr is not advertised"


def _recency(value: Any, advertisement: Advertisement, _: RetrieveOffer) -> str | None:
    field = value.get("field")
    if field is None:
        # Without a field the engine chooses one, so any date or number will do.
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


Refusal = tuple[OptionDemand | FilterFault, Advertisement]
"""What an engine cannot honour, and its advertisement."""


def no_engine_can(tree: FilterTree | None, refusals: Sequence[Refusal], skipped: Sequence[Outcome]) -> RcpError:
    """The error of a request that no engine can be asked: an unknown field, then an option, then a capability."""
    # A filter error comes first: it is about the data, which the caller knows best.
    faults = [refusal for refusal, _ in refusals if isinstance(refusal, FilterFault)]
    demands = [refusal for refusal, _ in refusals if isinstance(refusal, OptionDemand)]
    reasons = "; ".join(f"{outcome.engine}: {outcome.detail}" for outcome in skipped)
    if faults and not demands and tree is not None:
        return _filter_error(tree, faults, [advertisement for _, advertisement in refusals], reasons)
    if demands:
        demand = min(demands, key=_place)  # independent of the order of engines
        return OptionUnsupported(
            f"no available engine supports '{demand.option}' as requested",
            option=demand.option,
            detail=reasons,
        )
    unreached = [outcome for outcome in skipped if outcome.kind == "unreached"]
    if unreached:
        return BackendUnavailable("no engine has been reached yet", retryable=True, detail=reasons)
    return CapabilityMissing("no engine offers 'retrieve'", detail=reasons)


def _place(demand: OptionDemand) -> int:
    """Position of an option in CHECKS; demands that are not params come last."""
    return next((place for place, option in enumerate(CHECKS) if option == demand.option), len(CHECKS))


def _filter_error(
    tree: FilterTree, faults: Sequence[FilterFault], refusing: Sequence[Advertisement], detail: str
) -> RcpError:
    """The error for a filter that no engine can apply: -32602 for a field that no engine has or a value of the wrong
    type, else -32005 (RCP §8)."""
    # A field that no engine has is the caller's mistake, not a missing capability.
    known = {name for advertisement in refusing for name in advertisement.filter_fields}
    for leaf in tree.leaves:
        if leaf.field not in known:
            return InvalidParams(f"filter field '{leaf.field}' is not advertised", field=leaf.path, detail=detail)
    for fault in faults:
        if fault.kind == "shape":
            return InvalidParams(fault.message, field=fault.field, detail=detail)
    operator = next((fault for fault in faults if fault.kind == "operator"), None)
    if operator is not None:
        return OptionUnsupported(operator.message, option="filter.operators", detail=detail)
    return OptionUnsupported("no single engine has all fields of the filter", option="filter", detail=detail)


def only_cycles(skipped: Sequence[Outcome], lost: Sequence[Outcome]) -> bool:
    """Whether no engine is asked because all that could be would close a cycle: an empty success (decision 3)."""
    reasons = {outcome.kind for outcome in skipped}
    return "loop" in reasons and not lost and not reasons & {"option", "filter", "unreached"}
