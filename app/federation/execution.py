"""One question under way: what is kept of it, what the engines are asked, and what is served of that.

Decides when a page is a slice of what is kept, and when engines are asked deeper to fill it. It refuses to know how a
result is written.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from time import perf_counter

from app.federation.response import RetrieveResponse
from app.federation.hit_validation import mended
from app.federation.calls import LEAST_SECONDS, RetrieveCall, time_left
from app.federation.depth import SURFACE, Depth
from app.federation.fanout import FanOut, Heard
from app.federation.membership import Members
from app.federation.outcome import Hit, Outcome, degraded, knowing, nobody_answered, required_failed
from app.federation.pagination import FIRST, Pages
from app.federation.snapshot_pins import not_served
from app.federation.planner import Plan, nobody_asked, plan_retrieve
from app.federation.page import NOTHING, Page, portion_of, seen_of
from app.federation.progress import ProgressListener, fused, reranked
from app.federation.union_reranking import rerank_union
from app.federation.result_set import ResultSet, joined, stock_of, without
from app.federation.quorum import tail_of
from app.federation.progress_reporting import ProgressReporter
from app.federation.call_tracing import traced
from app.federation.rerank_plan import RerankPlan
from app.federation.instrumentation import RetrieveInstrumentation
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
        "_listener",
        "_members",
        "_pages",
        "_rounds",
        "_screen",
        "_settings",
        "_turn",
        "_witness",
        "spent",
    )

    def __init__(
        self,
        call: RetrieveCall,
        members: Members,
        settings: GatewaySettings,
        witness: RetrieveInstrumentation,
        listener: ProgressListener | None,
        pages: Pages,
    ) -> None:
        self._call = call
        self._members = members
        self._settings = settings
        self._witness = witness
        self._listener = listener
        self._pages = pages
        self._turn = FIRST
        self._rounds = 0
        self._screen: InjectionScreen | None = None
        self._failed: frozenset[str] = frozenset()
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
        self._turn = await self._pages.turn(self._call.params)
        answer = self._from_kept()
        if answer is None:
            answer = await self._ask()
            while self._may_fill(answer):
                answer = _told_of_all(answer, await self._ask())
        return answer

    async def leave_behind(self, answer: RetrieveResponse) -> str | None:
        """Keep what the next page and the session need; the cursor of the next page if there may be one."""
        plan, _, stock, portion = answer
        params, turn = self._call.params, self._turn
        if stock is None:
            return None
        if params.options.session_id is not None:
            heard = "feedback" in self._members.capabilities
            await self._pages.remember(params.options.session_id, turn, portion, stock, for_feedback=heard)
        if not answer.follows:
            return None
        return await self._pages.keep(params, turn, stock, portion, turn.place.reach or plan.window)

    def observe(self, answer: RetrieveResponse) -> None:
        """Count what is about to be served. What this costs is part of the time that the answer states."""
        if self._screen is not None:
            self._witness.screened(self._screen)
        if answer.stock is not None and self._rounds and answer.outcomes:
            self._witness.served(answer.plan, answer.outcomes, answer.stock.fusion, answer.portion.hits)

    def ended(self, answer: RetrieveResponse, took: float) -> None:
        """The answer is complete after `took` seconds. Overhead is counted where there was one longest leg."""
        if self._rounds == 1 and answer.plan.union is None:
            self._witness.retrieved(answer.outcomes, took)

    async def _ask(self) -> RetrieveResponse:
        """Ask the engines, as deep as this turn needs."""
        self._rounds += 1
        settings, turn = self._settings, self._turn
        now = asyncio.get_running_loop().time()
        blend = blend_of(self._call, settings)
        with self._witness.step("plan"):
            plan = plan_retrieve(self._call, self._members, now, settings.retrieve, blend, self._depth())
        outcomes = await self._outcomes(plan)
        heavy = sum([outcome.size for outcome in outcomes]) > HEAVY_BYTES
        if heavy:
            await heavy_work().wait()
        began = perf_counter()
        with self._witness.step("fuse"):
            stock = stock_of(plan, outcomes, self._call.params)
        self._spend("fuse", began)
        if stock is None:
            return self._from_nobody(plan, outcomes)
        if turn is not FIRST:
            stock = without(joined(stock, turn.stock), frozenset(turn.place.returned), turn.trajectory)
        if self._screen is not None:
            start = turn.place.start
            for _ in self._screen.steps(stock.fusion, start, start + 2 * plan.k):
                await asyncio.sleep(0)
        stock = self._screened(stock)
        if turn is not FIRST:
            self._failed |= frozenset(degraded(outcomes))
        if plan.union is not None:
            stock = await self._reranked(plan.union, stock)
        if turn is not FIRST:
            self._turn = await self._pages.restock(self._call.params, turn, stock, plan.window)
            stock = self._turn.stock or stock
        if heavy:
            await heavy_work().wait()
        answer = RetrieveResponse(plan, outcomes, stock, self._portion(stock, plan.k))
        if heavy:
            await heavy_work().wait()
        return answer

    async def _reranked(self, union: RerankPlan, stock: ResultSet) -> ResultSet:
        """The stock with the best of the union reranked; as it is if nobody can be asked in time."""
        began = perf_counter()
        stock = await rerank_union(self._call, self._members, self._settings, self._witness, union, stock)
        self._spend("rerank", began)
        if self._listener is not None and self._rounds == 1 and stock.verdict is not None:
            self._listener.tell(reranked(self._call.meta.progress_token, stock.verdict))
        return stock

    async def _outcomes(self, plan: Plan) -> Sequence[Outcome]:
        """What became of the legs, by engine id. Raises RcpError if that fails the whole."""
        listener = self._listener if self._rounds == 1 else None
        telling = None if listener is None else self._telling(plan, listener)
        heard: Heard = self._witness.leg if telling is None else telling.heard
        legs, heard = traced(self._witness.tracing, "retrieve", plan.legs, heard)
        fan_out = FanOut(legs, heard, tail=tail_of(self._settings.retrieve))
        try:
            lost = await fan_out.run()
        finally:
            if telling is not None:
                telling.close()
        outcomes = sorted([*fan_out.outcomes, *plan.lost] if plan.lost else fan_out.outcomes, key=_engine_of)
        if lost is not None:
            raise knowing(_lost(plan, lost), outcomes)
        if self._call.params.options.index_version is not None:
            fault = not_served(plan.legs, outcomes)
            if fault is not None:
                raise knowing(fault, outcomes)
        if listener is not None and any(outcome.status == "ok" for outcome in outcomes):
            listener.tell(fused(self._call.meta.progress_token, outcomes))
        return outcomes

    def _from_kept(self) -> RetrieveResponse | None:
        """A slice of what is kept; None if more must be asked for."""
        stock = self._turn.stock
        if stock is None:
            return None
        plan = nobody_asked(
            self._call, self._members, stock.options, "kept", "this page is a slice of the order that was kept"
        )
        portion = self._portion(stock, plan.k)
        if portion.short and stock.open and not portion.floored:
            return None
        return RetrieveResponse(plan, (), stock, portion)

    def _from_nobody(self, plan: Plan, outcomes: Sequence[Outcome]) -> RetrieveResponse:
        """Nobody answered: what is left of what was kept, if there is any. Raises RcpError."""
        stock = self._turn.stock
        portion = NOTHING if stock is None else self._portion(stock, plan.k)
        if plan.legs and not portion.hits:
            raise nobody_answered(outcomes, out_of_time=plan.cut_by_caller)
        self._failed |= frozenset(degraded(outcomes))
        if stock is not None:
            stock = stock._replace(
                degraded=sorted({*stock.degraded, *degraded(outcomes)}),
                open=stock.open if plan.legs else frozenset(),
            )
        return RetrieveResponse(plan, outcomes, stock, portion)

    def _portion(self, stock: ResultSet, k: int) -> Page:
        turn, options, began = self._turn, self._call.params.options, perf_counter()
        seen = turn.trajectory
        known = None if seen is None else seen_of(stock.fusion, seen, stock.options.identity)
        portion = portion_of(stock.fusion, options, k, turn.place.start, known, stock.spread, self._screen)
        self._spend("fuse", began)
        return portion

    def _spend(self, step: str, began: float) -> None:
        if self._call.params.gateway.explain:
            self.spent[step] = self.spent.get(step, 0.0) + perf_counter() - began

    def _screened(self, stock: ResultSet) -> ResultSet:
        """The stock without what a screen leaves out."""
        if self._screen is None:
            return stock
        kept = self._screen.kept(stock.fusion)
        return stock._replace(fusion=kept, screened=self._screen.dropped)

    def _depth(self) -> Depth:
        """How much deeper than `k` needs: what was answered, or seen in the session, is left out."""
        turn = self._turn
        if turn is FIRST:
            return SURFACE
        place, stock = turn.place, turn.stock
        seen = 0 if turn.trajectory is None else len(turn.trajectory)
        if stock is None and not place.reach:
            return Depth(min(seen, self._settings.retrieve.window_min), 0, self._failed)
        whole = self._failed if stock is None else self._failed | stock.whole()
        return Depth(len(place.returned) + seen, place.reach * (1 if stock is None else 2), whole)

    def _may_fill(self, answer: RetrieveResponse) -> bool:
        """Whether the page is not full and somebody who may have more is still to be asked."""
        _, _, stock, portion = answer
        if stock is None or not portion.short or portion.floored or not stock.open - self._failed:
            return False
        return (self._rounds < ROUNDS or not portion.hits) and time_left(self._call) >= LEAST_SECONDS

    def _telling(self, plan: Plan, listener: ProgressListener) -> ProgressReporter:
        """Lets the listener hear of every leg that ends, and now and then of the list fused so far."""
        return ProgressReporter(listener, self._witness, self._call.meta, len(plan.legs), partial(self._so_far, plan))

    def _so_far(self, plan: Plan, ended: Sequence[Outcome]) -> list[Hit] | None:
        """What the answer would hold if nobody else answered; None if nobody has yet."""
        turn = self._turn
        stock = stock_of(plan, sorted(ended, key=_engine_of), self._call.params)
        if stock is None:
            return None
        if self._screen is not None and any(True for _ in self._screen.steps(stock.fusion, 0, plan.k)):
            return None  # more to look at than fits into one turn of the loop: this progress comes without its hits
        if turn is not FIRST:
            stock = without(joined(stock, turn.stock), frozenset(turn.place.returned), turn.trajectory)
        stock = self._screened(stock)
        options = self._call.params.options
        hits = portion_of(stock.fusion, options, plan.k, 0, turn.trajectory, stock.spread, self._screen).hits
        mended(hits)
        return hits

    def __repr__(self) -> str:
        return f"<Journey {self._call.request_id}, {self._rounds} rounds>"


def blend_of(call: RetrieveCall, settings: GatewaySettings) -> FusionSettings:
    """How the answer to this call is blended where it does not say: as its tenant wishes, or else the gateway."""
    tenant = call.tenant
    return settings.fusion if tenant is None or tenant.fusion is None else tenant.fusion


def _lost(plan: Plan, outcome: Outcome) -> RcpError:
    """The error of a request that an engine failed which must not fail."""
    leg = next(leg for leg in plan.legs if leg.engine.id == outcome.engine)
    return (None if leg.engine.entry.required else not_served(plan.legs, [outcome])) or required_failed(outcome)


def _told_of_all(before: RetrieveResponse, answer: RetrieveResponse) -> RetrieveResponse:
    """`answer` with the outcomes of engines that were asked before and not again."""
    told = {outcome.engine: outcome for outcome in (*before.outcomes, *answer.outcomes)}
    plan = answer.plan._replace(
        legs=tuple({leg.engine.id: leg for leg in (*before.plan.legs, *answer.plan.legs)}.values()),
        skipped=tuple(outcome for outcome in answer.plan.skipped if outcome.engine not in told),
    )
    return answer._replace(plan=plan, outcomes=[told[engine] for engine in sorted(told)])
