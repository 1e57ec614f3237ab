"""Shadow engines: asked after the answer was sent, compared, never fused (docs/explanation/shadow-engines.md).

A shadow engine is in nobody's Members, so no plan, advertisement, report or selection can contain it. Its calls belong
to no caller: they count against no deadline and no byte budget of a request.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import replace
from time import monotonic, perf_counter
from typing import Any, Final, NamedTuple, Protocol

from app.federation.calls import RetrieveCall
from app.federation.capabilities import EngineOffer
from app.federation.engine_interface import Engine
from app.federation.fanout import FanOut
from app.federation.membership import Members
from app.federation.outcome import Outcome
from app.federation.planner import EngineCall, Plan, plan_retrieve
from app.federation.response import RetrieveResponse
from app.federation.result_set import Calibrations, page_of, result_set_of
from app.federation.shadow_comparisons import ShadowComparisons, question_digest
from app.federation.tenants import Tenant
from app.fusion.identity import public_id
from app.fusion.rank_overlap import overlap_at, rank_biased_overlap
from app.protocol.errors import RcpError
from app.settings.schema import FusionSettings, GatewaySettings
from app.telemetry.shadow_metrics import ShadowMetrics

MAX_CALLS: Final = 8
"""Calls of shadow engines at once, in one process."""
DELAY_SECONDS: Final = 0.05
"""Time between an answer and the calls of shadow engines, so that writing the answer comes first."""
TOP: Final = 10


class ShadowSource(Protocol):
    """The registry, as far as shadow engines are concerned."""

    @property
    def shadows(self) -> Sequence[Engine]:
        """The shadow engines of the registry."""
        ...


class _Answer(NamedTuple):
    """What an answer is compared by."""

    call: RetrieveCall
    members: Members
    settings: GatewaySettings
    fusion: FusionSettings
    calibrations: Calibrations
    plan: Plan
    outcomes: Sequence[Outcome]
    live: Sequence[str]
    question: bytes


class Shadows:
    """Asks the shadow engines of one process and compares their lists with the answers that were sent."""

    def __init__(
        self,
        source: ShadowSource,
        sees: Callable[[Tenant, str], bool],
        metrics: ShadowMetrics | None = None,
        busy: Callable[[], bool] = lambda: False,
        draining: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`sees`: whether a tenant would see an engine. `busy`: whether requests wait for admission."""
        self._source = source
        self._sees = sees
        self._metrics = metrics
        self._busy = busy
        self._draining = draining
        self._tasks: set[asyncio.Task[None]] = set()
        self.comparisons = ShadowComparisons(metrics, clock)

    @property
    def engines(self) -> Sequence[Engine]:
        """The shadow engines; empty for most gateways."""
        return self._source.shadows

    def answered(
        self,
        call: RetrieveCall,
        members: Members,
        settings: GatewaySettings,
        fusion: FusionSettings,
        calibrations: Calibrations,
        response: RetrieveResponse,
    ) -> None:
        """A response is complete. If its question is in the sample, ask the shadow engines soon."""
        if not _is_comparable(call):
            return
        question = question_digest(call.params.raw["query"])
        # One hash for all shadow engines: those with equal shares get the same questions.
        place = int.from_bytes(question) / 2 ** (8 * len(question))
        answer: _Answer | None = None
        for engine in self._source.shadows:
            shadow = engine.entry.shadow
            if shadow is None or place >= shadow.share:
                continue
            if call.tenant is not None and not self._sees(call.tenant, engine.id):
                continue
            if answer is None:
                live = [f"{hit['id']}" for hit in response.page.hits]
                common = (call, members, settings, fusion, calibrations)
                answer = _Answer(*common, response.plan, response.outcomes, live, question)
            reason = self._drop_reason(engine)
            if reason is not None:
                self._drop(reason)
                continue
            loop = asyncio.get_running_loop()
            # An empty context: the call must hold no bytes, and carry no trace, of the request.
            task = loop.create_task(self._ask(engine, answer), name=f"shadow:{engine.id}", context=Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _drop_reason(self, engine: Engine) -> str | None:
        """Why this engine is not asked now."""
        if self._draining():
            return "draining"
        if self._busy():
            return "pressure"
        if len(self._tasks) >= MAX_CALLS:
            return "busy"
        return "unreached" if engine.advertisement is None else None

    def _drop(self, reason: str) -> None:
        if self._metrics is not None:
            self._metrics.dropped(reason)

    async def _ask(self, engine: Engine, answer: _Answer) -> None:
        """Ask one shadow engine and compare its list."""
        await asyncio.sleep(DELAY_SECONDS)
        if self._draining() or self._busy():
            self._drop("draining" if self._draining() else "pressure")
            return
        engine_call = _engine_call(engine, answer)
        if engine_call is None:
            self._drop("unsuited")
            return
        began = perf_counter()
        fan_out = FanOut([engine_call], lambda outcome: None)
        await fan_out.run()
        seconds = perf_counter() - began
        outcome = fan_out.outcomes[0]
        failed = outcome.status != "ok"
        if self._metrics is not None:
            self._metrics.called(engine.id, "failed" if failed else "ok", seconds)
        self.comparisons.count(engine.id, calls=1, failures=failed, seconds=seconds)
        if not failed:
            self._compare(engine, answer, engine_call, outcome)

    def _compare(self, engine: Engine, answer: _Answer, engine_call: EngineCall, outcome: Outcome) -> None:
        """Compare the list with the fused one and with that of `of`, and fuse again with it in place of `of`."""
        ours = _ids(engine, outcome)[: len(answer.live) or None]
        overlap, rbo = overlap_at(ours, answer.live), rank_biased_overlap(ours, answer.live)
        self.comparisons.count(engine.id, compared=1, overlap=overlap, rbo=rbo)
        if self._metrics is not None:
            self._metrics.compared(engine.id, "fused", overlap, rbo)
        shadow = engine.entry.shadow
        if shadow is None:  # promoted by a reload while it was asked
            return
        before = next((one for one in answer.outcomes if one.engine == shadow.of and one.status == "ok"), None)
        if before is not None:
            asked = next(one.engine for one in answer.plan.engine_calls if one.engine.id == shadow.of)
            theirs = _ids(asked, before)
            listed = _ids(engine, outcome)
            overlap, rbo = overlap_at(listed, theirs), rank_biased_overlap(listed, theirs)
            self.comparisons.count(engine.id, against=1, ofOverlap=overlap, ofRbo=rbo)
            if self._metrics is not None:
                self._metrics.compared(engine.id, "of", overlap, rbo)
        # A reranked union would need another call of the reranker, so such answers are not blended again.
        if before is None or answer.plan.union is not None:
            return
        plan = answer.plan._replace(
            engine_calls=(*[one for one in answer.plan.engine_calls if one.engine.id != shadow.of], engine_call)
        )
        outcomes = sorted([*[one for one in answer.outcomes if one is not before], outcome], key=lambda one: one.engine)
        result_set = result_set_of(plan, outcomes, answer.call.params, answer.calibrations)
        if result_set is None:
            return
        options = answer.call.params.options
        hits = page_of(result_set.fusion, options, plan.k, diversity=result_set.diversity).hits
        places = sum([any(mark["id"] == engine.id for mark in hit["meta"]["engines"]) for hit in hits[:TOP]])
        self.comparisons.count(engine.id, blended=1, places=places)
        would_be = [f"{hit['id']}" for hit in hits]
        self.comparisons.remember(engine.id, answer.call.tenant_id, answer.question, answer.live, would_be)

    async def settled(self) -> None:
        """Wait until no shadow engine is being asked."""
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        """Give up the calls under way."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __repr__(self) -> str:
        return f"<Shadows: {len(self._tasks)} calls, {self.comparisons!r}>"


def _is_comparable(call: RetrieveCall) -> bool:
    """Whether this is a first page that a shadow engine can be asked for: no session, no pinned snapshot."""
    options = call.params.options
    return options.cursor is None and options.session_id is None and options.index_version is None


def _engine_call(engine: Engine, answer: _Answer) -> EngineCall | None:
    """The call of a shadow engine, planned as for a federation of this engine alone; None if it cannot take it."""
    offer = EngineOffer(engine.id, engine.entry.priority, engine.advertisement, engine.entry.writer)
    alone = replace(answer.members, engines=(engine,), disabled=(), offers=(offer,), excluded_fields={}, groups={})
    now = asyncio.get_running_loop().time()
    call = replace(answer.call, started=now, deadline=now + engine.entry.timeout_ms / 1000)
    try:
        calls = plan_retrieve(call, alone, now, answer.settings.retrieve, answer.fusion).engine_calls
    except RcpError:
        return None
    if not calls:
        return None
    params = dict(calls[0].params)
    meta: dict[str, Any] = dict(params.get("_meta") or {})
    theirs = meta.get("x-gateway")
    meta["x-gateway"] = {**(theirs if type(theirs) is dict else {}), "shadow": True}
    params["_meta"] = meta
    return calls[0]._replace(params=params)


def _ids(engine: Engine, outcome: Outcome) -> list[str]:
    """The ids of a list as callers see them, without duplicates."""
    namespace = engine.entry.id_namespace
    return list(dict.fromkeys([f"{public_id(hit, namespace)}" for hit in outcome.hits]))
