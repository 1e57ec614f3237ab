"""Learned calibration of the engines behind one gateway: learned from feedback, applied to requests (docs/fusion.md).

One state for each scope (a tenant, or all callers) and engine. What this process learns counts at once; an exchange
with other processes, if there are any, follows within seconds.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import time
from typing import Any, Final, NamedTuple

from app.federation.attributions import Judged
from app.federation.learned_state import Callers, EngineLearning, MapState
from app.federation.planner import EngineCall
from app.federation.tenants import Tenant
from app.fusion.calibration import EngineCalibration, Evidence, Features, Kind, Moments, shown_examples
from app.fusion.confidence import finite_scores
from app.fusion.ranked_lists import RankedList
from app.protocol.errors import StateUnreachable
from app.settings.schema import FusionSettings
from app.state.sums import Kept, Sums, SumsUpdate
from app.telemetry.calibration_metrics import CalibrationMetrics
from app.telemetry.logs import logger

EXCHANGE_SECONDS: Final = 10.0
"""Between two exchanges with other processes, while something changed."""
MOST_SCOPES: Final = 10_000
MOST_ENGINES: Final = 1000
"""Of one scope. Beyond these limits, the states begun first are dropped."""


class Event(NamedTuple):
    """Who judged an answer."""

    scope: str
    caller: str
    """The credential, or the address of a caller without one."""
    tenant: str | None = None
    """Counts like a caller where all tenants share a scope."""


def scope_of(tenant: Tenant | None, fusion: FusionSettings) -> str:
    """Whose calibration applies to this tenant's requests."""
    return "" if tenant is None or fusion.learning_scope == "gateway" else tenant.id


class Learning:
    """What was learned of every engine, by scope."""

    def __init__(
        self, metrics: CalibrationMetrics | None = None, sums: Sums | None = None, clock: Callable[[], float] = time
    ) -> None:
        """`sums`: where processes exchange what they learned; None: this one is alone. `clock`: Unix time."""
        self._scopes: dict[str, dict[str, EngineLearning]] = {}
        self._maps: dict[str, dict[str, EngineCalibration]] = {}
        self._callers = Callers()
        self._metrics = metrics
        self._sums = sums
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._away = False
        self._exchanging = asyncio.Lock()

    def maps(self, scope: str) -> Mapping[str, EngineCalibration]:
        """What was learned in this scope, by engine id."""
        return self._maps.get(scope) or {}

    def observe(
        self, scope: str, lists: Sequence[RankedList], engine_calls: Sequence[EngineCall], *, frozen: bool
    ) -> None:
        """See what engines answered: notice new engines, new versions, and the scale of their scores."""
        advertisements = {engine_call.engine.id: engine_call.engine.advertisement for engine_call in engine_calls}
        for source in lists:
            state = self._state(scope, source.engine)
            state.used = True
            if frozen:
                continue
            if state.renewed(advertisements.get(source.engine)):
                self._begin_anew(scope, source.engine, [state.silent], "version")
            hits, maps = source.hits, self._maps[scope]
            if hits and ("confidence" not in hits[0] or source.confidence == "ignore"):
                scores = finite_scores(hits if type(hits) is list else list(hits))
                if scores is not None and state.observe(scores):
                    self._begin_anew(scope, source.engine, [state.silent], "scores")
                # Only the scale of its scores has changed, and what that makes of the map is cheap.
                known = maps.get(source.engine)
                confident = state.confident.learned() if known is None else known.confident
                maps[source.engine] = EngineCalibration(confident, state.silent.learned())
        self._wake.set()

    def learn(self, event: Event, judged: Iterable[Judged]) -> None:
        """Learn from the judged answers of one `feedback`."""
        now = self._clock()
        callers = [event.caller] if event.tenant is None else [event.caller, f"\n{event.tenant}"]
        for answer in judged:
            share = self._callers.share(callers, now)
            for (engine, kind), (features, places, rewards) in _by_map(answer).items():
                state = self._state(event.scope, engine)
                sound = state.of(kind).learn(shown_examples(features, places, rewards, share), now)
                if not sound:
                    logger().warning("calibration_event_dropped", engine=engine, scope=event.scope)
                self.counted("learned" if sound else "dropped")
                self._maps[event.scope][engine] = state.calibration()
                self._show(engine)
        self._wake.set()

    def counted(self, outcome: str, signals: int = 1) -> None:
        """Count what became of feedback; one of `telemetry.calibration_metrics.OUTCOMES`."""
        if self._metrics is not None and signals:
            self._metrics.fed_back(outcome, signals)

    def reset(self, engine: str, scope: str | None = None) -> int:
        """Forget what was learned of one engine, in one scope or in all; in how many there was something."""
        found = [(name, states[engine]) for name, states in self._scopes.items() if engine in states]
        found = [(name, state) for name, state in found if scope in (None, name)]
        for name, state in found:
            self._begin_anew(name, engine, state.maps, "operator")
            self._maps[name][engine] = state.calibration()
        self._show(engine)
        self._wake.set()
        return len(found)

    def load(self, scope: str, engine: str, kind: Kind, sums: Sequence[float], moments: Moments) -> None:
        """Go on from what was learned elsewhere, in place of what was learned here."""
        state = self._state(scope, engine)
        state.of(kind).load(sums, moments)
        self._maps[scope][engine] = state.calibration()
        self._show(engine)
        self._wake.set()

    def view(self, scope: str | None = None) -> list[dict[str, Any]]:
        """What was learned, for people: what an engine claims, what that is worth, and on how much evidence."""
        return [
            {
                "scope": name,
                "engines": [
                    {"id": engine, "version": state.label, **{one.kind: one.view() for one in state.maps}}
                    for engine, state in sorted(states.items())
                ],
            }
            for name, states in sorted(self._scopes.items())
            if scope in (None, name)
        ]

    def learned(self, scope: str) -> dict[str, dict[Kind, tuple[Evidence, Moments]]]:
        """What was learned in this scope by engine id, as far as there is anything."""
        return {
            engine: {one.kind: (one.evidence, one.moments) for one in state.maps if one.taught}
            for engine, state in self._scopes.get(scope, {}).items()
        }

    def start(self) -> None:
        """Exchange from now on what is learned, if there is anywhere to."""
        if self._sums is not None and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep_exchanging(), name="calibration")

    async def close(self) -> None:
        """Exchange once more, and then no longer."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            await self.exchange()

    async def exchange(self) -> None:
        """Add what was learned here to what all processes know, and go on from that. Without them, learn on alone."""
        if self._sums is None:
            return
        # Of two at once, the later could go on from sums without what the other added. Compiled, no `async with`.
        await self._exchanging.acquire()
        try:
            await self._exchange(self._sums)
        finally:
            self._exchanging.release()

    async def _exchange(self, sums: Sums) -> None:
        entries = [
            (scope, engine, state, one)
            for scope, states in self._scopes.items()
            for engine, state in states.items()
            for one in state.maps
            if state.used or one.changed
        ]
        sent = [one.addition(f"{scope}/{engine}/{one.kind}", state.label) for scope, engine, state, one in entries]
        for _, _, state, _ in entries:
            state.used = False
        now, found = self._clock(), None
        try:
            found = await sums.exchange(sent, now)
        except StateUnreachable as fault:
            if not self._away:
                effect = "learning goes on in this process alone; the exchange is made up for later"
                logger().warning("calibration_not_exchanged", detail=f"{fault}", effect=effect)
            self._wake.set()
        finally:
            self._away = found is None
            if found is None:  # also when cancelled
                for (_, _, _, one), addition in zip(entries, sent, strict=True):
                    one.returned(addition)
        for (scope, engine, state, one), addition in zip(entries, sent, strict=True):
            kept = None if found is None else found.get(addition.name)
            if kept is not None:
                self._merge(scope, engine, state, one, addition, kept)
        for engine in {engine for _, engine, _, _ in entries}:
            self._show(engine)

    def _merge(
        self, scope: str, engine: str, state: EngineLearning, one: MapState, addition: SumsUpdate, kept: Kept
    ) -> None:
        first = one.label is None
        one.merge(addition, kept, self._clock())
        if first and one.kind == "silent" and kept.label and state.label and kept.label != state.label:
            # The engine became another one while this gateway was not running.
            self._begin_anew(scope, engine, [one], "version")
        if scope in self._maps:
            self._maps[scope][engine] = state.calibration()

    async def _keep_exchanging(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.exchange()
            await asyncio.sleep(EXCHANGE_SECONDS)

    def _state(self, scope: str, engine: str) -> EngineLearning:
        states = self._scopes.get(scope)
        if states is None:
            states = self._scopes[scope] = {}
            self._maps[scope] = {}
            if len(self._scopes) > MOST_SCOPES:
                oldest = next(iter(self._scopes))
                del self._scopes[oldest], self._maps[oldest]
        state = states.get(engine)
        if state is None:
            state = states[engine] = EngineLearning(self._clock())
            if len(states) > MOST_ENGINES:
                oldest = next(iter(states))
                del states[oldest]
                self._maps[scope].pop(oldest, None)
        return state

    def _begin_anew(self, scope: str, engine: str, maps: Iterable[MapState], reason: str) -> None:
        for one in maps:
            one.begin_anew()
        logger().warning("calibration_reset", engine=engine, scope=scope, reason=reason)

    def _show(self, engine: str) -> None:
        """Let the metrics know what is known of an engine, in all scopes."""
        if self._metrics is not None:
            states = [states[engine] for states in self._scopes.values() if engine in states]
            maps = [one for state in states for one in state.maps]
            self._metrics.evidence(engine, [(one.evidence.n, one.claimed, one.worth) for one in maps])

    def __repr__(self) -> str:
        alone = "alone" if self._sums is None else f"over {self._sums!r}"
        return f"<Learning in {len(self._scopes)} scopes, {alone}>"


def _by_map(answer: Judged) -> dict[tuple[str, Kind], tuple[list[Features], list[int], list[float | None]]]:
    """The hits of a judged answer by engine and kind of list: φ, place in the answer, and reward."""
    found: dict[tuple[str, Kind], tuple[list[Features], list[int], list[float | None]]] = {}
    for place, reward, claims in answer:
        for engine, kind, phi in claims:
            features, places, rewards = found.setdefault((engine, kind), ([], [], []))
            features.append(phi)
            places.append(place)
            rewards.append(reward)
    return found
