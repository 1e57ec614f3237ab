"""The fused result of one query and the pages cut from it. Pure.

A `ResultSet` holds the ranked lists of the engines and their fused order. Deeper answers extend it; hits that were
served once are never served again. `minScore`, `tokenBudget` and MMR are applied when a page is cut, because scores
belong to the gateway's scale there (decision 4)."""

from collections.abc import Container, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from app.federation.outcome import MAX_HITS, Hit, Outcome, degraded, failure_line
from app.federation.planner import EngineCall, Plan
from app.federation.rerank_plan import RerankVerdict
from app.fusion.calibration import EngineCalibration, dump_calibration, load_calibration
from app.fusion.identity import Identity
from app.fusion.injection_screen import InjectionScreen
from app.fusion.merge import FusedList, Reranked
from app.fusion.mmr import diversify
from app.fusion.ranked_lists import FusionConfig, RankedList
from app.fusion.rrf import fuse
from app.protocol.errors import BackendUnavailable
from app.protocol.retrieve_params import RetrieveOptions, RetrieveParams

# --- Pages ---

BYTES_PER_TOKEN: Final = 4
"""`usage.tokens` is an estimate: the UTF-8 bytes of a hit's text, divided by this, rounded up."""

DEFAULT_LAMBDA: Final = 0.5
"""`mmr.lambda` if the request does not set it."""

MAX_POOL: Final = 100
"""Largest number of documents that MMR compares with each other."""


class DiversityOptions(NamedTuple):
    """MMR settings: `lambda_` in [0, 1], and how many of the top documents are reordered."""

    lambda_: float
    pool: int


class Page(NamedTuple):
    """The hits of one response."""

    hits: list[Hit]
    keys: Sequence[str]
    """Identity keys of the hits."""
    end: int
    """Position in the fused order after the last hit."""
    short: bool
    """Whether the order ended before `k` or the token budget was reached."""
    more: bool
    """Whether the order continues after this page."""
    floored: bool
    """Whether documents below `minScore` were cut off; nothing can follow then."""
    tokens: int | None


NOTHING: Final = Page([], (), 0, True, False, False, None)
"""The page of a response for which no engine was asked."""


def diversity_for(lambda_: float | None, k: int) -> DiversityOptions:
    """MMR settings of a request for `k` hits; later pages keep them."""
    return DiversityOptions(DEFAULT_LAMBDA if lambda_ is None else lambda_, min(MAX_POOL, max(50, 4 * k)))


def page_of(
    fusion: FusedList,
    options: RetrieveOptions,
    k: int,
    start: int = 0,
    seen: Container[str] | None = None,
    diversity: DiversityOptions | None = None,
    screen: InjectionScreen | None = None,
) -> Page:
    """At most `k` hits of the order from `start` on: none that is in `seen`, none below `minScore`, within the token
    budget. `screen` marks suspicious texts."""
    length = len(fusion)
    limit = length if options.min_score is None else _above(fusion, options.min_score)
    # Fast path for most requests: the page is a slice of the fused order.
    if seen is None and diversity is None:
        stop = min(start + k, limit)
        hits, keys = fusion.hits(start, stop), fusion.keys(start, stop)
        places: Sequence[int] = range(start, stop)
        last = limit
    else:
        all_keys = fusion.keys()
        # MMR must be right up to the last hit that may be needed, including those that are passed over.
        passed_over = 0 if seen is None else sum(key in seen for key in all_keys)
        order = _diversified(fusion, diversity, limit, start + k + passed_over)
        wanted = [place for place in range(start, limit) if seen is None or all_keys[order[place]] not in seen]
        places, last = wanted[:k], wanted[-1] + 1 if wanted else start
        chosen = fusion.pick([order[place] for place in places])
        hits, keys = chosen.hits(), chosen.keys()
    if screen is not None:
        screen.inspect(hits)
    tokens = None
    fitting = len(hits)
    if options.token_budget is not None:
        hits, tokens = pack(hits, options.token_budget)
        keys = keys[: len(hits)]
    if options.include_text is False:
        # Text was requested from the engines for the gateway's own use; the caller did not ask for it.
        for hit in hits:  # these are copies; the engines' own hits keep their text
            hit.pop("text", None)
    end = places[len(hits) - 1] + 1 if hits else start
    return Page(hits, keys, end, fitting == len(hits) < k, end < last, limit < length, tokens)


def excluding(fusion: FusedList, *left_out: Container[str]) -> FusedList:
    """The same order without the documents in any of `left_out`."""
    keys = fusion.keys()
    wanted = [place for place, key in enumerate(keys) if not any(key in served for served in left_out)]
    return fusion if len(wanted) == len(keys) else fusion.pick(wanted)


def _above(fusion: FusedList, floor: float) -> int:
    """How many of the top documents have a score of at least `floor`."""
    scores = fusion.scores()
    return next((place for place, score in enumerate(scores) if score < floor), len(scores))


def _diversified(fusion: FusedList, diversity: DiversityOptions | None, limit: int, needed: int) -> Sequence[int]:
    """Indexes into `fusion` in the order in which hits are served; correct for the first `needed` of them.

    The pool depends only on the request, and MMR picks greedily, so pages cut one by one are slices of one order.
    """
    if diversity is None:
        return range(limit)
    # At least a quarter of the pool is ordered at once, so that the next pages need not order it again.
    pool = min(diversity.pool, limit)
    chosen = diversify(fusion.pick(range(pool)), min(pool, max(needed, -(-pool // 4))), diversity.lambda_)
    return [*chosen, *sorted(set(range(pool)).difference(chosen)), *range(pool, limit)]


def pack(hits: list[Hit], budget: int) -> tuple[list[Hit], int]:
    """Whole hits from the top until the next would exceed the budget, but at least one; and their estimated tokens."""
    total = 0
    for index, hit in enumerate(hits):
        tokens = estimate_tokens(hit)
        # A first hit over budget is returned anyway: an empty page would look like the end of the list.
        if index and total + tokens > budget:
            return hits[:index], total
        total += tokens
    return hits, total


def estimate_tokens(hit: Hit) -> int:
    """Tokens of one hit's text, estimated from its UTF-8 length; 0 without text."""
    text = hit.get("text")
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN) if type(text) is str else 0


def seen_of(fusion: FusedList, seen: Container[str], identity: Identity) -> Container[str]:
    """Which of these documents were seen, by key; unless keys are ids, also by the public id."""
    if identity == "id":
        return seen
    pairs = zip(fusion.keys(), fusion.hits(), strict=True)
    return frozenset(key for key, hit in pairs if key in seen or f"{hit['id']}" in seen)


def session_keys_of(page: Page, identity: Identity) -> Sequence[str]:
    """What a session remembers of these hits: their keys, and also their ids if keys are something else."""
    return page.keys if identity == "id" else [*page.keys, *(f"{hit['id']}" for hit in page.hits)]


# --- Result sets ---

_NO_ENGINES: Final[frozenset[str]] = frozenset()

Calibrations = Mapping[str, EngineCalibration]
NOT_LEARNED: Final[Calibrations] = MappingProxyType({})


class ResultSet(NamedTuple):
    """The ranked lists of the engines and the fused order that pages are cut from."""

    lists: Sequence[RankedList]
    fusion: FusedList
    options: FusionConfig
    open: frozenset[str] = frozenset()
    """Engines that may have more hits and can be asked for a larger `k`."""
    versions: dict[str, str] | None = None
    """Engine id -> the `indexVersion` it served, if all engines have snapshots."""
    degraded: Sequence[str] = ()
    """Engines that were asked and failed."""
    diversity: DiversityOptions | None = None
    screened: int = 0
    """Number of documents that the injection screen dropped."""
    verdict: RerankVerdict | None = None
    """Result of reranking the fused list, if the request asked for it."""

    def size(self) -> int:
        """Hits of engines that are held in memory; a hit list larger than 1 KiB per hit counts one for each KiB."""
        return sum([max(len(ranked.hits), ranked.size // 1024) for ranked in self.lists])

    def exhausted(self) -> frozenset[str]:
        """Engines that have returned everything they have."""
        return frozenset(ranked.engine for ranked in self.lists) - self.open


def result_set_of(
    plan: Plan, outcomes: Sequence[Outcome], params: RetrieveParams, calibrations: Calibrations = NOT_LEARNED
) -> ResultSet | None:
    """The result set of one round of engine calls; None if no engine answered.

    `calibrations`: learned calibration by engine id.
    """
    engine_calls = {engine_call.engine.id: engine_call for engine_call in plan.engine_calls}
    lists = lists_of(engine_calls, outcomes, calibrations)
    if not lists:
        return None
    diversity = diversity_for(_lambda(params), plan.k) if plan.varied else None
    return ResultSet(
        lists,
        fuse(lists, plan.fusion),
        plan.fusion,
        _open(engine_calls, outcomes),
        versions_of(plan.engine_calls, outcomes),
        degraded(outcomes),
        diversity,
    )


def joined(result_set: ResultSet, kept: ResultSet | None) -> ResultSet:
    """`result_set` joined with the saved one: an engine that failed this time keeps its saved list."""
    if kept is None:
        return result_set
    given = {ranked.engine: ranked for ranked in result_set.lists}
    before = {ranked.engine: ranked for ranked in kept.lists}
    lists = [_extended(given.get(engine), ranked) for engine, ranked in before.items()]
    lists += [ranked for engine, ranked in given.items() if engine not in before]
    # An engine that returned no more for a larger `k` than before has no more.
    deeper = {
        engine for engine in result_set.open if engine not in before or given[engine].fetch_k > before[engine].fetch_k
    }
    # One engine without snapshots makes the response unrepeatable.
    versions = (
        None if result_set.versions is None or kept.versions is None else {**kept.versions, **result_set.versions}
    )
    return result_set._replace(
        lists=lists,
        fusion=fuse(lists, result_set.options),
        open=frozenset(deeper.union(kept.open.difference(given))),
        versions=versions,
        degraded=sorted({*result_set.degraded, *_still_missing(kept, given)}),
        # Later pages keep the MMR settings of the first, or their order would differ.
        diversity=kept.diversity or result_set.diversity,
    )


def _still_missing(kept: ResultSet, given: Container[str]) -> list[str]:
    """Engines that failed before and have no list now. Failed rerankers are not among them: they may be asked again for
    this order."""
    asked = () if kept.verdict is None else kept.verdict.asked
    rerankers = {entry["id"] for entry in asked if entry["status"] == "failed"}
    return [engine for engine in kept.degraded if engine not in given and engine not in rerankers]


def without(result_set: ResultSet, returned: Container[str], seen: Container[str] | None) -> ResultSet:
    """The same result set, served from its start, without the documents that were returned or seen before."""
    if seen is None:
        return result_set._replace(fusion=excluding(result_set.fusion, returned)) if returned else result_set
    known = seen_of(result_set.fusion, seen, result_set.options.identity)
    return result_set._replace(fusion=excluding(result_set.fusion, returned, known))


def dump_result_set(result_set: ResultSet) -> dict[str, Any]:
    """The result set as plain data, for a store outside this process."""
    options = result_set.options
    return {
        "lists": [[*ranked[:-1], dump_calibration(ranked.calibration)] for ranked in result_set.lists],
        "order": result_set.fusion.keys(),
        "options": [options.method, options.rrf_k, options.confidence_weight, options.identity, options.silent],
        "open": sorted(result_set.open),
        "versions": result_set.versions,
        "degraded": list(result_set.degraded),
        "spread": None if result_set.diversity is None else list(result_set.diversity),
        "screened": result_set.screened,
        "reranking": None
        if result_set.fusion.reranking is None
        else [dict(scores) for scores in result_set.fusion.reranking],
        "verdict": None if result_set.verdict is None else list(result_set.verdict),
    }


def load_result_set(plain: dict[str, Any]) -> ResultSet:
    """The reverse of `dump_result_set`. Fuses the lists again, since fusion is deterministic."""
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
    """A list as `dump_result_set` wrote it; lists of releases before learned calibration do not contain one."""
    ranked = RankedList(*plain)
    return ranked if ranked.calibration is None else ranked._replace(calibration=load_calibration(ranked.calibration))


def lists_of(
    engine_calls: Mapping[str, EngineCall], outcomes: Sequence[Outcome], calibrations: Calibrations = NOT_LEARNED
) -> list[RankedList]:
    """The input of fusion: one ranked list per engine that answered; `engine_calls`, `calibrations` by engine id."""
    return [
        _list_of(engine_calls[one.engine], one, calibrations.get(one.engine)) for one in outcomes if one.status == "ok"
    ]


def _list_of(engine_call: EngineCall, outcome: Outcome, calibration: EngineCalibration | None) -> RankedList:
    entry = engine_call.engine.entry
    # A third of the cost of RankedList(…), for every engine of every request.
    return tuple.__new__(
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
    """Engines that may have more hits: they returned as many as asked for, and accept a larger `k`."""
    # Malformed hits count too: the engine used up its `k` for them.
    full = [
        outcome.engine
        for outcome in outcomes
        if outcome.hits and len(outcome.hits) + outcome.malformed >= engine_calls[outcome.engine].asked
    ]
    return frozenset([engine for engine in full if _can_go_deeper(engine_calls[engine])]) if full else _NO_ENGINES


def _can_go_deeper(engine_call: EngineCall) -> bool:
    advertisement = engine_call.engine.advertisement
    offer = None if advertisement is None else advertisement.retrieve
    most = None if offer is None else offer.max_k
    return engine_call.asked < (MAX_HITS if most is None else min(most, MAX_HITS))


def _extended(given: RankedList | None, before: RankedList) -> RankedList:
    """A deeper list, followed by hits of the earlier list that it lacks: an engine may rank differently for a larger
    `k`."""
    if given is None:
        return before
    # Ids are compared as strings, as in fusion: an engine may send 1 and later "1".
    known = {f"{hit['id']}" for hit in given.hits}
    lacking = [hit for hit in before.hits if f"{hit['id']}" not in known]
    return given._replace(hits=[*given.hits, *lacking], size=given.size + before.size) if lacking else given


def _lambda(params: RetrieveParams) -> float | None:
    """The requested MMR lambda, whether requested of the gateway or of the engines."""
    mmr = params.gateway.mmr or params.options.mmr
    return None if mmr is None else mmr.lambda_


# --- Snapshots (RCP §7.7) ---


def versions_of(engine_calls: Sequence[EngineCall], outcomes: Sequence[Outcome]) -> dict[str, str] | None:
    """Engine id -> the version it served.

    None unless every engine that was asked has snapshots and every one that answered names its version. An engine that
    was pinned to a version need not name it.
    """
    # Checked before the outcomes: with most registries this is the end.
    if not all(map(_has_snapshots, engine_calls)):
        return None
    versions: dict[str, str] = {}
    pinned: dict[str, str | None] = {}
    for outcome in outcomes:
        if outcome.status != "ok":
            continue
        version = outcome.index_version
        if version is None:
            pinned = pinned or {engine_call.engine.id: engine_call.pinned for engine_call in engine_calls}
            version = pinned[outcome.engine]
            if version is None:
                return None
        versions[outcome.engine] = version
    return versions


def not_served(engine_calls: Sequence[EngineCall], outcomes: Sequence[Outcome]) -> BackendUnavailable | None:
    """The error (-32010) of a request if an engine failed to serve its snapshot, or served another version."""
    pinned = {
        engine_call.engine.id: engine_call.pinned for engine_call in engine_calls if engine_call.pinned is not None
    }
    for outcome in outcomes:
        version = pinned.get(outcome.engine)
        if version is None:
            continue
        if outcome.status == "failed":
            return _unavailable(outcome.engine, failure_line(outcome), retryable=outcome.kind != "refused")
        # Engines need not repeat the version they were pinned to.
        if outcome.index_version not in (None, version):
            return _unavailable(outcome.engine, "it served another snapshot", retryable=False)
    return None


def _unavailable(engine: str, why: str, *, retryable: bool) -> BackendUnavailable:
    return BackendUnavailable(
        f"engine '{engine}' did not serve the requested snapshot", retryable=retryable, detail=why
    )


def _has_snapshots(engine_call: EngineCall) -> bool:
    advertisement = engine_call.engine.advertisement
    return advertisement is not None and advertisement.retrieve is not None and advertisement.retrieve.snapshots
