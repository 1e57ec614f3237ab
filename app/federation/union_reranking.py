"""Has the best of a fused order reranked by an engine that offers `rerank`, one engine after the other (RCP §7.7).

Decides who is asked next and when there is no time left for it. Whatever goes wrong, the fused order stands and a note
says why. It refuses to know how the order came about.
"""

from collections.abc import Mapping, Sequence

from app.federation.calls import LEAST_SECONDS, RetrieveCall
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
    """`stock` with its best `union.top_n` documents reranked. Raises nothing but what cancels the request."""
    passages = passages_of(result_set.fusion, union.top_n)
    asked: list[Outcome] = []
    for engine, takes in reranker_batches(union, len(passages)) if passages else ():
        share = share_of(call, engine, members, settings)
        if share.seconds < LEAST_SECONDS:
            break
        places = list(passages)[:takes]
        texts = [passages[place] for place in places]
        forwarded = plain("rerank", {**union.params, "passages": texts, "documents": texts}, values_in(len(texts)))
        outcome = await ask_one(engine, share, forwarded, instrumentation)
        asked.append(outcome)
        if outcome.result is not None:
            values = {places[index]: value for index, value in outcome.result["values"].items()}
            return _settled(result_set, union, asked, values, len(passages))
    return _unsettled(result_set, union, asked, bool(passages))


def _settled(
    result_set: ResultSet, union: RerankPlan, asked: Sequence[Outcome], values: Mapping[int, float], passages: int
) -> ResultSet:
    """The last that was asked has given these values, by place in the fused order."""
    engine, reranked = asked[-1].engine, len(values)
    top = min(union.top_n, len(result_set.fusion))
    notes = _failures(asked)
    if passages < top:
        notes.append(f"rerank: {top - passages} of the best {top} documents have no text; they come after the reranked")
    if reranked < passages:
        notes.append(f"rerank: {engine} judged no more than {reranked} of {passages} passages; the others follow")
    verdict = RerankVerdict(engine, union.top_n, reranked, report(asked, of_hits=False), notes)
    return result_set._replace(fusion=result_set.fusion.reranked(top, values), verdict=verdict)


def _unsettled(result_set: ResultSet, union: RerankPlan, asked: Sequence[Outcome], readable: bool) -> ResultSet:
    """Nobody reranked: why, and the order as it is."""
    notes = _failures(asked)
    if len(result_set.fusion):
        why = "no reranker answered" if asked else "no time was left" if readable else "no document has a text"
        notes.append(f"rerank: the fused order stands, for {why}")
    return result_set._replace(
        verdict=RerankVerdict(None, union.top_n, 0, report(asked, of_hits=False), notes),
        degraded=sorted({*result_set.degraded, *degraded(asked)}),
    )


def _failures(asked: Sequence[Outcome]) -> list[str]:
    return [f"rerank: {failure_line(outcome)}" for outcome in asked if outcome.status == "failed"]
