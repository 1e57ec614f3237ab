"""Reranking the union (RCP §7.7): who reranks what engines gave together, where none of them can rerank by itself.

Pure. Decides which engines may be asked, how many documents they get and what of them, and what their answer makes of
the order. It refuses to know how they are asked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from app.federation.calls import RetrieveCall
from app.federation.candidates import UnfitEngine, candidates_for
from app.federation.engine_interface import Engine
from app.federation.membership import Members
from app.federation.option_demands import rerank_fault, reranked_modalities
from app.federation.outcome import MAX_HITS
from app.fusion.merge import FusedList
from app.protocol.advertisement import Advertisement
from app.protocol.errors import ProtocolViolation
from app.protocol.rerank_params import completed

RETRIEVE_SHARE = 0.7
"""What the engines that retrieve get of the time that is left, so that some remains for the reranker."""

PASSAGE_CHARACTERS = 8000
"""Of each text a reranker gets no more than this, from the beginning."""


class RerankPlan(NamedTuple):
    """What a plan says about reranking the union."""

    rerankers: tuple[Engine, ...]
    """Who may be asked, in this order: one after the other, until one answers."""
    top_n: int
    """The best documents of the union that are reranked, at most."""
    params: Mapping[str, Any]
    """`query`, and `method` and `model` as far as the request names them."""

    def __repr__(self) -> str:
        return f"<Union top {self.top_n} by {', '.join(engine.id for engine in self.rerankers)}>"


class RerankVerdict(NamedTuple):
    """What became of it."""

    engine: str | None
    """Who reranked; None if nobody did."""
    top_n: int
    reranked: int
    """Documents that were reranked."""
    asked: Sequence[Mapping[str, Any]] = ()
    """The report of everybody who was asked."""
    notes: Sequence[str] = ()


def union_of(call: RetrieveCall, members: Members, window: int) -> RerankPlan | None:
    """How the union may be reranked for this request; None if no engine that may be asked can. `window`: how many hits
    each engine is asked for, which is how many are reranked if the request does not say."""
    wanted = call.params.raw["rerank"]

    def fit(_: Engine, advertisement: Advertisement) -> UnfitEngine | None:
        fault = rerank_fault(wanted, advertisement)
        missing = call.params.query_modalities - reranked_modalities(advertisement)
        if fault is None and missing:
            fault = f"a query of modality {', '.join(sorted(missing))} is not advertised for rerank"
        return None if fault is None else UnfitEngine(fault, option="rerank")

    fitting = candidates_for(call, members, "rerank", call.params.gateway, fit).engines
    if not fitting:
        return None
    params = {key: wanted[key] for key in ("method", "model") if key in wanted}
    params["query"] = call.params.raw["query"]
    fitting = tuple(sorted(fitting, key=lambda engine: (-engine.entry.priority, engine.id)))
    return RerankPlan(fitting, min(wanted.get("topN", window), MAX_HITS), params)


def without_rerank(call: RetrieveCall, now: float) -> RetrieveCall:
    """The same call as the engines that retrieve get it: nothing said of `rerank`, and less time."""
    raw = {key: value for key, value in call.params.raw.items() if key != "rerank"}
    params = replace(call.params, raw=raw)
    return replace(call, params=params, deadline=now + (call.deadline - now) * RETRIEVE_SHARE)


def most_of(engine: Engine) -> int | None:
    """The most passages this engine takes, if it states a bound."""
    advertisement = engine.advertisement
    offer = None if advertisement is None else advertisement.capabilities.get("rerank")
    most = offer.get("maxCandidates") if type(offer) is dict else None
    return most if type(most) is int and most >= 1 else None


def reranker_batches(union: RerankPlan, wanted: int) -> list[tuple[Engine, int]]:
    """Whom to ask in which order, and how many of `wanted` passages each takes: who takes them all comes first."""
    takes = [(engine, min(wanted, most_of(engine) or wanted)) for engine in union.rerankers]
    return sorted(takes, key=lambda pair: -pair[1])  # stable: by priority among those who take as many


def passages_of(fusion: FusedList, top: int) -> dict[int, str]:
    """Index of a document among the best `top` -> its passage; documents without text have none."""
    texts = ((index, fusion.text(index)[:PASSAGE_CHARACTERS]) for index in range(min(top, len(fusion))))
    return {index: text for index, text in texts if text and not text.isspace()}


def values_in(passages: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What reads a `rerank` result for so many passages: place of a passage -> its value, under `values`.

    A passage that the engine did not judge has none. Raises ProtocolViolation for a result that is none or judges none.
    """

    def read(result: dict[str, Any]) -> dict[str, Any]:
        whole = completed(result, passages, None)
        if result.get("scores") is not None:
            return {"values": dict(enumerate(whole["scores"]))}
        values = {judged["index"]: judged["score"] for judged in whole["results"]}
        if not values:
            raise ProtocolViolation("the rerank result judges no passage")
        return {"values": values}

    return read
