"""The error of a request that no engine may be asked: as one engine would refuse it (RCP §12). Pure.

Decides which of many reasons is the request's: a filter field nobody has, then an option, then a capability. It refuses
to know how the plan came to its skips.
"""

from collections.abc import Sequence

from app.federation.option_demands import CHECKS, OptionDemand
from app.federation.outcome import Outcome
from app.protocol.advertisement import Advertisement
from app.protocol.errors import BackendUnavailable, CapabilityMissing, InvalidParams, OptionUnsupported, RcpError
from app.protocol.filters import FilterFault, FilterTree

Refusal = tuple[OptionDemand | FilterFault, Advertisement]
"""What an engine cannot honour, and what it advertises."""


def nobody_can(tree: FilterTree | None, refusals: Sequence[Refusal], skipped: Sequence[Outcome]) -> RcpError:
    """The error for a request that no engine may be asked: field, then option, then capability."""
    faults = [refusal for refusal, _ in refusals if isinstance(refusal, FilterFault)]
    demands = [refusal for refusal, _ in refusals if isinstance(refusal, OptionDemand)]
    reasons = "; ".join(f"{outcome.engine}: {outcome.detail}" for outcome in skipped)
    if faults and not demands and tree is not None:
        return _filter_error(tree, faults, [advertisement for _, advertisement in refusals], reasons)
    if demands:
        demand = min(demands, key=_place)  # which engine comes first must not show
        return OptionUnsupported(
            f"no engine that may be asked supports '{demand.option}' as requested",
            option=demand.option,
            detail=reasons,
        )
    unreached = [outcome for outcome in skipped if outcome.kind == "unreached"]
    if unreached:
        return BackendUnavailable("no engine has been reached yet", retryable=True, detail=reasons)
    return CapabilityMissing("no engine offers 'retrieve'", detail=reasons)


def _place(demand: OptionDemand) -> int:
    """The place of an option in the fixed order of demands; what is no param comes last."""
    return next((place for place, option in enumerate(CHECKS) if option == demand.option), len(CHECKS))


def _filter_error(
    tree: FilterTree, faults: Sequence[FilterFault], refusing: Sequence[Advertisement], detail: str
) -> RcpError:
    """What a filter that nobody can apply comes to: -32602 for a field that nobody has or a value of the wrong shape,
    else -32005 (RCP §8)."""
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
    """Whether nobody is asked because whoever could be would close a cycle: an empty success (decision 3)."""
    reasons = {outcome.kind for outcome in skipped}
    return "loop" in reasons and not lost and not reasons & {"option", "filter", "unreached"}
