"""The whole of a `retrieve`: plan, fan out, fuse, cut a page, save, build the response. Read this module first.

Every step is a function from values to a value: RetrieveCall, Plan, Outcomes, ResultSet, Page, result. A request that
continues an earlier one (`cursor`, `sessionId`) is served from the saved result set as far as that reaches.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from time import perf_counter
from typing import Any, NamedTuple

from app.federation.call_tracing import spans_for
from app.federation.calls import MIN_SECONDS, RetrieveCall, time_left, time_waited
from app.federation.engine_selection import EngineSelector, limited_to
from app.federation.fanout import FanOut, OutcomeListener
from app.federation.hit_validation import sanitized
from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.learning import scope_of
from app.federation.membership import Members
from app.federation.outcome import Hit, Outcome, degraded, no_engine_answered, required_failed, with_outcomes
from app.federation.pagination import FIRST, Pages
from app.federation.planner import Plan, plan_retrieve, plan_without_calls
from app.federation.progress import ProgressListener, ProgressReporter, fused, reranked
from app.federation.quorum import tail_of
from app.federation.request_options import SURFACE, Depth
from app.federation.rerank_plan import RerankPlan
from app.federation.response import STATE_DEGRADED, RetrieveResponse, build_result, is_complete, note
from app.federation.result_set import (
    NOT_LEARNED,
    NOTHING,
    Calibrations,
    Page,
    ResultSet,
    joined,
    not_served,
    page_of,
    result_set_of,
    seen_of,
    without,
)
from app.federation.shadows import Shadows
from app.federation.union_reranking import rerank_union
from app.fusion.injection_screen import InjectionScreen
from app.protocol.errors import DeadlineExceeded, RcpError
from app.resilience.yield_limiter import heavy_work
from app.settings.schema import FusionSettings, GatewaySettings

Result = dict[str, Any]

HEAVY_BYTES = 1_048_576
"""If engines sent more bytes than this, other requests may run between fusing, cutting and writing."""

ROUNDS = 2
"""How often engines are asked to fill one page; more often only while the page is empty."""

_engine_of = attrgetter("engine")


class RetrieveAnswer(NamedTuple):
    """The result of one `retrieve`, and what decides whether equal requests may be given it."""

    result: Result
    complete: bool
    """Whether nothing is missing: no engine failed or was cut off, a reranker answered, the screen dropped nothing."""
    versions: Mapping[str, str]
    """Engine id -> the `indexVersion` that it answered from."""
    engines: tuple[str, ...]
    """Ids of the engines that were asked."""


class _Retrieval:
    """One request in progress: its collaborators, and what changes from one round of engine calls to the next."""

    __slots__ = (
        "calibrations",
        "call",
        "cursor_state",
        "failed",
        "instrumentation",
        "listener",
        "members",
        "pages",
        "rounds",
        "screen",
        "selected",
        "selector",
        "settings",
        "spent",
    )

    def __init__(
        self,
        call: RetrieveCall,
        members: Members,
        settings: GatewaySettings,
        instrumentation: RetrieveInstrumentation,
        listener: ProgressListener | None,
        pages: Pages,
        selector: EngineSelector | None,
    ) -> None:
        self.call = call
        self.members = members
        self.settings = settings
        self.instrumentation = instrumentation
        self.listener = listener
        self.pages = pages
        self.selector = selector
        self.selected: tuple[str, ...] = ()
        """The engines that may be asked, once selection has left some out."""
        self.cursor_state = FIRST
        self.rounds = 0
        self.screen: InjectionScreen | None = None
        self.failed: frozenset[str] = frozenset()
        """Engines that failed in this request; they are not asked again to fill the page."""
        self.calibrations: Calibrations = NOT_LEARNED
        """What was learned of the engines when the request was planned; the same for all rounds and progress."""
        self.spent: dict[str, float] = {}
        """Step -> seconds it took; empty unless the request asks for an explanation."""

    def spend(self, step: str, began: float) -> None:
        """Add the time since `began` (`perf_counter`) to a step, if the response explains itself."""
        if self.call.params.gateway.explain:
            self.spent[step] = self.spent.get(step, 0.0) + perf_counter() - began

    def __repr__(self) -> str:
        return f"<Retrieval {self.call.request_id}, {self.rounds} rounds>"


async def retrieve(
    call: RetrieveCall,
    members: Members,
    settings: GatewaySettings,
    instrumentation: RetrieveInstrumentation,
    listener: ProgressListener | None = None,
    pages: Pages | None = None,
    selector: EngineSelector | None = None,
    shadows: Shadows | None = None,
) -> RetrieveAnswer:
    """Answer one `retrieve` for the whole federation (RCP §7.7, §16). Raises RcpError.

    `listener` receives progress (§9). Without `pages` nothing is saved, and a `nextCursor` cannot be used. `selector`
    chooses the engines if engine selection is in use. `shadows` is set only if there are shadow engines.
    """
    began = perf_counter() - time_waited(call)  # `usage.latencyMs` counts from the arrival of the request
    if time_left(call) < MIN_SECONDS:
        raise DeadlineExceeded("the deadline leaves no time to ask any engine", retryable=True)
    pages = pages or Pages.from_settings(settings.state)
    if call.tenant is not None:
        pages = pages.for_tenant(call.tenant)
    run = _Retrieval(call, members, settings, instrumentation, listener, pages, selector)
    # Both are cheap for the usual request: neither awaits anything unless screening or continuation is in use.
    run.screen = await pages.screen(settings.screen)
    run.cursor_state = await pages.cursor_state(call.params)  # FIRST unless the request continues an earlier one
    run.selected = run.cursor_state.record.selected
    response = _serve_saved(run)
    if response is None:
        response = await _ask_engines(run)
    while _may_fill(run, response):
        # What engines added may have been served or seen before, so one round need not fill the page.
        response = _with_earlier_calls(response, await _ask_engines(run))
    _count_hits(run, response)
    result = build_result(call.params, members, response, perf_counter() - began, run.spent)
    cursor = await _save(run, response)
    if cursor is not None:
        result["nextCursor"] = cursor
    if pages.degraded and (cursor is not None or call.params.options.session_id is not None):
        note(result, STATE_DEGRADED)
    # Overhead is the total less the slowest engine, so it is only defined for one round of parallel calls.
    if run.rounds == 1 and response.plan.union is None:
        instrumentation.retrieved(response.outcomes, perf_counter() - began)
    if shadows is not None and run.rounds == 1 and run.cursor_state is FIRST and response.result_set is not None:
        shadows.answered(call, members, settings, fusion_settings_of(call, settings), run.calibrations, response)
    versions = {one.engine: one.index_version for one in response.outcomes if one.index_version is not None}
    engines = tuple([outcome.engine for outcome in response.outcomes])
    return RetrieveAnswer(result, is_complete(response), versions, engines)


async def _ask_engines(run: _Retrieval) -> RetrieveResponse:
    """One round: plan, fan out, fuse, rerank, cut a page. Raises RcpError."""
    run.rounds += 1
    plan = _plan(run)
    if run.settings.fusion.learning != "off":
        run.calibrations = run.pages.learning.maps(scope_of(run.call.tenant, run.settings.fusion))
    outcomes = await _fan_out(run, plan)
    heavy = sum([outcome.size for outcome in outcomes]) > HEAVY_BYTES
    if heavy:
        await heavy_work().wait()
    result_set = _fuse(run, plan, outcomes)
    if result_set is None:
        return _no_engine_answered(run, plan, outcomes)
    if run.screen is not None:
        result_set = await _screen(run, result_set, plan.k)
    if plan.union is not None:
        result_set = await _rerank(run, plan.union, result_set)
    if run.cursor_state is not FIRST:
        run.failed |= frozenset(degraded(outcomes))
        # Concurrent requests with the same cursor must be served the same: the first to finish wins.
        run.cursor_state = await run.pages.replace_result_set(
            run.call.params, run.cursor_state, result_set, plan.window
        )
        result_set = run.cursor_state.result_set or result_set
    if heavy:
        await heavy_work().wait()
    page = _cut_page(run, result_set, plan.k)
    if heavy:
        await heavy_work().wait()  # before the response is built
    return RetrieveResponse(plan=plan, outcomes=outcomes, result_set=result_set, page=page)


# --- Plan ---


def _plan(run: _Retrieval) -> Plan:
    """Which engines are asked, and for what. Raises RcpError if none can be."""
    call, settings = run.call, run.settings
    now = asyncio.get_running_loop().time()
    with run.instrumentation.step("plan"):
        fusion = fusion_settings_of(call, settings)
        plan = plan_retrieve(call, run.members, now, settings.retrieve, fusion, _depth(run))
        return plan if run.selector is None else _select(run, run.selector, plan)


def _select(run: _Retrieval, selector: EngineSelector, plan: Plan) -> Plan:
    """The plan with the most promising engines only. Later rounds and pages ask no engine that the first did not."""
    if run.selected:
        return limited_to(plan, run.selected)
    if run.rounds > 1 or run.call.params.options.cursor is not None:
        return plan
    plan = selector.select(run.call, run.members, run.settings.select, plan)
    if plan.selection is not None and len(plan.selection.asked) < len(plan.selection.order):
        run.selected = tuple([engine_call.engine.id for engine_call in plan.engine_calls])
    return plan


def fusion_settings_of(call: RetrieveCall, settings: GatewaySettings) -> FusionSettings:
    """Fusion settings for what the request leaves open: the tenant's if it has some, else the gateway's."""
    tenant = call.tenant
    return settings.fusion if tenant is None or tenant.fusion is None else tenant.fusion


def _depth(run: _Retrieval) -> Depth:
    """How many hits beyond `k` engines are asked for, since those served or seen before are left out."""
    state = run.cursor_state
    if state is FIRST:
        return SURFACE
    place, result_set = state.record, state.result_set
    seen = 0 if state.trajectory is None else len(state.trajectory)
    if result_set is None and not place.reach:
        return Depth(min(seen, run.settings.retrieve.window_min), 0, run.failed)
    exhausted = run.failed if result_set is None else run.failed | result_set.exhausted()
    # Twice as deep as last time; as deep as last time if the saved result set was evicted and is fetched again.
    return Depth(len(place.returned) + seen, place.reach * (1 if result_set is None else 2), exhausted)


# --- Fan out ---


async def _fan_out(run: _Retrieval, plan: Plan) -> Sequence[Outcome]:
    """Ask the engines of the plan; their outcomes by engine id. Raises RcpError if the whole request failed."""
    listener = run.listener if run.rounds == 1 else None  # progress (§9) never goes back, so later rounds are silent
    reporter = None
    listen: OutcomeListener = run.instrumentation.engine_call
    if listener is not None:
        so_far = partial(_partial_hits, run, plan)
        reporter = ProgressReporter(listener, run.instrumentation, run.call.meta, len(plan.engine_calls), so_far)
        listen = reporter.call_ended
    spans = spans_for(run.instrumentation.tracing, "retrieve")
    fan_out = FanOut(plan.engine_calls, listen, tail=tail_of(run.settings.retrieve), spans=spans)
    try:
        lost = await fan_out.run()
    finally:
        if reporter is not None:
            reporter.close()
    outcomes = sorted([*fan_out.outcomes, *plan.lost] if plan.lost else fan_out.outcomes, key=_engine_of)
    if lost is not None:
        raise with_outcomes(_must_answer_failed(plan, lost), outcomes)
    if run.call.params.options.index_version is not None:
        fault = not_served(plan.engine_calls, outcomes)
        if fault is not None:
            raise with_outcomes(fault, outcomes)
    if listener is not None and any(outcome.status == "ok" for outcome in outcomes):
        # Not sent if no engine answered: the error follows instead.
        listener.send(fused(run.call.meta.progress_token, outcomes))
    return outcomes


def _must_answer_failed(plan: Plan, outcome: Outcome) -> RcpError:
    """The error of a request in which a `required` engine, or one pinned to a snapshot, failed."""
    engine_call = next(engine_call for engine_call in plan.engine_calls if engine_call.engine.id == outcome.engine)
    if not engine_call.engine.entry.required:
        snapshot_fault = not_served(plan.engine_calls, [outcome])
        if snapshot_fault is not None:
            return snapshot_fault
    return required_failed(outcome)


def _no_engine_answered(run: _Retrieval, plan: Plan, outcomes: Sequence[Outcome]) -> RetrieveResponse:
    """What is left of the saved result set, if the request continues one. Raises RcpError otherwise.

    Nothing to ask (depth exhausted, cycle) is an empty success (decision 3).
    """
    result_set = run.cursor_state.result_set
    # A saved result set can still fill a page, although every engine failed just now.
    page = NOTHING if result_set is None else _cut_page(run, result_set, plan.k)
    if plan.engine_calls and not page.hits:
        raise no_engine_answered(outcomes, out_of_time=plan.cut_by_caller)
    run.failed |= frozenset(degraded(outcomes))
    if result_set is not None:
        result_set = result_set._replace(
            degraded=sorted({*result_set.degraded, *degraded(outcomes)}),
            open=result_set.open if plan.engine_calls else frozenset(),
        )
    return RetrieveResponse(plan=plan, outcomes=outcomes, result_set=result_set, page=page)


def _with_earlier_calls(before: RetrieveResponse, response: RetrieveResponse) -> RetrieveResponse:
    """`response` with the engine calls of an earlier round, for engines that were not asked again."""
    outcomes = {outcome.engine: outcome for outcome in (*before.outcomes, *response.outcomes)}
    engine_calls = {call.engine.id: call for call in (*before.plan.engine_calls, *response.plan.engine_calls)}
    plan = response.plan._replace(
        engine_calls=tuple(engine_calls.values()),
        skipped=tuple(outcome for outcome in response.plan.skipped if outcome.engine not in outcomes),
    )
    return response._replace(plan=plan, outcomes=[outcomes[engine] for engine in sorted(outcomes)])


# --- Fuse, screen, rerank ---


def _fuse(run: _Retrieval, plan: Plan, outcomes: Sequence[Outcome]) -> ResultSet | None:
    """The fused answers without what was served or seen before; None if no engine answered."""
    began = perf_counter()
    with run.instrumentation.step("fuse"):
        result_set = result_set_of(plan, outcomes, run.call.params, run.calibrations)
    run.spend("fuse", began)
    _observe(run, plan, result_set)
    # Outside the timed part: it is arithmetic on what was fused, and only for requests that continue another.
    return None if result_set is None else _continued(run, result_set)


def _observe(run: _Retrieval, plan: Plan, result_set: ResultSet | None) -> None:
    """Let learned calibration see the lists of the first round: new engines, new versions, the scale of scores."""
    fusion = run.settings.fusion
    # Later rounds repeat the engines of the first, so their scores would count twice.
    if fusion.learning != "off" and result_set is not None and run.rounds == 1:
        scope = scope_of(run.call.tenant, fusion)
        frozen = fusion.learning == "frozen"
        run.pages.learning.observe(scope, result_set.lists, plan.engine_calls, frozen=frozen)


def _continued(run: _Retrieval, result_set: ResultSet) -> ResultSet:
    """New answers joined with the saved ones, without the hits that were served or seen before."""
    state = run.cursor_state
    if state is FIRST:
        return result_set
    return without(joined(result_set, state.result_set), frozenset(state.record.returned), state.trajectory)


async def _screen(run: _Retrieval, result_set: ResultSet, k: int) -> ResultSet:
    """The result set without the hits that the injection screen drops."""
    assert run.screen is not None
    start = run.cursor_state.record.start
    for _ in run.screen.steps(result_set.fusion, start, start + 2 * k):
        await asyncio.sleep(0)  # scanning long texts takes a while; other requests run in between
    return _screened(run, result_set)


def _screened(run: _Retrieval, result_set: ResultSet) -> ResultSet:
    if run.screen is None:
        return result_set
    return result_set._replace(fusion=run.screen.kept(result_set.fusion), screened=run.screen.dropped)


async def _rerank(run: _Retrieval, union: RerankPlan, result_set: ResultSet) -> ResultSet:
    """The result set with its top reranked by one engine; unchanged if none can be asked in time (RCP §7.7)."""
    began = perf_counter()
    result_set = await rerank_union(run.call, run.members, run.settings, run.instrumentation, union, result_set)
    run.spend("rerank", began)
    if run.listener is not None and run.rounds == 1 and result_set.verdict is not None:
        run.listener.send(reranked(run.call.meta.progress_token, result_set.verdict))
    return result_set


# --- Page ---


def _cut_page(run: _Retrieval, result_set: ResultSet, k: int) -> Page:
    began = perf_counter()
    state = run.cursor_state
    seen = state.trajectory
    known = None if seen is None else seen_of(result_set.fusion, seen, result_set.options.identity)
    options = run.call.params.options
    page = page_of(result_set.fusion, options, k, state.record.start, known, result_set.diversity, run.screen)
    run.spend("fuse", began)
    return page


def _serve_saved(run: _Retrieval) -> RetrieveResponse | None:
    """The next page of the saved result set; None if there is none, or if engines must be asked for more."""
    result_set = run.cursor_state.result_set
    if result_set is None:
        return None
    # Reported like any reason for not asking an engine, so that every engine appears in the report.
    detail = "this page was served from the saved result set"
    plan = plan_without_calls(run.call, run.members, result_set.options, "kept", detail)
    page = _cut_page(run, result_set, plan.k)
    if page.short and result_set.open and not page.floored:
        return None
    return RetrieveResponse(plan=plan, outcomes=(), result_set=result_set, page=page)


def _may_fill(run: _Retrieval, response: RetrieveResponse) -> bool:
    """Whether the page is not full, and engines that may have more hits can still be asked in time.

    Only for requests that continue an earlier one: a first page is filled by over-fetching.
    """
    result_set, page = response.result_set, response.page
    if run.cursor_state is FIRST or result_set is None or not page.short or page.floored:
        return False
    if not result_set.open - run.failed:
        return False
    return (run.rounds < ROUNDS or not page.hits) and time_left(run.call) >= MIN_SECONDS


def _partial_hits(run: _Retrieval, plan: Plan, ended: Sequence[Outcome]) -> list[Hit] | None:
    """The hits of a response made from the outcomes so far, for progress (§9); None if no engine has answered yet."""
    result_set = result_set_of(plan, sorted(ended, key=_engine_of), run.call.params, run.calibrations)
    if result_set is None:
        return None
    if run.screen is not None and any(True for _ in run.screen.steps(result_set.fusion, 0, plan.k)):
        # Screening would block the event loop for too long here, so this notification carries no hits.
        return None
    result_set = _screened(run, _continued(run, result_set))
    options, seen = run.call.params.options, run.cursor_state.trajectory
    hits = page_of(result_set.fusion, options, plan.k, 0, seen, result_set.diversity, run.screen).hits
    sanitized(hits)
    return hits


# --- Save, count ---


async def _save(run: _Retrieval, response: RetrieveResponse) -> str | None:
    """Save what the next page and the session need; returns the cursor of the next page if there may be one."""
    result_set, page, state, params = response.result_set, response.page, run.cursor_state, run.call.params
    if result_set is None:
        return None
    session_id = params.options.session_id
    if session_id is not None:
        for_feedback = "feedback" in run.members.capabilities
        for_learning = run.settings.fusion.learning == "on"
        await run.pages.remember(
            session_id, state, page, result_set, for_feedback=for_feedback, for_learning=for_learning
        )
    if not response.follows:
        return None
    reach = state.record.reach or response.plan.window
    return await run.pages.save(params, state, result_set, page, reach, run.selected)


def _count_hits(run: _Retrieval, response: RetrieveResponse) -> None:
    """Count what is about to be served. Runs before the response states its time, which includes this."""
    if run.screen is not None:
        run.instrumentation.screened(run.screen)
    result_set = response.result_set
    selection = response.plan.selection
    if selection is not None and run.selector is not None:
        run.selector.answered(run.call, selection, response.outcomes, response.page.hits)
    if result_set is not None and run.rounds and response.outcomes:
        run.instrumentation.served(response.plan, response.outcomes, result_set.fusion, response.page.hits)
