"""From fused list to result: what is cut, what is packed, and what the caller is told about it.

Scores belong to our scale here, so `minScore` and `tokenBudget` are honoured here and nowhere else (decision 4).
"""

from collections.abc import Sequence
from typing import Any

from app.federation.membership import Members
from app.federation.outcome import Hit, Outcome, degraded, notes, report
from app.federation.plan import Plan
from app.fusion.merge import Fusion
from app.protocol.params import RetrieveParams

BYTES_PER_TOKEN = 4
"""The documented estimate of `usage.tokens`: UTF-8 bytes of a hit's text, divided by this, rounded up."""


def build_result(
    params: RetrieveParams,
    plan: Plan,
    members: Members,
    outcomes: Sequence[Outcome],
    fusion: Fusion | None,
    took: float,
) -> dict[str, Any]:
    """The `retrieve` result (RCP §7.7): hits, usage, and the report in `_meta`. `took` is in seconds."""
    hits: list[Hit] = []
    tokens: int | None = None
    if fusion is not None:
        hits = fusion.hits(0, _wanted(params, plan.k, fusion))
        if params.options.token_budget is not None:
            hits, tokens = pack(hits, params.options.token_budget)
        if params.options.include_text is False:
            for hit in hits:
                hit.pop("text", None)
    usage: dict[str, Any] = {
        "candidates": sum(outcome.candidates for outcome in outcomes),
        "reranked": sum(outcome.reranked for outcome in outcomes),
        "latencyMs": round(took * 1000, 2),
    }
    if tokens is not None:
        usage["tokens"] = tokens
    lines = [*plan.notes, *notes(outcomes), *(fusion.notes if fusion is not None else ())]
    if lines:
        usage["notes"] = lines
    meta: dict[str, Any] = {"x-gateway": {"id": members.identity, "engines": report([*outcomes, *plan.skipped])}}
    dropped = degraded(outcomes)
    if dropped:
        meta["degraded"] = dropped
    result: dict[str, Any] = {"hits": hits, "usage": usage, "_meta": meta}
    rewritten = {outcome.rewritten_query for outcome in outcomes if outcome.rewritten_query is not None}
    if len(rewritten) == 1:
        result["rewrittenQuery"] = rewritten.pop()
    return result


def _wanted(params: RetrieveParams, k: int, fusion: Fusion) -> int:
    """How many of the top hits the caller wants: at most k, none below `minScore`."""
    floor = params.options.min_score
    if floor is None:
        return k
    scores = fusion.scores()[:k]
    return next((index for index, score in enumerate(scores) if score < floor), len(scores))


def pack(hits: list[Hit], budget: int) -> tuple[list[Hit], int]:
    """Whole hits from the top until the next would not fit, at least one; and the tokens they are estimated to take."""
    total = 0
    for index, hit in enumerate(hits):
        tokens = estimate_tokens(hit)
        if index and total + tokens > budget:
            return hits[:index], total
        total += tokens
    return hits, total


def estimate_tokens(hit: Hit) -> int:
    """Tokens of one hit's text, estimated from its UTF-8 length; 0 without text."""
    text = hit.get("text")
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN) if type(text) is str else 0
