"""From what is served to the result: hits, usage, and the report of every engine, asked or not (RCP §7.7).

It refuses to know how the hits were come by, and what is kept for the next page.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from app.federation.explain import describe_response
from app.federation.hit_validation import sanitized
from app.federation.membership import Members
from app.federation.outcome import Outcome, degraded, notes, report
from app.federation.planner import EngineCall, Plan
from app.federation.result_set import Page, ResultSet
from app.federation.snapshot_tokens import token_of, versions_in
from app.protocol.retrieve_params import RetrieveParams

STATE_DEGRADED: Final = (
    "state: the shared state is not at hand and this gateway goes on alone: nextCursor leads on only here, and the "
    "session knows only what was answered here"
)
"""Said of an answer that continues another or can be continued."""

NO_TIMES: Mapping[str, float] = MappingProxyType({})


class RetrieveResponse(NamedTuple):
    """Everything that one result is made of."""

    plan: Plan
    outcomes: Sequence[Outcome]
    """Of the engines that were asked, by engine id."""
    result_set: ResultSet | None
    """What is served from; None if nobody was asked."""
    page: Page

    @property
    def follows(self) -> bool:
        """Whether there may be a next page."""
        result_set, page = self.result_set, self.page
        if result_set is None or not page.hits:
            return False
        return page.more or (bool(result_set.open) and not page.floored)


def build_result(
    params: RetrieveParams,
    members: Members,
    answer: RetrieveResponse,
    took: float,
    spent: Mapping[str, float] = NO_TIMES,
) -> dict[str, Any]:
    """The `retrieve` result (RCP §7.7): hits, usage, and the report in `_meta`.

    `took` is in seconds, as is what was `spent` in each step of it.
    """
    plan, outcomes, result_set, page = answer
    usage: dict[str, Any] = {
        "candidates": sum([outcome.candidates for outcome in outcomes]),
        "reranked": sum([outcome.reranked for outcome in outcomes]) + _reranked(outcomes, result_set),
        "latencyMs": round(took * 1000, 2),
    }
    if page.tokens is not None:
        usage["tokens"] = page.tokens
    lines = _notes(plan, outcomes, result_set) + sanitized(page.hits)
    if lines:
        usage["notes"] = lines
    gateway: dict[str, Any] = {"id": members.identity, "engines": _report(plan, outcomes)}
    if result_set is not None:
        gateway["fusion"] = _fusion_report(result_set)
    if params.gateway.explain:
        gateway["explain"] = describe_response(plan, result_set, page, spent)
    meta: dict[str, Any] = {"x-gateway": gateway}
    dropped = degraded(outcomes) if result_set is None else result_set.degraded
    if dropped:
        meta["degraded"] = dropped
    result: dict[str, Any] = {"hits": page.hits, "usage": usage, "_meta": meta}
    if result_set is not None and result_set.versions:
        result["indexVersion"] = _index_version(params, result_set.versions)
    rewritten = {outcome.rewritten_query for outcome in outcomes if outcome.rewritten_query is not None}
    if len(rewritten) == 1:
        result["rewrittenQuery"] = rewritten.pop()
    return result


def _reranked(outcomes: Sequence[Outcome], result_set: ResultSet | None) -> int:
    """Documents of the union that were reranked for this answer; none for a page of what was kept."""
    return 0 if result_set is None or result_set.verdict is None or not outcomes else result_set.verdict.reranked


def note(result: dict[str, Any], line: str) -> None:
    """Add a line to the notes of a result."""
    result["usage"].setdefault("notes", []).append(line)


def _notes(plan: Plan, outcomes: Sequence[Outcome], result_set: ResultSet | None) -> list[str]:
    """In a stable order: the plan's, then the engines' by id, then those of the blend, the reranker and variety."""
    lines = [*plan.notes, *notes(outcomes)]
    if result_set is None:
        return lines
    lines += result_set.fusion.notes
    if result_set.screened:
        lines.append(
            f"screen: {result_set.screened} document(s) left out, whose text looks like instructions aimed at a model"
        )
    if result_set.verdict is not None:
        lines += result_set.verdict.notes
    if result_set.diversity is not None:
        lines.append(
            f"mmr: the gateway diversified the top {result_set.diversity.pool} documents by text overlap "
            f"(lambda {result_set.diversity.lambda_:g}); scores are those of fusion and may not descend"
        )
    return lines


def _report(plan: Plan, outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Every engine of the registry; of those asked also the `k`, the weight, and the options left out."""
    entries = report([*outcomes, *plan.skipped])
    engine_calls: dict[str, EngineCall] = {engine_call.engine.id: engine_call for engine_call in plan.engine_calls}
    for entry in entries:
        engine_call = engine_calls.get(entry["id"])
        if engine_call is not None:
            entry["k"] = engine_call.asked
            entry["weight"] = engine_call.weight
            if engine_call.without:
                entry["without"] = engine_call.without
    return entries


def _fusion_report(result_set: ResultSet) -> dict[str, Any]:
    """The fusion that was really applied; convex may have become rrf."""
    options = result_set.options
    blend: dict[str, Any] = {
        "method": result_set.fusion.method,
        "rrfK": options.rrf_k,
        "confidenceWeight": options.confidence_weight,
        "identity": options.identity,
    }
    verdict = result_set.verdict
    if verdict is not None:
        blend["rerank"] = {
            "engine": verdict.engine,
            "topN": verdict.top_n,
            "reranked": verdict.reranked,
            "asked": verdict.asked,
        }
    if result_set.diversity is not None:
        blend["mmr"] = {"lambda": result_set.diversity.lambda_, "pool": result_set.diversity.pool}
    return blend


def _index_version(params: RetrieveParams, versions: Mapping[str, str]) -> str | None:
    """One token for all engines' versions; to a caller that pinned one engine's own version, that engine's own."""
    wanted = params.options.index_version
    if wanted is not None and versions_in(wanted) is None:
        return next(iter(versions.values()))
    return token_of(versions)
