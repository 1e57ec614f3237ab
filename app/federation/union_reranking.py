"""Has the top of the fused list reranked by an engine that offers `rerank` (RCP §7.7).

Rerankers are asked one after the other while time is left. If none answers, the fused order is unchanged and a note
says why.
"""

from collections.abc import Mapping, Sequence

from app.federation.calls import MIN_SECONDS, RetrieveCall
from app.federation.forward import ask_one, plain, share_of
from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.membership import Members
from app.federation.outcome import Outcome, degraded, failure_line, report
from app.federation.rerank_plan import RerankPlan, RerankVerdict, passages_of, reranker_batches, values_in
from app.federation.result_set import ResultSet
from app.settings.schema import GatewaySettings


async def rerank_union(
    call: RetrieveCall,
    members: Members,
    settings: GatewaySettings,
    instrumentation: RetrieveInstrumentation,
    union: RerankPlan,
    result_set: ResultSet,
) -> ResultSet:
    """`result_set` with its top `union.top_n` documents reranked. Raises only CancelledError."""
    passages = passages_of(result_set.fusion, union.top_n)
    asked: list[Outcome] = []
    for engine, takes in reranker_batches(union, len(passages)) if passages else ():
        share = share_of(call, engine, members, settings)
        # No time for another reranker: the fused order is a good answer already.
        if share.seconds < MIN_SECONDS:
            break
        places = list(passages)[:takes]
        # `documents` is another name of `passages`; engines may read either.
        texts = [passages[place] for place in places]
        forwarded = plain("rerank", {**union.params, "passages": texts, "documents": texts}, values_in(len(texts)))
        outcome = await ask_one(engine, share, forwarded, instrumentation)
        asked.append(outcome)
        if outcome.result is not None:
            # Positions among the passages become positions in the fused order.
            values = {places[index]: value for index, value in outcome.result["values"].items()}
            return _reranked(result_set, union, asked, values, len(passages))
    return _not_reranked(result_set, union, asked, bool(passages))


def _reranked(
    result_set: ResultSet, union: RerankPlan, asked: Sequence[Outcome], values: Mapping[int, float], passages: int
) -> ResultSet:
    """The last engine asked returned these scores, by position in the fused order."""
    engine, reranked = asked[-1].engine, len(values)
    # Reranked documents come first, then those without text, then the rest.
    top = min(union.top_n, len(result_set.fusion))
    notes = _failures(asked)
    if passages < top:
        notes.append(f"rerank: {top - passages} of the top {top} documents have no text and follow the reranked ones")
    if reranked < passages:
        notes.append(f"rerank: {engine} scored only {reranked} of {passages} passages; the others follow")
    verdict = RerankVerdict(engine, union.top_n, reranked, report(asked, of_hits=False), notes)
    return result_set._replace(fusion=result_set.fusion.reranked(top, values), verdict=verdict)


def _not_reranked(result_set: ResultSet, union: RerankPlan, asked: Sequence[Outcome], readable: bool) -> ResultSet:
    """No engine reranked: the order is unchanged, and a note says why."""
    notes = _failures(asked)
    if len(result_set.fusion):
        why = "no reranker answered" if asked else "no time was left" if readable else "no document has text"
        notes.append(f"rerank: the fused order is unchanged: {why}")
    return result_set._replace(
        verdict=RerankVerdict(None, union.top_n, 0, report(asked, of_hits=False), notes),
        # A failed reranker is named like a failed engine: the response lacks its work.
        degraded=sorted({*result_set.degraded, *degraded(asked)}),
    )


def _failures(asked: Sequence[Outcome]) -> list[str]:
    return [f"rerank: {failure_line(outcome)}" for outcome in asked if outcome.status == "failed"]
