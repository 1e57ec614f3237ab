"""What engines gave for one question, fused into the order in which it is served, page by page. Pure.

Deeper answers of the same engines join what there is: what was given once is never lost, what was served once never
comes back. It refuses to know where a stock is kept and how much of it one answer serves.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Any, Final, NamedTuple

from app.federation.outcome import MAX_HITS, Outcome, degraded
from app.federation.snapshot_pins import versions_of
from app.federation.planner import EngineCall, Plan
from app.federation.page import DiversityOptions, fresh, seen_of, spread_over
from app.federation.rerank_plan import RerankVerdict
from app.fusion.merge import FusedList
from app.fusion.ranked_lists import FusionConfig, RankedList
from app.fusion.reranked import Reranked
from app.fusion.rrf import fuse
from app.protocol.retrieve_params import RetrieveParams

_NOBODY: Final[frozenset[str]] = frozenset()


class ResultSet(NamedTuple):
    """The lists of the engines, and the order of what is to be served of them."""

    lists: Sequence[RankedList]
    fusion: FusedList
    options: FusionConfig
    open: frozenset[str] = frozenset()
    """Engines that may have more: they can be asked deeper."""
    versions: dict[str, str] | None = None
    """Engine id -> the `indexVersion` it served, if all have snapshots."""
    degraded: Sequence[str] = ()
    """Engines that were asked and gave nothing."""
    spread: DiversityOptions | None = None
    screened: int = 0
    """Documents that a screen left out."""
    verdict: RerankVerdict | None = None
    """What became of reranking the union, if the order was to be."""

    def size(self) -> int:
        """Hits of engines that are held; one whose answer is long counts as one for each KiB of it."""
        return sum([max(len(ranked.hits), ranked.size // 1024) for ranked in self.lists])

    def whole(self) -> frozenset[str]:
        """Engines that need not be asked again."""
        return frozenset(ranked.engine for ranked in self.lists) - self.open


def stock_of(plan: Plan, outcomes: Sequence[Outcome], params: RetrieveParams) -> ResultSet | None:
    """The stock of a first answer; None if no engine answered."""
    legs = {leg.engine.id: leg for leg in plan.legs}
    lists = lists_of(legs, outcomes)
    if not lists:
        return None
    spread = spread_over(_lambda(params), plan.k) if plan.varied else None
    return ResultSet(
        lists,
        fuse(lists, plan.fusion),
        plan.fusion,
        _open(legs, outcomes),
        versions_of(plan.legs, outcomes),
        degraded(outcomes),
        spread,
    )


def joined(stock: ResultSet, kept: ResultSet | None) -> ResultSet:
    """`stock` after what was kept: who gave nothing this time keeps its old list, and stays open if it was."""
    if kept is None:
        return stock
    given = {ranked.engine: ranked for ranked in stock.lists}
    before = {ranked.engine: ranked for ranked in kept.lists}
    lists = [_extended(given.get(engine), ranked) for engine, ranked in before.items()]
    lists += [ranked for engine, ranked in given.items() if engine not in before]
    deeper = {engine for engine in stock.open if engine not in before or given[engine].fetch_k > before[engine].fetch_k}
    versions = None if stock.versions is None or kept.versions is None else {**kept.versions, **stock.versions}
    return stock._replace(
        lists=lists,
        fusion=fuse(lists, stock.options),
        open=frozenset(deeper.union(kept.open.difference(given))),
        versions=versions,
        degraded=sorted({*stock.degraded, *_still_missing(kept, given)}),
        spread=kept.spread or stock.spread,
    )


def _still_missing(kept: ResultSet, given: Container[str]) -> list[str]:
    """Engines that gave nothing before either; who failed to rerank that order may be asked again for this one."""
    asked = () if kept.verdict is None else kept.verdict.asked
    rerankers = {told["id"] for told in asked if told["status"] == "failed"}
    return [engine for engine in kept.degraded if engine not in given and engine not in rerankers]


def without(stock: ResultSet, returned: Container[str], seen: Container[str] | None) -> ResultSet:
    """The same stock, to be served from its beginning, without what was served or `seen` before."""
    if seen is None:
        return stock._replace(fusion=fresh(stock.fusion, returned)) if returned else stock
    known = seen_of(stock.fusion, seen, stock.options.identity)
    return stock._replace(fusion=fresh(stock.fusion, returned, known))


def dump_stock(stock: ResultSet) -> dict[str, Any]:
    """The stock as plain data, for a store outside this process."""
    options = stock.options
    return {
        "lists": [list(ranked) for ranked in stock.lists],
        "order": stock.fusion.keys(),
        "options": [options.method, options.rrf_k, options.confidence_weight, options.identity],
        "open": sorted(stock.open),
        "versions": stock.versions,
        "degraded": list(stock.degraded),
        "spread": None if stock.spread is None else list(stock.spread),
        "screened": stock.screened,
        "reranking": None if stock.fusion.reranking is None else [dict(said) for said in stock.fusion.reranking],
        "verdict": None if stock.verdict is None else list(stock.verdict),
    }


def load_stock(plain: dict[str, Any]) -> ResultSet:
    """What `dump_stock` was given: fused anew, for fusion gives the same for the same lists."""
    lists = [RankedList(*ranked) for ranked in plain["lists"]]
    options = FusionConfig(*plain["options"])
    reranking = None if plain["reranking"] is None else Reranked(*plain["reranking"])
    return ResultSet(
        lists,
        fuse(lists, options).restored(plain["order"], reranking),
        options,
        frozenset(plain["open"]),
        plain["versions"],
        plain["degraded"],
        None if plain["spread"] is None else DiversityOptions(*plain["spread"]),
        plain["screened"],
        None if plain["verdict"] is None else RerankVerdict(*plain["verdict"]),
    )


def lists_of(legs: Mapping[str, EngineCall], outcomes: Sequence[Outcome]) -> list[RankedList]:
    """What fusion takes, of the engines that answered; `legs` by engine id."""
    return [_list_of(legs[outcome.engine], outcome) for outcome in outcomes if outcome.status == "ok"]


def _list_of(leg: EngineCall, outcome: Outcome) -> RankedList:
    entry = leg.engine.entry
    return tuple.__new__(  # a third of what RankedList(…) costs: weight, priority, fetch_k and so on
        RankedList,
        (
            outcome.engine,
            outcome.hits,
            leg.weight,
            entry.priority,
            leg.asked,
            leg.score_floor,
            entry.confidence,
            entry.id_namespace,
            outcome.size,
            entry.max_trust,
        ),
    )


def _open(legs: dict[str, EngineCall], outcomes: Sequence[Outcome]) -> frozenset[str]:
    """Who may have more: who gave all it was asked for, and can be asked for more."""
    full = [
        outcome.engine
        for outcome in outcomes
        if outcome.hits and len(outcome.hits) + outcome.malformed >= legs[outcome.engine].asked
    ]
    return frozenset([engine for engine in full if _can_go_deeper(legs[engine])]) if full else _NOBODY


def _can_go_deeper(leg: EngineCall) -> bool:
    advertisement = leg.engine.advertisement
    offer = None if advertisement is None else advertisement.retrieve
    most = None if offer is None else offer.max_k
    return leg.asked < (MAX_HITS if most is None else min(most, MAX_HITS))


def _extended(given: RankedList | None, before: RankedList) -> RankedList:
    """A deeper list, and what it lacks of the one before: an engine may have changed its mind."""
    if given is None:
        return before
    known = {f"{hit['id']}" for hit in given.hits}
    lacking = [hit for hit in before.hits if f"{hit['id']}" not in known]
    return given._replace(hits=[*given.hits, *lacking], size=given.size + before.size) if lacking else given


def _lambda(params: RetrieveParams) -> float | None:
    """λ as the request states it: to us, or to engines that cannot."""
    wish = params.gateway.mmr or params.options.mmr
    return None if wish is None else wish.lambda_
