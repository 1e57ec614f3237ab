"""The engines of the registry and those that were discovered: opens, replaces and closes them as the registry changes.

A reload never costs an answer: an engine whose address changed serves from its old address until the new one is warm.
"""

import asyncio
from bisect import insort
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from app.engines.call_instrumentation import CallInstrumentation, NoInstrumentation
from app.engines.discovery import Discovery, Move, ResidualEngine
from app.engines.engine import EngineSetChange, RemoteEngine
from app.engines.handshake import Warmed
from app.engines.health import HandshakeSlots, HealthLoop
from app.engines.replicas import Replica
from app.engines.transport_factory import (
    LineLog,
    addresses_of,
    connection_key,
    open_guarded_transport,
    open_transport,
)
from app.protocol.errors import LegError
from app.settings.engine_sources import NO_ORIGINS
from app.settings.schema import EngineEntry, EnginesSettings
from app.settings.source_rails import OriginOfEngine
from app.telemetry.metrics import EngineState

Report = Callable[[RemoteEngine, LegError | None], None]
"""Called when an engine comes up (None) or goes down (why)."""


@dataclass(frozen=True, slots=True)
class _Warming:
    """An engine without a handshake under its current entry."""

    engine: RemoteEngine
    withheld: bool
    """Whether the engine of the earlier entry serves until this one is warm."""
    began: float
    """Event-loop seconds."""
    timer: asyncio.TimerHandle


@dataclass(frozen=True, slots=True)
class _StandIn:
    """An engine that has left the registry, but serves until its replacements are warm."""

    engine: RemoteEngine
    timer: asyncio.TimerHandle


class EngineSet:
    """The engines of one registry and those that joined through its gateways, by priority (highest first) and id.

    `version` grows whenever an advertisement or the set of called engines changes, so that what is derived from them
    can be cached. `moved` is called for engines that are discovered or disappear, `warmed` for engines that a reload
    changed or added, once they serve.
    """

    def __init__(
        self,
        entries: Sequence[EngineEntry],
        settings: EnginesSettings,
        report: Report,
        line_log: LineLog,
        moved: Callable[[Move], None] = lambda move: None,
        instrumentation_of: Callable[[str], CallInstrumentation] = lambda engine_id: NoInstrumentation(),
        linger: float = 10.0,
        warmed: Callable[[Warmed], None] = lambda warmed: None,
        origins: Mapping[str, OriginOfEngine] = NO_ORIGINS,
    ) -> None:
        """`linger`: seconds until an engine that has left is closed. `origins`: the engines of sources."""
        self.version = 0
        self.engines: tuple[RemoteEngine, ...] = ()
        """The engines that serve now."""
        self.reached = False
        """Whether any engine has ever completed a handshake."""
        self.switched_off: frozenset[str] = frozenset()
        """Engines that an operator has switched off: known and checked, but not called."""
        self.origins: Mapping[str, OriginOfEngine] = NO_ORIGINS
        """The engines of sources, by id; engines of the registry file are not in it."""
        self._disabled: tuple[str, ...] = ()
        self._shadows: tuple[RemoteEngine, ...] = ()
        self._shadows_of: tuple[RemoteEngine, ...] = ()
        """The engines for which `_shadows` was computed."""
        self._settings = settings
        self._report = report
        self._line_log = line_log
        self._instrumentation_of = instrumentation_of
        self._warmed = warmed
        self._started = False
        self._listed: frozenset[str] = frozenset()
        self._linger = linger
        self._warming: dict[str, _Warming] = {}
        self._stand_ins: dict[str, _StandIn] = {}
        self._slots = HandshakeSlots()
        self._retiring: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._discovery = Discovery(self, moved)
        self._health = HealthLoop(settings, follow=self._follow)
        self.apply(entries, settings, linger, origins)
        self.version = 0

    @property
    def asked(self) -> tuple[RemoteEngine | ResidualEngine, ...]:
        """The engines that requests are sent to. Gateways whose engines are called directly are left out."""
        asked = self._discovery.asked()
        if self.shadows:
            asked = tuple(one for one in asked if one.entry.shadow is None)
        return tuple(one for one in asked if one.id not in self.switched_off) if self.switched_off else asked

    @property
    def shadows(self) -> tuple[RemoteEngine, ...]:
        """The engines that are asked after the answer, and are in none. Read with each request, so it is cached."""
        if self._shadows_of is not self.engines:
            self._shadows_of = self.engines
            self._shadows = tuple(one for one in self.engines if one.entry.shadow is not None)
        off = self.switched_off
        return tuple(one for one in self._shadows if one.id not in off) if self._shadows and off else self._shadows

    @property
    def stand_ins(self) -> tuple[RemoteEngine, ...]:
        """Engines that have left the registry while their replacements are not warm yet."""
        return tuple(
            one.engine
            for one in self._stand_ins.values()
            if one.engine.id not in self.switched_off and one.engine.entry.shadow is None
        )

    @property
    def warming(self) -> frozenset[str]:
        """Ids of the engines that a reload changed or added, and that have had no handshake since."""
        return frozenset(one for one, warming in self._warming.items() if warming.engine.entry.shadow is None)

    def states(self) -> list[EngineState]:
        """The state of each serving engine, and of those that will serve once they are warm."""
        states = [engine.state() for engine in self.engines]
        known = {state.id for state in states}
        states += [one.engine.state() for one in self._warming.values() if one.engine.id not in known]
        return [state._replace(warming=True) if state.id in self._warming else state for state in states]

    @property
    def disabled(self) -> tuple[str, ...]:
        """Ids of engines that are not called: disabled in the registry, or switched off by an operator."""
        # Callers do not see shadow engines, whether or not they are switched on.
        off = self.switched_off - {one.id for one in self.engines if one.entry.shadow is not None}
        return tuple(sorted({*self._disabled, *off})) if off else self._disabled

    def tenants_of(self, engine_id: str) -> frozenset[str] | None:
        """The only tenants that may see this engine, whatever their patterns; None: no such limit."""
        origin = self.origins.get(engine_id)
        while origin is None and engine_id not in self._listed and "/" in engine_id:
            # A discovered engine is as visible as the gateway through which it joined.
            engine_id = engine_id.rpartition("/")[0]
            origin = self.origins.get(engine_id)
        return None if origin is None else origin.tenants

    @property
    def groups(self) -> Mapping[str, Sequence[str]]:
        """Gateway -> its engines that are called directly."""
        return self._discovery.groups()

    def start(self) -> None:
        """Connect to all engines in the background."""
        self._started = True
        for engine in self.engines:
            self._health.watch(engine)

    def apply(
        self,
        entries: Sequence[EngineEntry],
        settings: EnginesSettings,
        linger: float,
        origins: Mapping[str, OriginOfEngine] = NO_ORIGINS,
    ) -> EngineSetChange:
        """Apply a registry in one synchronous step.

        An engine with an unchanged entry stays as it is. A changed one keeps the state of the addresses that stay:
        connections, handshake, breaker, calls in flight. If none of its addresses has had a handshake, it replaces the
        earlier one at its first handshake, at the latest after `warm_seconds`; so does a new `required` engine. An
        engine that has left is not called any more, unless its replacements are not warm yet and nothing else would
        answer (`stand_ins`). Whatever leaves is closed `linger` seconds later: no request that uses it lasts longer.
        """
        wanted = {entry.id: entry for entry in entries if entry.enabled}
        other_settings = settings != self._settings
        self._settings, self._linger = settings, linger
        self._health.renew(settings)
        known = {engine.id: engine for engine in self.engines if engine.id in self._listed}
        # An engine that is still warming up is known, too: another reload may change it before it has served.
        known |= {one.engine.id: one.engine for one in self._warming.values() if one.engine.id in self._listed}
        left = sorted(known.keys() - wanted.keys())
        # A discovered engine gives way to an engine of the registry with the same id.
        self._discovery.prepare(left, {entry.id for entry in entries}, self._former_gateways(wanted))
        joined = sorted(wanted.keys() - known.keys())
        changed = sorted(
            engine_id
            for engine_id in known.keys() & wanted.keys()
            if other_settings
            or known[engine_id].entry != wanted[engine_id]
            or (engine_id in origins) != (engine_id in self.origins)  # they are connected to under stricter rules
        )
        self._listed = frozenset(wanted)
        former = self.origins
        # An engine that serves on after it has left stays invisible to those who never saw it.
        kept = {name: former[name] for name in (*left, *self._stand_ins) if name in former and name not in wanted}
        self.origins = {**origins, **kept} if kept else origins
        leaving = [engine for engine in map(self._remove, left) if engine is not None]
        for entry in wanted.values():
            if entry.id in joined or entry.id in changed:
                self._apply_entry(entry)
        # The settings of all engines have changed, and discovered engines are in no entry of the registry.
        if other_settings:
            for engine in self.engines:
                if engine.id not in self._listed:
                    self._apply_entry(engine.entry)
        self._disabled = tuple(sorted(entry.id for entry in entries if not entry.enabled and entry.shadow is None))
        self._release(leaving)
        # An operator's switch ends with the engine; one that comes back later starts switched on.
        self.switched_off &= {engine.id for engine in self.engines} | {*self._warming}
        self.version += 1
        return EngineSetChange(joined, left, changed)

    def join(self, entry: EngineEntry) -> None:
        """Add a discovered engine, or apply another entry for it. It is connected to in the background."""
        self._apply_entry(entry)

    def leave(self, engine_id: str) -> None:
        """Remove a discovered engine. It is closed once no request can be using it."""
        engine = self._remove(engine_id)
        if engine is not None:
            self._retire(engine_id, engine.replicas)

    def switch(self, engine_id: str, on: bool) -> bool:
        """Switch an engine on or off from the next request on. Returns whether that is a change."""
        if (engine_id not in self.switched_off) == on:
            return False
        self.switched_off = self.switched_off - {engine_id} if on else self.switched_off | {engine_id}
        self.version += 1
        return True

    async def first_checks(self, seconds: float) -> None:
        """Wait until every engine has been checked once, at most for `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._health.first_round()

    async def close(self) -> None:
        """Stop the checks and close every engine, including those that have left."""
        await self._health.stop()
        self._closing.set()
        left: list[_Warming | _StandIn] = [*self._warming.values(), *self._stand_ins.values()]
        self._warming, self._stand_ins = {}, {}
        for one in left:
            one.timer.cancel()
        # An address that two versions of an engine share is closed once.
        replicas = {replica for engine in self.engines for replica in engine.replicas}
        replicas |= {replica for one in left for replica in one.engine.replicas}
        await asyncio.gather(*(replica.close() for replica in replicas), *self._retiring)

    # ── one engine ────────────────────────────────────────────────────────────────────────────────────────────────

    def _apply_entry(self, entry: EngineEntry) -> None:
        """Apply an entry: at once, or as soon as its engine is warm."""
        current = self._active(entry.id)
        if current is None and entry.id in self._stand_ins:  # it left a moment ago and is back
            one = self._stand_ins.pop(entry.id)
            one.timer.cancel()
            current = one.engine
            self.engines = _ordered((*self.engines, current))
            self._watch(current)
        warming = self._warming.pop(entry.id, None)
        if warming is not None:
            warming.timer.cancel()
        # An earlier reload may have left an engine that has not served yet: its connections are worth keeping.
        pending = warming.engine if warming is not None and warming.withheld else None
        trusted = self._is_trusted(entry.id)
        addresses = [(each, connection_key(each, self._settings, trusted=trusted)) for each in addresses_of(entry)]
        known = {
            replica.connection_key: replica for one in (pending, current) if one is not None for replica in one.replicas
        }
        shared = {way: known[way] for _, way in addresses if way in known}
        warm = any(replica.handshake_done for replica in shared.values())
        # A replica that has had a handshake under the earlier entry is warm: there is nothing to wait for.
        withheld = self._is_withheld(entry, current) and not warm
        predecessor = None if withheld or current is None or not {*current.replicas} & {*shared.values()} else current
        # No address in common with the serving engine, but perhaps with one that was still warming up.
        if predecessor is None and pending is not None and {*pending.replicas} & {*shared.values()}:
            predecessor = pending
        engine = self._build_engine(
            entry, [shared.get(way) or self._open_replica(each, way) for each, way in addresses], predecessor
        )
        if not warm and self._started and self._settings.warm_seconds and (withheld or current is None or warming):
            # A warm-up that goes on at the same addresses keeps its start: reloads must not prolong it for ever.
            same = warming is not None and bool({*warming.engine.replicas} & {*shared.values()})
            self._warm(engine, withheld, warming.began if warming is not None and same else None)
        kept = {*engine.replicas} | ({*current.replicas} if withheld and current is not None else set())
        if pending is not None:
            self._hand_over(pending, engine, kept)
        if withheld:
            if pending is None:
                self._watch(engine)
        else:
            self._activate(engine, current, watched=pending is not None)

    def _is_withheld(self, entry: EngineEntry, current: RemoteEngine | None) -> bool:
        """Whether the entry must wait until its engine is warm, since a serving engine or every request would fail."""
        if not (self._started and self._settings.warm_seconds):
            return False
        # An engine that has never answered serves nobody: there is nothing to lose by replacing it at once.
        if current is not None and current.advertisement is not None:
            return True
        # Until its first handshake, a new required engine would fail every request.
        newly_required = entry.required and not (current is not None and current.entry.required)
        return newly_required and entry.id in self._listed and self.reached

    def _warm(self, engine: RemoteEngine, withheld: bool, began: float | None) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time() if began is None else began
        timer = loop.call_at(began + self._settings.warm_seconds, self._warming_expired, engine)
        self._warming[engine.id] = _Warming(engine, withheld, began, timer)

    def _on_advertisement(self, engine: RemoteEngine) -> None:
        """Called when an engine advertises something new, the first time included."""
        self.version += 1
        # Shadow engines answer nobody, so they make no gateway ready.
        self.reached = self.reached or engine.entry.shadow is None
        warming = self._warming.get(engine.id)
        if warming is not None and warming.engine is engine:
            self._end_warming(warming, None)

    def _warming_expired(self, engine: RemoteEngine) -> None:
        """The warm-up took too long: the engine replaces the earlier one all the same, as the registry says."""
        warming = self._warming.get(engine.id)
        if warming is not None and warming.engine is engine:
            self._end_warming(warming, engine.down_reason or "no handshake yet")

    def _end_warming(self, warming: _Warming, fault: str | None) -> None:
        engine = warming.engine
        warming.timer.cancel()
        del self._warming[engine.id]
        if warming.withheld:
            self._activate(engine, self._active(engine.id), watched=True)
        self._warmed(Warmed(engine.id, asyncio.get_running_loop().time() - warming.began, fault))
        self._release([])

    def _activate(self, engine: RemoteEngine, current: RemoteEngine | None, *, watched: bool) -> None:
        """Call this engine from the next request on, in place of `current`."""
        if current is not None:
            engine.succeed(current)
        engines = [one for one in self.engines if one is not current]
        insort(engines, engine, key=_rank)  # sorting anew for each engine would make a reload quadratic
        # One assignment: a request sees either the earlier set or the new one, never a mixture.
        self.engines = tuple(engines)
        self.version += 1
        if current is not None and not watched:
            self._hand_over(current, engine, {*engine.replicas})
        elif current is not None:
            self._hand_over(current, None, {*engine.replicas})
        elif not watched:
            self._watch(engine)

    def _hand_over(self, before: RemoteEngine, after: RemoteEngine | None, kept: Container[Replica]) -> None:
        """Check `after` in place of `before`, and close the replicas of `before` that are not kept."""
        if after is not None and self._started:
            # With a shared replica, a running handshake is useful to the new engine.
            if {*before.replicas} & {*after.replicas}:
                self._health.hand_over(before, after)
            else:
                self._health.unwatch(before)
                self._health.watch(after)
        else:
            self._health.unwatch(before)
        self._retire(before.id, [replica for replica in before.replicas if replica not in kept])

    def _remove(self, engine_id: str) -> RemoteEngine | None:
        """Stop calling an engine. Returns the one that was serving, for the caller to close."""
        warming = self._warming.pop(engine_id, None)
        current = self._active(engine_id)
        if warming is not None:
            warming.timer.cancel()
            if warming.withheld:
                self._hand_over(warming.engine, None, {*current.replicas} if current is not None else ())
        if current is None:
            return None
        self._health.unwatch(current)
        self.engines = tuple(other for other in self.engines if other is not current)
        self.version += 1
        return current

    def _release(self, leaving: Sequence[RemoteEngine]) -> None:
        """Close the engines that have left: now, or once no replacement is warming up any more."""
        if self._warming:
            loop = asyncio.get_running_loop()
            for engine in leaving:
                # An engine that was disabled on purpose must not serve on, whatever is warming up.
                if engine.advertisement is not None and engine.id not in self._disabled:
                    timer = loop.call_later(self._settings.warm_seconds, self._end_stand_in, engine.id)
                    self._stand_ins[engine.id] = _StandIn(engine, timer)
                else:
                    self._retire(engine.id, engine.replicas)
            return
        for engine in leaving:
            self._retire(engine.id, engine.replicas)
        for engine_id in tuple(self._stand_ins):
            self._end_stand_in(engine_id)

    def _end_stand_in(self, engine_id: str) -> None:
        one = self._stand_ins.pop(engine_id)
        one.timer.cancel()
        self.version += 1
        self._retire(engine_id, one.engine.replicas)

    def _retire(self, engine_id: str, replicas: Sequence[Replica]) -> None:
        """Close these replicas once no request can be using them; at once if the gateway stops."""
        if not replicas:
            return

        async def later() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._linger):
                    await self._closing.wait()
            await asyncio.gather(*(replica.close() for replica in replicas))

        retiring = asyncio.get_running_loop().create_task(later(), name=f"retire:{engine_id}")
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)

    def _active(self, engine_id: str) -> RemoteEngine | None:
        return next((engine for engine in self.engines if engine.id == engine_id), None)

    def _watch(self, engine: RemoteEngine) -> None:
        if self._started:
            self._health.watch(engine)

    async def _follow(self, engine: RemoteEngine) -> None:
        if engine.entry.discover and engine in self.engines and await self._discovery.follow(engine):
            self.version += 1

    def _former_gateways(self, wanted: Mapping[str, EngineEntry]) -> set[str]:
        """Engines whose listing is not read any more."""
        return {engine.id for engine in self.engines if engine.entry.discover and not _discovers(wanted.get(engine.id))}

    def _open_replica(self, entry: EngineEntry, way: object) -> Replica:
        """A replica at one address, not connected yet. One that others entered must not reach internal addresses."""
        # A source that may start programs on this machine needs no guarded addresses for them.
        if self._is_trusted(entry.id) or entry.kind == "stdio":
            transport = open_transport(entry, self._settings, self._line_log, self._instrumentation_of(entry.id))
        else:
            transport = open_guarded_transport(entry, self._settings)
        made = Replica("0", transport, lambda advertisement: None)
        made.connection_key = way
        return made

    def _is_trusted(self, engine_id: str) -> bool:
        """Whether the operator entered this engine: no gateway listed it, and no source."""
        return engine_id in self._listed and engine_id not in self.origins

    def _build_engine(
        self, entry: EngineEntry, replicas: Sequence[Replica], before: RemoteEngine | None
    ) -> RemoteEngine:
        """The engine of one entry with these replicas; `before` is the one whose addresses it shares."""
        engine: RemoteEngine

        def report(fault: LegError | None) -> None:
            warming = self._warming.get(entry.id)
            if fault is not None and warming is not None and warming.withheld:
                availability = warming.engine.policies.tracker.availability
                if availability is engine.policies.tracker.availability:
                    return  # the engine that serves in its place is up; `warmed` reports how the warm-up ends
            self._report(engine, fault)

        engine = RemoteEngine(
            entry,
            replicas[0],
            self._on_advertisement,
            further=replicas[1:],
            settings=self._settings,
            instrumentation=self._instrumentation_of(entry.id),
            on_availability=report,
            before=before,
            slots=self._slots,
        )
        return engine

    def __repr__(self) -> str:
        up = sum(engine.up for engine in self.engines)
        warming = f", {len(self._warming)} warming" if self._warming else ""
        lingering = f", {len(self._retiring)} lingering" if self._retiring else ""
        return f"<EngineSet {up}/{len(self.engines)} up, version {self.version}{warming}{lingering}>"


def _discovers(entry: EngineEntry | None) -> bool:
    return entry is not None and entry.discover


def _rank(engine: RemoteEngine) -> tuple[int, str]:
    """Engines are in order of falling priority, then id."""
    return -engine.entry.priority, engine.id


def _ordered(engines: Iterable[RemoteEngine]) -> tuple[RemoteEngine, ...]:
    return tuple(sorted(engines, key=_rank))
