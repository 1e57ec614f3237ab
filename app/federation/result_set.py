"""What engines gave for one question, fused into the order in which it is served, page by page. Pure.

Deeper answers of the same engines join what there is: what was given once is never lost, what was served once never
comes back. It refuses to know where a stock is kept and how much of it one answer serves.
"""

from collections.abc import Container, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from app.federation.outcome import MAX_HITS, Outcome, degraded
from app.federation.page import DiversityOptions, fresh, seen_of, spread_over
from app.federation.planner import EngineCall, Plan
from app.federation.rerank_plan import RerankVerdict
from app.federation.snapshot_pins import versions_of
from app.fusion.calibration import EngineCalibration, dump_calibration, load_calibration
from app.fusion.merge import FusedList, Reranked
from app.fusion.ranked_lists import FusionConfig, RankedList
from app.fusion.rrf import fuse
from app.protocol.retrieve_params import RetrieveParams

_NOBODY: Final[frozenset[str]] = frozenset()

Calibrations = Mapping[str, EngineCalibration]
NOT_LEARNED: Final[Calibrations] = MappingProxyType({})


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


def result_set_of(
    plan: Plan, outcomes: Sequence[Outcome], params: RetrieveParams, calibrations: Calibrations = NOT_LEARNED
) -> ResultSet | None:
    """The stock of a first answer; None if no engine answered. `calibrations`: what was learned, by engine id."""
    engine_calls = {engine_call.engine.id: engine_call for engine_call in plan.engine_calls}
    lists = lists_of(engine_calls, outcomes, calibrations)
    if not lists:
        return None
    spread = spread_over(_lambda(params), plan.k) if plan.varied else None
    return ResultSet(
        lists,
        fuse(lists, plan.fusion),
        plan.fusion,
        _open(engine_calls, outcomes),
        versions_of(plan.engine_calls, outcomes),
        degraded(outcomes),
        spread,
    )


def joined(result_set: ResultSet, kept: ResultSet | None) -> ResultSet:
    """`stock` after what was kept: who gave nothing this time keeps its old list, and stays open if it was."""
    if kept is None:
        return result_set
    given = {ranked.engine: ranked for ranked in result_set.lists}
    before = {ranked.engine: ranked for ranked in kept.lists}
    lists = [_extended(given.get(engine), ranked) for engine, ranked in before.items()]
    lists += [ranked for engine, ranked in given.items() if engine not in before]
    deeper = {
        engine for engine in result_set.open if engine not in before or given[engine].fetch_k > before[engine].fetch_k
    }
    versions = (
        None if result_set.versions is None or kept.versions is None else {**kept.versions, **result_set.versions}
    )
    return result_set._replace(
        lists=lists,
        fusion=fuse(lists, result_set.options),
        open=frozenset(deeper.union(kept.open.difference(given))),
        versions=versions,
        degraded=sorted({*result_set.degraded, *_still_missing(kept, given)}),
        spread=kept.spread or result_set.spread,
    )


def _still_missing(kept: ResultSet, given: Container[str]) -> list[str]:
    """Engines that gave nothing before either; who failed to rerank that order may be asked again for this one."""
    asked = () if kept.verdict is None else kept.verdict.asked
    rerankers = {told["id"] for told in asked if told["status"] == "failed"}
    return [engine for engine in kept.degraded if engine not in given and engine not in rerankers]


def without(result_set: ResultSet, returned: Container[str], seen: Container[str] | None) -> ResultSet:
    """The same stock, to be served from its beginning, without what was served or `seen` before."""
    if seen is None:
        return result_set._replace(fusion=fresh(result_set.fusion, returned)) if returned else result_set
    known = seen_of(result_set.fusion, seen, result_set.options.identity)
    return result_set._replace(fusion=fresh(result_set.fusion, returned, known))


def dump_result_set(result_set: ResultSet) -> dict[str, Any]:
    """The stock as plain data, for a store outside this process."""
    options = result_set.options
    return {
        "lists": [[*ranked[:-1], dump_calibration(ranked.calibration)] for ranked in result_set.lists],
        "order": result_set.fusion.keys(),
        "options": [options.method, options.rrf_k, options.confidence_weight, options.identity, options.silent],
        "open": sorted(result_set.open),
        "versions": result_set.versions,
        "degraded": list(result_set.degraded),
        "spread": None if result_set.spread is None else list(result_set.spread),
        "screened": result_set.screened,
        "reranking": None
        if result_set.fusion.reranking is None
        else [dict(said) for said in result_set.fusion.reranking],
        "verdict": None if result_set.verdict is None else list(result_set.verdict),
    }


def load_result_set(plain: dict[str, Any]) -> ResultSet:
    """What `dump_stock` was given: fused anew, for fusion gives the same for the same lists."""
    lists = [_loaded_list(ranked) for ranked in plain["lists"]]
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


def _loaded_list(plain: list[Any]) -> RankedList:
    """A list as `dump_stock` wrote it; one of a release before learned calibration has no place for it."""
    ranked = RankedList(*plain)
    return ranked if ranked.calibration is None else ranked._replace(calibration=load_calibration(ranked.calibration))


def lists_of(
    engine_calls: Mapping[str, EngineCall], outcomes: Sequence[Outcome], calibrations: Calibrations = NOT_LEARNED
) -> list[RankedList]:
    """What fusion takes, of the engines that answered; `legs` and `calibrations` by engine id."""
    return [
        _list_of(engine_calls[one.engine], one, calibrations.get(one.engine)) for one in outcomes if one.status == "ok"
    ]


def _list_of(engine_call: EngineCall, outcome: Outcome, calibration: EngineCalibration | None) -> RankedList:
    entry = engine_call.engine.entry
    return tuple.__new__(  # a third of what RankedList(…) costs: weight, priority, fetch_k and so on
        RankedList,
        (
            outcome.engine,
            outcome.hits,
            engine_call.weight,
            entry.priority,
            engine_call.asked,
            engine_call.score_floor,
            entry.confidence,
            entry.id_namespace,
            outcome.size,
            entry.max_trust,
            entry.silent,
            calibration,
        ),
    )


def _open(engine_calls: dict[str, EngineCall], outcomes: Sequence[Outcome]) -> frozenset[str]:
    """Who may have more: who gave all it was asked for, and can be asked for more."""
    full = [
        outcome.engine
        for outcome in outcomes
        if outcome.hits and len(outcome.hits) + outcome.malformed >= engine_calls[outcome.engine].asked
    ]
    return frozenset([engine for engine in full if _can_go_deeper(engine_calls[engine])]) if full else _NOBODY


def _can_go_deeper(engine_call: EngineCall) -> bool:
    advertisement = engine_call.engine.advertisement
    offer = None if advertisement is None else advertisement.retrieve
    most = None if offer is None else offer.max_k
    return engine_call.asked < (MAX_HITS if most is None else min(most, MAX_HITS))


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
