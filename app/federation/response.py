"""From what is served to the result: hits, usage, and the report of every engine, asked or not (RCP §7.7).

It refuses to know how the hits were come by, and what is kept for the next page.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from app.federation.hit_validation import mended
from app.federation.explain import answer_told
from app.federation.membership import Members
from app.federation.outcome import Outcome, degraded, notes, report
from app.federation.planner import EngineCall, Plan
from app.federation.page import Page
from app.federation.snapshot_tokens import token_of, versions_in
from app.federation.result_set import ResultSet
from app.protocol.retrieve_params import RetrieveParams

ON_ITS_OWN: Final = (
    "state: the shared state is not at hand and this gateway goes on alone: nextCursor leads on only here, and the "
    "session knows only what was answered here"
)
"""Said of an answer that continues another or can be continued."""

NOT_TOLD: Mapping[str, float] = MappingProxyType({})


class RetrieveResponse(NamedTuple):
    """Everything that one result is made of."""

    plan: Plan
    outcomes: Sequence[Outcome]
    """Of the engines that were asked, by engine id."""
    stock: ResultSet | None
    """What is served from; None if nobody was asked."""
    portion: Page

    @property
    def follows(self) -> bool:
        """Whether there may be a next page."""
        stock, portion = self.stock, self.portion
        if stock is None or not portion.hits:
            return False
        return portion.more or (bool(stock.open) and not portion.floored)


def build_result(
    params: RetrieveParams, members: Members, answer: RetrieveResponse, took: float, spent: Mapping[str, float] = NOT_TOLD
) -> dict[str, Any]:
    """The `retrieve` result (RCP §7.7): hits, usage, and the report in `_meta`.

    `took` is in seconds, as is what was `spent` in each step of it.
    """
    plan, outcomes, stock, portion = answer
    usage: dict[str, Any] = {
        "candidates": sum([outcome.candidates for outcome in outcomes]),
        "reranked": sum([outcome.reranked for outcome in outcomes]) + _reranked(outcomes, stock),
        "latencyMs": round(took * 1000, 2),
    }
    if portion.tokens is not None:
        usage["tokens"] = portion.tokens
    lines = _notes(plan, outcomes, stock) + mended(portion.hits)
    if lines:
        usage["notes"] = lines
    gateway: dict[str, Any] = {"id": members.identity, "engines": _report(plan, outcomes)}
    if stock is not None:
        gateway["fusion"] = _blend(stock)
    if params.gateway.explain:
        gateway["explain"] = answer_told(plan, stock, portion, spent)
    meta: dict[str, Any] = {"x-gateway": gateway}
    dropped = degraded(outcomes) if stock is None else stock.degraded
    if dropped:
        meta["degraded"] = dropped
    result: dict[str, Any] = {"hits": portion.hits, "usage": usage, "_meta": meta}
    if stock is not None and stock.versions:
        result["indexVersion"] = _index_version(params, stock.versions)
    rewritten = {outcome.rewritten_query for outcome in outcomes if outcome.rewritten_query is not None}
    if len(rewritten) == 1:
        result["rewrittenQuery"] = rewritten.pop()
    return result


def _reranked(outcomes: Sequence[Outcome], stock: ResultSet | None) -> int:
    """Documents of the union that were reranked for this answer; none for a page of what was kept."""
    return 0 if stock is None or stock.verdict is None or not outcomes else stock.verdict.reranked


def note(result: dict[str, Any], line: str) -> None:
    """Add a line to the notes of a result."""
    result["usage"].setdefault("notes", []).append(line)


def _notes(plan: Plan, outcomes: Sequence[Outcome], stock: ResultSet | None) -> list[str]:
    """In a stable order: the plan's, then the engines' by id, then those of the blend, the reranker and variety."""
    lines = [*plan.notes, *notes(outcomes)]
    if stock is None:
        return lines
    lines += stock.fusion.notes
    if stock.screened:
        lines.append(
            f"screen: {stock.screened} document(s) left out, whose text looks like instructions aimed at a model"
        )
    if stock.verdict is not None:
        lines += stock.verdict.notes
    if stock.spread is not None:
        lines.append(
            f"mmr: the gateway diversified the best {stock.spread.pool} documents by the overlap of their texts "
            f"(lambda {stock.spread.lambda_:g}); scores stay those of fusion and need not descend"
        )
    return lines


def _report(plan: Plan, outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Every engine of the registry; of those asked also the `k`, the weight, and the options left out."""
    entries = report([*outcomes, *plan.skipped])
    legs: dict[str, EngineCall] = {leg.engine.id: leg for leg in plan.legs}
    for entry in entries:
        leg = legs.get(entry["id"])
        if leg is not None:
            entry["k"] = leg.asked
            entry["weight"] = leg.weight
            if leg.without:
                entry["without"] = leg.without
    return entries


def _blend(stock: ResultSet) -> dict[str, Any]:
    """The fusion that was really applied; convex may have become rrf."""
    options = stock.options
    blend: dict[str, Any] = {
        "method": stock.fusion.method,
        "rrfK": options.rrf_k,
        "confidenceWeight": options.confidence_weight,
        "identity": options.identity,
    }
    verdict = stock.verdict
    if verdict is not None:
        blend["rerank"] = {
            "engine": verdict.engine,
            "topN": verdict.top_n,
            "reranked": verdict.reranked,
            "asked": verdict.asked,
        }
    if stock.spread is not None:
        blend["mmr"] = {"lambda": stock.spread.lambda_, "pool": stock.spread.pool}
    return blend


def _index_version(params: RetrieveParams, versions: Mapping[str, str]) -> str | None:
    """One token for all engines' versions; to a caller that pinned one engine's own version, that engine's own."""
    wished = params.options.index_version
    if wished is not None and versions_in(wished) is None:
        return next(iter(versions.values()))
    return token_of(versions)
