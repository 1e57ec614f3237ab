"""Reranking of the fused list by one engine, if no retrieving engine can rerank as asked (RCP §7.7). Pure.

Which engines may be asked, how many documents they get, and how their results are read.
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
"""Share of the remaining time for the engines that retrieve, so that some is left for the reranker."""

PASSAGE_CHARACTERS = 8000
"""Texts are cut to this length for a reranker."""


class RerankPlan(NamedTuple):
    """Reranking of the fused list, as part of a plan."""

    rerankers: tuple[Engine, ...]
    """Engines that may be asked, one after the other, until one answers."""
    top_n: int
    """How many of the top documents are reranked at most."""
    params: Mapping[str, Any]
    """`query`, and `method` and `model` if the request names them."""

    def __repr__(self) -> str:
        return f"<RerankPlan top {self.top_n} by {', '.join(engine.id for engine in self.rerankers)}>"


class RerankVerdict(NamedTuple):
    """The result of reranking."""

    engine: str | None
    """The engine that reranked; None if none did."""
    top_n: int
    reranked: int
    """Number of documents that were reranked."""
    asked: Sequence[Mapping[str, Any]] = ()
    """The report of every engine that was asked."""
    notes: Sequence[str] = ()


def union_of(call: RetrieveCall, members: Members, window: int) -> RerankPlan | None:
    """How the fused list can be reranked for this request; None if no available engine can.

    `window`: how many hits each engine is asked for; so many are reranked if the request does not say.
    """
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
    # Not by registry order: equal registries must give equal results.
    fitting = tuple(sorted(fitting, key=lambda engine: (-engine.entry.priority, engine.id)))
    return RerankPlan(fitting, min(wanted.get("topN", window), MAX_HITS), params)


def without_rerank(call: RetrieveCall, now: float) -> RetrieveCall:
    """The call for the engines that retrieve: without `rerank`, and with less time."""
    raw = {key: value for key, value in call.params.raw.items() if key != "rerank"}
    # The parsed options keep `rerank`; only the forwarded params lose it.
    params = replace(call.params, raw=raw)
    return replace(call, params=params, deadline=now + (call.deadline - now) * RETRIEVE_SHARE)


def most_of(engine: Engine) -> int | None:
    """The most passages this engine takes, if it states a limit."""
    advertisement = engine.advertisement
    offer = None if advertisement is None else advertisement.capabilities.get("rerank")
    most = offer.get("maxCandidates") if type(offer) is dict else None
    return most if type(most) is int and most >= 1 else None


def reranker_batches(union: RerankPlan, wanted: int) -> list[tuple[Engine, int]]:
    """(engine, how many of `wanted` passages it takes), in the order in which engines are asked: most passages
    first."""
    takes = [(engine, min(wanted, most_of(engine) or wanted)) for engine in union.rerankers]
    return sorted(takes, key=lambda pair: -pair[1])  # stable: by priority among engines that take equally many


def passages_of(fusion: FusedList, top: int) -> dict[int, str]:
    """Index of a document among the `top` -> its passage; documents without text have none."""
    # The prefix is enough for a reranker, and long texts would exceed its limits.
    texts = ((index, fusion.text(index)[:PASSAGE_CHARACTERS]) for index in range(min(top, len(fusion))))
    return {index: text for index, text in texts if text and not text.isspace()}


def values_in(passages: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A reader of `rerank` results for so many passages: index of a passage -> its score, under `values`.

    A passage that the engine did not score is missing. Raises ProtocolViolation for a malformed result or one
    without scores.
    """

    def read(result: dict[str, Any]) -> dict[str, Any]:
        whole = completed(result, passages, None)
        # Both forms are allowed (RCP §7.6); `scores` has one for every passage.
        if result.get("scores") is not None:
            return {"values": dict(enumerate(whole["scores"]))}
        values = {judged["index"]: judged["score"] for judged in whole["results"]}
        if not values:
            raise ProtocolViolation("the rerank result has no scores")
        return {"values": values}

    return read
