"""One question under way: what is kept of it, what the engines are asked, and what is served of that.

Decides when a page is a slice of what is kept, and when engines are asked deeper to fill it. It refuses to know how a
result is written.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from time import perf_counter

from app.federation.call_tracing import spans_for
from app.federation.calls import LEAST_SECONDS, RetrieveCall, time_left
from app.federation.depth import SURFACE, Depth
from app.federation.fanout import FanOut, OutcomeListener
from app.federation.hit_validation import sanitized
from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.learning import scope_of
from app.federation.membership import Members
from app.federation.outcome import Hit, Outcome, degraded, knowing, nobody_answered, required_failed
from app.federation.page import NOTHING, Page, page_of, seen_of
from app.federation.pagination import FIRST, Pages
from app.federation.planner import Plan, nobody_asked, plan_retrieve
from app.federation.progress import ProgressListener, fused, reranked
from app.federation.progress_reporting import ProgressReporter
from app.federation.quorum import tail_of
from app.federation.rerank_plan import RerankPlan
from app.federation.response import RetrieveResponse
from app.federation.result_set import NOT_LEARNED, Calibrations, ResultSet, joined, result_set_of, without
from app.federation.snapshot_pins import not_served
from app.federation.union_reranking import rerank_union
from app.fusion.injection_screen import InjectionScreen
from app.protocol.errors import RcpError
from app.resilience.yield_limiter import heavy_work
from app.settings.schema import FusionSettings, GatewaySettings

HEAVY_BYTES = 1_048_576
"""With more bytes of answers than this, other work of the loop may run between fusing, cutting and writing."""

ROUNDS = 2
"""How often engines are asked to fill one page; more only as long as it is empty."""

_engine_of = attrgetter("engine")


class RetrieveExecution:
    """One question under way."""

    __slots__ = (
        "_call",
        "_failed",
        "_instrumentation",
        "_learned",
        "_listener",
        "_members",
        "_pages",
        "_rounds",
        "_screen",
        "_settings",
        "_turn",
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
    ) -> None:
        self._call = call
        self._members = members
        self._settings = settings
        self._instrumentation = instrumentation
        self._listener = listener
        self._pages = pages
        self._turn = FIRST
        self._rounds = 0
        self._screen: InjectionScreen | None = None
        self._failed: frozenset[str] = frozenset()
        self._learned: Calibrations = NOT_LEARNED
        self.spent: dict[str, float] = {}
        """Step -> seconds that it took, where the answer is to be explained."""

    async def answer(self) -> RetrieveResponse:
        """What is kept, if that is enough, else what the engines give. Raises RcpError."""
        options = self._call.params.options
        wishes = self._settings.screen
        if wishes.feedback or wishes.injection != "off":
            self._screen = await self._pages.screen(wishes)
        if options.cursor is None and options.session_id is None:
            return await self._ask()
        self._turn = await self._pages.cursor_state(self._call.params)
        answer = self._from_kept()
        if answer is None:
            answer = await self._ask()
            while self._may_fill(answer):
                answer = _told_of_all(answer, await self._ask())
        return answer

    async def leave_behind(self, answer: RetrieveResponse) -> str | None:
        """Keep what the next page and the session need; the cursor of the next page if there may be one."""
        plan, _, result_set, page = answer
        params, cursor_state = self._call.params, self._turn
        if result_set is None:
            return None
        if params.options.session_id is not None:
            heard = "feedback" in self._members.capabilities
            taught = self._settings.fusion.learning == "on"
            await self._pages.remember(
                params.options.session_id, cursor_state, page, result_set, for_feedback=heard, for_learning=taught
            )
        if not answer.follows:
            return None
        return await self._pages.keep(params, cursor_state, result_set, page, cursor_state.place.reach or plan.window)

    def observe(self, answer: RetrieveResponse) -> None:
        """Count what is about to be served. What this costs is part of the time that the answer states."""
        if self._screen is not None:
            self._instrumentation.screened(self._screen)
        if answer.result_set is not None and self._rounds and answer.outcomes:
            self._instrumentation.served(answer.plan, answer.outcomes, answer.result_set.fusion, answer.page.hits)

    def ended(self, answer: RetrieveResponse, took: float) -> None:
        """The answer is complete after `took` seconds. Overhead is counted where there was one longest leg."""
        if self._rounds == 1 and answer.plan.union is None:
            self._instrumentation.retrieved(answer.outcomes, took)

    async def _ask(self) -> RetrieveResponse:
        """Ask the engines, as deep as this turn needs."""
        self._rounds += 1
        settings, cursor_state = self._settings, self._turn
        now = asyncio.get_running_loop().time()
        blend = blend_of(self._call, settings)
        with self._instrumentation.step("plan"):
            plan = plan_retrieve(self._call, self._members, now, settings.retrieve, blend, self._depth())
        learning = settings.fusion.learning
        scope = scope_of(self._call.tenant, settings.fusion)
        if learning != "off":
            self._learned = self._pages.learning.maps(scope)
        outcomes = await self._outcomes(plan)
        heavy = sum([outcome.size for outcome in outcomes]) > HEAVY_BYTES
        if heavy:
            await heavy_work().wait()
        began = perf_counter()
        with self._instrumentation.step("fuse"):
            result_set = result_set_of(plan, outcomes, self._call.params, self._learned)
        self._spend("fuse", began)
        if learning != "off" and result_set is not None and self._rounds == 1:
            self._pages.learning.observe(scope, result_set.lists, plan.engine_calls, frozen=learning == "frozen")
        if result_set is None:
            return self._from_nobody(plan, outcomes)
        if cursor_state is not FIRST:
            result_set = without(
                joined(result_set, cursor_state.result_set),
                frozenset(cursor_state.place.returned),
                cursor_state.trajectory,
            )
        if self._screen is not None:
            start = cursor_state.place.start
            for _ in self._screen.steps(result_set.fusion, start, start + 2 * plan.k):
                await asyncio.sleep(0)
        result_set = self._screened(result_set)
        if cursor_state is not FIRST:
            self._failed |= frozenset(degraded(outcomes))
        if plan.union is not None:
            result_set = await self._reranked(plan.union, result_set)
        if cursor_state is not FIRST:
            self._turn = await self._pages.restock(self._call.params, cursor_state, result_set, plan.window)
            result_set = self._turn.result_set or result_set
        if heavy:
            await heavy_work().wait()
        answer = RetrieveResponse(plan, outcomes, result_set, self._page(result_set, plan.k))
        if heavy:
            await heavy_work().wait()
        return answer

    async def _reranked(self, union: RerankPlan, result_set: ResultSet) -> ResultSet:
        """The stock with the best of the union reranked; as it is if nobody can be asked in time."""
        began = perf_counter()
        result_set = await rerank_union(
            self._call, self._members, self._settings, self._instrumentation, union, result_set
        )
        self._spend("rerank", began)
        if self._listener is not None and self._rounds == 1 and result_set.verdict is not None:
            self._listener.tell(reranked(self._call.meta.progress_token, result_set.verdict))
        return result_set

    async def _outcomes(self, plan: Plan) -> Sequence[Outcome]:
        """What became of the legs, by engine id. Raises RcpError if that fails the whole."""
        listener = self._listener if self._rounds == 1 else None
        reporter = None if listener is None else self._reporter(plan, listener)
        listen: OutcomeListener = self._instrumentation.engine_call if reporter is None else reporter.heard
        spans = spans_for(self._instrumentation.tracing, "retrieve")
        fan_out = FanOut(plan.engine_calls, listen, tail=tail_of(self._settings.retrieve), spans=spans)
        try:
            lost = await fan_out.run()
        finally:
            if reporter is not None:
                reporter.close()
        outcomes = sorted([*fan_out.outcomes, *plan.lost] if plan.lost else fan_out.outcomes, key=_engine_of)
        if lost is not None:
            raise knowing(_lost(plan, lost), outcomes)
        if self._call.params.options.index_version is not None:
            fault = not_served(plan.engine_calls, outcomes)
            if fault is not None:
                raise knowing(fault, outcomes)
        if listener is not None and any(outcome.status == "ok" for outcome in outcomes):
            listener.tell(fused(self._call.meta.progress_token, outcomes))
        return outcomes

    def _from_kept(self) -> RetrieveResponse | None:
        """A slice of what is kept; None if more must be asked for."""
        result_set = self._turn.result_set
        if result_set is None:
            return None
        plan = nobody_asked(
            self._call, self._members, result_set.options, "kept", "this page is a slice of the order that was kept"
        )
        page = self._page(result_set, plan.k)
        if page.short and result_set.open and not page.floored:
            return None
        return RetrieveResponse(plan, (), result_set, page)

    def _from_nobody(self, plan: Plan, outcomes: Sequence[Outcome]) -> RetrieveResponse:
        """Nobody answered: what is left of what was kept, if there is any. Raises RcpError."""
        result_set = self._turn.result_set
        page = NOTHING if result_set is None else self._page(result_set, plan.k)
        if plan.engine_calls and not page.hits:
            raise nobody_answered(outcomes, out_of_time=plan.cut_by_caller)
        self._failed |= frozenset(degraded(outcomes))
        if result_set is not None:
            result_set = result_set._replace(
                degraded=sorted({*result_set.degraded, *degraded(outcomes)}),
                open=result_set.open if plan.engine_calls else frozenset(),
            )
        return RetrieveResponse(plan, outcomes, result_set, page)

    def _page(self, result_set: ResultSet, k: int) -> Page:
        cursor_state, options, began = self._turn, self._call.params.options, perf_counter()
        seen = cursor_state.trajectory
        known = None if seen is None else seen_of(result_set.fusion, seen, result_set.options.identity)
        page = page_of(result_set.fusion, options, k, cursor_state.place.start, known, result_set.spread, self._screen)
        self._spend("fuse", began)
        return page

    def _spend(self, step: str, began: float) -> None:
        if self._call.params.gateway.explain:
            self.spent[step] = self.spent.get(step, 0.0) + perf_counter() - began

    def _screened(self, result_set: ResultSet) -> ResultSet:
        """The stock without what a screen leaves out."""
        if self._screen is None:
            return result_set
        kept = self._screen.kept(result_set.fusion)
        return result_set._replace(fusion=kept, screened=self._screen.dropped)

    def _depth(self) -> Depth:
        """How much deeper than `k` needs: what was answered, or seen in the session, is left out."""
        cursor_state = self._turn
        if cursor_state is FIRST:
            return SURFACE
        place, result_set = cursor_state.place, cursor_state.result_set
        seen = 0 if cursor_state.trajectory is None else len(cursor_state.trajectory)
        if result_set is None and not place.reach:
            return Depth(min(seen, self._settings.retrieve.window_min), 0, self._failed)
        whole = self._failed if result_set is None else self._failed | result_set.whole()
        return Depth(len(place.returned) + seen, place.reach * (1 if result_set is None else 2), whole)

    def _may_fill(self, answer: RetrieveResponse) -> bool:
        """Whether the page is not full and somebody who may have more is still to be asked."""
        _, _, result_set, page = answer
        if result_set is None or not page.short or page.floored or not result_set.open - self._failed:
            return False
        return (self._rounds < ROUNDS or not page.hits) and time_left(self._call) >= LEAST_SECONDS

    def _reporter(self, plan: Plan, listener: ProgressListener) -> ProgressReporter:
        """Lets the listener hear of every leg that ends, and now and then of the list fused so far."""
        return ProgressReporter(
            listener, self._instrumentation, self._call.meta, len(plan.engine_calls), partial(self._so_far, plan)
        )

    def _so_far(self, plan: Plan, ended: Sequence[Outcome]) -> list[Hit] | None:
        """What the answer would hold if nobody else answered; None if nobody has yet."""
        cursor_state = self._turn
        result_set = result_set_of(plan, sorted(ended, key=_engine_of), self._call.params, self._learned)
        if result_set is None:
            return None
        if self._screen is not None and any(True for _ in self._screen.steps(result_set.fusion, 0, plan.k)):
            return None  # more to look at than fits into one turn of the loop: this progress comes without its hits
        if cursor_state is not FIRST:
            result_set = without(
                joined(result_set, cursor_state.result_set),
                frozenset(cursor_state.place.returned),
                cursor_state.trajectory,
            )
        result_set = self._screened(result_set)
        options = self._call.params.options
        hits = page_of(
            result_set.fusion, options, plan.k, 0, cursor_state.trajectory, result_set.spread, self._screen
        ).hits
        sanitized(hits)
        return hits

    def __repr__(self) -> str:
        return f"<Journey {self._call.request_id}, {self._rounds} rounds>"


def blend_of(call: RetrieveCall, settings: GatewaySettings) -> FusionSettings:
    """How the answer to this call is blended where it does not say: as its tenant wishes, or else the gateway."""
    tenant = call.tenant
    return settings.fusion if tenant is None or tenant.fusion is None else tenant.fusion


def _lost(plan: Plan, outcome: Outcome) -> RcpError:
    """The error of a request that an engine failed which must not fail."""
    engine_call = next(engine_call for engine_call in plan.engine_calls if engine_call.engine.id == outcome.engine)
    return (None if engine_call.engine.entry.required else not_served(plan.engine_calls, [outcome])) or required_failed(
        outcome
    )


def _told_of_all(before: RetrieveResponse, answer: RetrieveResponse) -> RetrieveResponse:
    """`answer` with the outcomes of engines that were asked before and not again."""
    told = {outcome.engine: outcome for outcome in (*before.outcomes, *answer.outcomes)}
    plan = answer.plan._replace(
        engine_calls=tuple(
            {
                engine_call.engine.id: engine_call
                for engine_call in (*before.plan.engine_calls, *answer.plan.engine_calls)
            }.values()
        ),
        skipped=tuple(outcome for outcome in answer.plan.skipped if outcome.engine not in told),
    )
    return answer._replace(plan=plan, outcomes=[told[engine] for engine in sorted(told)])
