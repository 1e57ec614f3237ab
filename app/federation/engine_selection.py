"""Engine selection: asks only the most promising engines of many (docs/explanation/engine-selection.md).

Learns from what engines return (`fusion.term_sketch`) and from audits: requests that ask everybody, and so show how far
down the order the engines of the answer stand. The state belongs to one process and ends with it.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from random import Random
from time import monotonic, perf_counter
from typing import Any, Final, Literal, NamedTuple

from app.federation.calls import RetrieveCall
from app.federation.engine_interface import Engine
from app.federation.membership import Members
from app.federation.outcome import Hit, Outcome, skipped
from app.federation.planner import EngineCall, Plan, Selection
from app.federation.request_options import engine_weights, requested_engines
from app.federation.selection_audits import AnsweredAudits, Coverage
from app.fusion.term_sketch import TermSketch, query_terms, term_parts
from app.protocol.advertisement import Advertisement
from app.settings.schema import EngineEntry, SelectSettings
from app.telemetry.selection_metrics import SelectionMetrics

MIN_CANDIDATES: Final = 8
"""With fewer candidates everybody is asked: there is too little to save."""
NEW_ENGINE: Final = 5
"""An engine whose answers were learned less often than this is new, and is asked in addition."""
DRAWN: Final = 3
"""Of this many engines drawn at random, the one asked least is explored."""
FRUITLESS: Final = 200
"""An engine chosen this often without a hit in an answer counts half until it has one."""
LEARN_SECONDS: Final = 0.2
"""Least time between two answers that are learned from."""
LEARN_HITS: Final = 10
"""Hits of one engine that are learned from one answer."""
SLICE_SECONDS: Final = 0.001
"""Learning lets other work run after this time."""
MAX_VIEWS: Final = 1000
"""Sets of visible engines whose coverage is kept; beyond this limit, the least recently used are evicted."""

Mode = Literal["off", "report", "on"]


class _Candidate:
    """What this process knows of one engine."""

    __slots__ = ("advertisement", "asked", "entry", "fruitless", "learned", "sketch")

    def __init__(self) -> None:
        self.sketch = TermSketch()
        self.asked = 0
        """How often it was asked."""
        self.learned = 0
        """How many of its answers were learned from."""
        self.fruitless = 0
        """How often it was chosen since a hit of it was last in an answer."""
        self.advertisement: Advertisement | None = None
        self.entry: EngineEntry | None = None
        """With the advertisement: where the description and the topics in the sketch were taken from."""

    def __repr__(self) -> str:
        return f"<_Candidate asked {self.asked} times, learned {self.learned}, {self.sketch!r}>"


class EngineSelector:
    """Chooses the engines of each first page and learns from its answer."""

    def __init__(
        self,
        metrics: SelectionMetrics | None = None,
        busy: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = monotonic,
        random: Random | None = None,
    ) -> None:
        """`busy`: whether requests wait for admission, so that neither audits nor exploration may add calls."""
        self._metrics = metrics
        self._busy = busy
        self._clock = clock
        self._random = random or Random()
        self._engines: dict[str, _Candidate] = {}
        self._views: dict[tuple[str, ...] | None, Coverage] = {}
        self._audits = AnsweredAudits(clock)
        self._next_lesson = 0.0
        self._lesson: asyncio.Task[None] | None = None

    # --- Choose ---

    def select(self, call: RetrieveCall, members: Members, settings: SelectSettings, plan: Plan) -> Plan:
        """The plan with the most promising of its engines; the others become skipped as `not_promising`.

        Called for first pages only, and not in mode `off`.
        """
        mode, asked_for = mode_of(call, settings), call.params.gateway.select
        if mode == "off" or (asked_for is not None and asked_for.off):
            return plan
        named = _named(call, members)
        candidates = [one for one in plan.engine_calls if _is_candidate(one, named)]
        if mode == "on":
            plan, candidates = _without_unnamed(plan, candidates)
        if len(candidates) < MIN_CANDIDATES:
            return plan
        coverage = self._coverage(call, members)
        coverage.questions += 1
        promise = self._promise(call, members, candidates)
        size = None if asked_for is None else asked_for.engines
        selection = self._chosen(call, settings, promise, coverage, size, report=mode == "report")
        for engine in selection.asked:
            self._engines[engine].asked += 1
        if self._metrics is not None:
            self._metrics.selected(selection, selection.n, coverage.share(selection.n))
        return narrowed(plan, selection)

    def _promise(self, call: RetrieveCall, members: Members, candidates: Sequence[EngineCall]) -> "_Order":
        """The candidates in the order in which they are promising."""
        terms = query_terms(_query_text(call.params.raw["query"]))
        # Sums run over all engines that the caller sees, whether or not they can take this request, and over no other.
        known = [self._known(engine) for engine in members.engines]
        rows = term_parts([one.sketch for one in known], list(terms.values()))
        places = {engine.id: place for place, engine in enumerate(members.engines)}
        sums = [sum(parts) for parts in zip(*[row for row in rows if row], strict=True)] or [0.0] * len(known)
        scores: dict[str, float] = {}
        for candidate in candidates:
            place = places[candidate.engine.id]
            scores[candidate.engine.id] = sums[place] / 2 if known[place].fruitless >= FRUITLESS else sums[place]
        order = [engine for _, _, engine in sorted((-scores[one], self._engines[one].asked, one) for one in scores)]
        parts: dict[str, dict[str, float]] = {}
        if call.params.gateway.explain:
            parts = {
                term: {engine: row[places[engine]] for engine in order if row[places[engine]]}
                for term, row in zip(terms, rows, strict=True)
                if row
            }
        return _Order(tuple(order), scores, parts, any(rows))

    def _chosen(
        self,
        call: RetrieveCall,
        settings: SelectSettings,
        promise: "_Order",
        coverage: Coverage,
        size: int | None,
        *,
        report: bool,
    ) -> Selection:
        """How many places there are, and who gets them."""
        order, seed, busy = promise.engines, call.params.options.seed, self._busy()
        everybody = len(order)
        random = self._random if seed is None else Random(seed)
        n = min(everybody, coverage.size(settings) or everybody) if size is None else min(everybody, size)
        # A request without a known term cannot be ordered, so everybody is asked, and nothing can be learned of places.
        audit = promise.known and size is None and (report or (not busy and coverage.due(settings.audit, random)))
        everyone = report or audit or not promise.known or n >= everybody
        explored: tuple[str, ...] = ()
        would_ask = order[:n]
        if not everyone and not busy and settings.explore > 0:
            drawn, new = self._explored(order, n, settings.explore, random)
            would_ask = (*order[: n - len(drawn)], *drawn, *new)
            explored = (*drawn, *new)
        asked = frozenset(order if everyone else would_ask)
        return Selection(order, asked, explored, audit, n, frozenset(would_ask), promise.scores, promise.parts)

    def _explored(self, order: Sequence[str], n: int, share: float, random: Random) -> tuple[list[str], list[str]]:
        """Engines asked to learn about them: those for some of the `n` places, and new engines asked besides."""
        places = min(n, max(1, int(share * n)))
        others = list(order[n - places :])
        drawn: list[str] = []
        for _ in range(places):
            three = random.sample(others, min(DRAWN, len(others)))
            least = min(three, key=lambda engine: (self._engines[engine].asked, engine))
            others.remove(least)
            drawn.append(least)
        new = [engine for engine in others if self._new(engine)]
        new.sort(key=lambda engine: (self._engines[engine].asked, engine))
        return drawn, new[: max(1, n // 4)]

    def _new(self, engine: str) -> bool:
        return self._engines[engine].learned < NEW_ENGINE

    # --- Learn ---

    def answered(
        self, call: RetrieveCall, selection: Selection, outcomes: Sequence[Outcome], hits: Sequence[Hit]
    ) -> None:
        """Learn from a first page that is about to be sent. Texts are learned from afterwards, in a task."""
        givers = [frozenset(mark["id"] for mark in hit["meta"]["engines"]) for hit in hits]
        useful = frozenset[str]().union(*givers)
        for engine in selection.asked | useful:
            self._count_fruit(engine, useful=engine in useful)
        if selection.audit:
            self._views[_view_of(call)].note(selection.order, givers)
            ids = [f"{hit['id']}" for hit in hits]
            kept = [bool(given & selection.would_ask) for given in givers]
            self._audits.remember("" if call.tenant is None else call.tenant.id, ids, kept)
        now = self._clock()
        if now >= self._next_lesson and (self._lesson is None or self._lesson.done()):
            self._next_lesson = now + LEARN_SECONDS
            lists = [(outcome.engine, outcome.hits[:LEARN_HITS]) for outcome in outcomes if outcome.hits]
            self._lesson = asyncio.get_running_loop().create_task(self._learn(lists), name="engine selection")

    def _count_fruit(self, engine: str, *, useful: bool) -> None:
        known = self._engines.get(engine)
        if known is None:
            return
        was = known.fruitless >= FRUITLESS
        known.fruitless = 0 if useful else known.fruitless + 1
        if was != (known.fruitless >= FRUITLESS) and self._metrics is not None:
            self._metrics.fruitless(engine, fruitless=not was)

    async def _learn(self, lists: Iterable[tuple[str, Sequence[Hit]]]) -> None:
        await asyncio.sleep(0)  # the answer is written first
        until = perf_counter() + SLICE_SECONDS
        for engine, hits in lists:
            known = self._engines.get(engine)
            if known is None:
                continue
            known.learned += 1
            for hit in hits:
                known.sketch.add(f"{hit['id']}", _texts(hit))
                if perf_counter() > until:
                    await asyncio.sleep(0)
                    until = perf_counter() + SLICE_SECONDS

    async def finish_learning(self) -> None:
        """Wait until the answers given so far have been learned from."""
        if self._lesson is not None:
            await asyncio.wait([self._lesson])

    def praised(self, tenant: str, ids: Iterable[str]) -> None:
        """Feedback praised these hits: count those of audits by whether selection would have had them."""
        if self._metrics is not None:
            for kept in self._audits.praised(tenant, ids):
                self._metrics.praised(kept=kept)

    # --- State ---

    def _known(self, engine: Engine) -> _Candidate:
        known = self._engines.get(engine.id)
        if known is None:
            known = self._engines[engine.id] = _Candidate()
        # Compared by identity: this runs for every engine of every request.
        if known.advertisement is not engine.advertisement or known.entry is not engine.entry:
            known.advertisement, known.entry = engine.advertisement, engine.entry
            description = "" if engine.advertisement is None else engine.advertisement.description
            known.sketch.add("\n".join([description, *engine.entry.topics]), [*engine.entry.topics, description])
        return known

    def _coverage(self, call: RetrieveCall, members: Members) -> Coverage:
        view = _view_of(call)
        coverage = self._views.pop(view, None)
        if coverage is None:
            coverage = Coverage()
            if len(self._views) >= MAX_VIEWS:
                del self._views[next(iter(self._views))]
        self._views[view] = coverage
        coverage.see(members.ids())
        return coverage

    def forget(self, engines: Collection[str]) -> None:
        """Forget engines that have left the registry."""
        for engine in engines:
            self._engines.pop(engine, None)

    def state(self, settings: SelectSettings) -> dict[str, Any]:
        """What was learned, for the operator: coverage by number of engines for each view, and each engine's counts."""
        return {
            "mode": settings.mode,
            "views": [
                {"engines": list(view or ("*",)), **coverage.state(settings)} for view, coverage in self._views.items()
            ],
            "engines": [
                {"id": engine, "asked": known.asked, "learned": known.learned, "fruitless": known.fruitless}
                for engine, known in sorted(self._engines.items(), key=lambda item: (item[1].asked, item[0]))
            ],
        }

    def __repr__(self) -> str:
        return f"<EngineSelector of {len(self._engines)} engines, {len(self._views)} views>"


class _Order(NamedTuple):
    """Candidates in the order in which they are promising."""

    engines: tuple[str, ...]
    scores: Mapping[str, float]
    parts: Mapping[str, Mapping[str, float]]
    known: bool
    """Whether a term of the query is known of any engine."""


def mode_of(call: RetrieveCall, settings: SelectSettings) -> Mode:
    """The mode of this request: its tenant's, else the gateway's; a request may switch from `report` to `on`."""
    tenant = call.tenant
    mode = settings.mode if tenant is None or tenant.select_mode is None else tenant.select_mode
    # Asking fewer engines for one request is harmless; with `off` nothing was learned to choose by.
    return "on" if mode == "report" and call.params.gateway.select else mode


def narrowed(plan: Plan, selection: Selection) -> Plan:
    """The plan without the candidates that are not asked."""
    left_out = frozenset(selection.order) - selection.asked
    if not left_out:
        return plan._replace(selection=selection)
    total = len(selection.order)
    places = {engine: place for place, engine in enumerate(selection.order, 1)}
    left = [skipped(engine, "not_promising", f"place {places[engine]} of {total}") for engine in sorted(left_out)]
    note = f"{len(left)} engines were not asked: not among the {len(selection.asked)} most promising for this query"
    return plan._replace(
        engine_calls=tuple([one for one in plan.engine_calls if one.engine.id not in left_out]),
        skipped=(*plan.skipped, *left),
        notes=(*plan.notes, note),
        selection=selection,
    )


def limited_to(plan: Plan, selected: Collection[str]) -> Plan:
    """The plan of a later page: only engines that were selected for the first one."""
    left = [one.engine.id for one in plan.engine_calls if one.engine.id not in selected]
    if not left:
        return plan
    return plan._replace(
        engine_calls=tuple([one for one in plan.engine_calls if one.engine.id in selected]),
        skipped=(*plan.skipped, *[skipped(one, "not_promising", "not asked for the first page") for one in left]),
    )


def _named(call: RetrieveCall, members: Members) -> frozenset[str]:
    """Engines that the request itself names."""
    weights = engine_weights(call.params.raw.get("fusion") or {}, members)
    return frozenset(requested_engines(call.params.gateway, members) or ()).union(weights)


def _is_candidate(engine_call: EngineCall, named: Collection[str]) -> bool:
    """Whether selection decides on this engine. Others are asked besides; an open breaker costs no call."""
    engine = engine_call.engine
    return not (
        engine.entry.required
        or engine.entry.select == "always"
        or engine.id in named
        or engine_call.pinned is not None
        or engine.breaker_open
    )


def _without_unnamed(plan: Plan, candidates: list[EngineCall]) -> tuple[Plan, list[EngineCall]]:
    """Leave out engines with `select: named`, which are asked only if a request names them."""
    left = {one.engine.id for one in candidates if one.engine.entry.select == "named"}
    if not left:
        return plan, candidates
    detail = "asked only if a request names it"
    return (
        plan._replace(
            engine_calls=tuple([one for one in plan.engine_calls if one.engine.id not in left]),
            skipped=(*plan.skipped, *[skipped(engine, "not_promising", detail) for engine in sorted(left)]),
        ),
        [one for one in candidates if one.engine.id not in left],
    )


def _view_of(call: RetrieveCall) -> tuple[str, ...] | None:
    """What determines the engines that a caller sees."""
    return None if call.tenant is None else call.tenant.engines


def _query_text(query: Any) -> str:
    """The text of a query: a string, or content blocks (RCP §4.8)."""
    if type(query) is str:
        return query
    blocks = query if type(query) is list else [query]
    texts = [block if type(block) is str else block.get("text") for block in blocks]
    return "\n".join([text for text in texts if type(text) is str])


def _texts(hit: Hit) -> list[str]:
    """Title and text of a hit."""
    citation, meta = hit.get("citation"), hit.get("meta")
    titles = [one.get("title") for one in (citation, meta) if type(one) is dict]
    return [text for text in (*titles[:1], hit.get("text")) if type(text) is str]
