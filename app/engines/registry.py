"""The living set of engines: opens them from their registry entries, keeps them in a stable order, lets go of them.

The only place that knows which kind of transport an entry asks for. It refuses to know what engines are asked.
"""

import asyncio
import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from app.engines.blame import Secrets
from app.engines.discovery import Discovery, Move
from app.engines.engine import RemoteEngine
from app.engines.health import HealthLoop
from app.engines.http import HttpTransport
from app.engines.remainder import Remainder
from app.engines.stdio import StdioTransport
from app.engines.transport import Transport
from app.engines.wary import WaryResolver
from app.engines.witness import Nobody, Witness
from app.protocol.capabilities import Advertisement
from app.protocol.errors import LegError
from app.settings.schema import EngineEntry, EnginesSettings

HTTP2_INSTALLED = importlib.util.find_spec("h2") is not None
"""Whether HTTP/2 can be offered to engines: the extra `http2`."""

Report = Callable[[RemoteEngine, LegError | None], None]
"""Told whenever an engine comes up (None) or goes down (why)."""

LineLog = Callable[[str, str], None]
"""Told (engine id, line) for each line an engine's child process writes to its stderr."""


class Change(NamedTuple):
    """What a diff of the registry came to: ids of the engines that joined and left; one that was replaced did both."""

    joined: list[str]
    left: list[str]


class EngineSet:
    """The engines of one registry and those that joined through its gateways, by priority (highest first) and id.

    `version` grows whenever an advertisement changed, or who is asked, so that what is derived from them can be kept
    until then. `moved` hears of engines that gateways let join and leave.
    """

    def __init__(
        self,
        entries: Sequence[EngineEntry],
        settings: EnginesSettings,
        report: Report,
        line_log: LineLog,
        moved: Callable[[Move], None] = lambda move: None,
        witness_of: Callable[[str], Witness] = lambda engine_id: Nobody(),
        linger: float = 10.0,
    ) -> None:
        """`linger`: seconds until an engine that has left is closed."""
        self.version = 0
        self.engines: tuple[RemoteEngine, ...] = ()
        self.switched_off: frozenset[str] = frozenset()
        """Engines that an operator took out: known and looked after, and not asked."""
        self._disabled: tuple[str, ...] = ()
        self._settings = settings
        self._report = report
        self._line_log = line_log
        self._witness_of = witness_of
        self._started = False
        self._listed: frozenset[str] = frozenset()
        self._linger = linger
        self._retiring: set[asyncio.Task[None]] = set()
        self._ends = asyncio.Event()
        self._discovery = Discovery(self, moved)
        self._health = HealthLoop(settings, follow=self._follow)
        self.apply(entries, settings, linger)
        self.version = 0

    @property
    def asked(self) -> tuple[RemoteEngine | Remainder, ...]:
        """Whom requests are asked of: everybody, but for gateways whose engines are asked directly."""
        asked = self._discovery.asked()
        return tuple(one for one in asked if one.id not in self.switched_off) if self.switched_off else asked

    @property
    def disabled(self) -> tuple[str, ...]:
        """Who is there and not asked: by the registry, or since an operator switched it off."""
        return tuple(sorted({*self._disabled, *self.switched_off})) if self.switched_off else self._disabled

    @property
    def groups(self) -> Mapping[str, Sequence[str]]:
        """Gateway -> its engines that are asked directly."""
        return self._discovery.groups()

    def start(self) -> None:
        """Connect in the background; engines join whenever they come up."""
        self._started = True
        for engine in self.engines:
            self._health.watch(engine)

    def apply(self, entries: Sequence[EngineEntry], settings: EnginesSettings, linger: float) -> Change:
        """Become what the registry says, in one step.

        An engine whose entry is as it was stays as it is. A changed one is replaced by a new one, which knows the old
        one's advertisement until it has shaken hands if it is reached in the same way. What leaves, now or later, is
        closed `linger` seconds after: no request that still knows it lives longer.
        """
        wanted = {entry.id: entry for entry in entries if entry.enabled}
        changed = settings != self._settings
        self._settings = settings
        self._linger = linger
        self._health.renew(settings)
        leaving = {
            engine.id: engine
            for engine in self.engines
            if engine.id in self._listed and (changed or wanted.get(engine.id) != engine.entry)
        }
        self._discovery.make_room(leaving, {entry.id for entry in entries})
        stays = {engine.id for engine in self.engines} - leaving.keys()
        for engine_id in leaving:
            self.leave(engine_id)
        joining = [entry for entry in wanted.values() if entry.id not in stays]
        for entry in joining:
            self._admit(self._opened(entry, leaving.get(entry.id)))
        self._listed = frozenset(wanted)
        self._disabled = tuple(sorted(entry.id for entry in entries if not entry.enabled))
        self.switched_off &= {engine.id for engine in self.engines}
        self.version += 1
        return Change(sorted(entry.id for entry in joining), sorted(leaving))

    def join(self, entry: EngineEntry) -> None:
        """One more engine, which another gateway named; it is connected to in the background."""
        self._admit(self._made(entry, [open_wary_transport(entry, self._settings)]))

    def leave(self, engine_id: str) -> None:
        """It is not asked any more from here on, and closed once no request that knows it can be under way."""
        engine = next(engine for engine in self.engines if engine.id == engine_id)
        self.engines = tuple(other for other in self.engines if other is not engine)
        self.version += 1
        self._health.unwatch(engine_id)
        retiring = asyncio.get_running_loop().create_task(
            self._retire(engine, self._linger), name=f"retire:{engine_id}"
        )
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)

    def switch(self, engine_id: str, on: bool) -> bool:
        """Ask this engine from the next request on, or not; whether that is a change."""
        if (engine_id not in self.switched_off) == on:
            return False
        self.switched_off = self.switched_off - {engine_id} if on else self.switched_off | {engine_id}
        self.version += 1
        return True

    async def settled(self, seconds: float) -> None:
        """Wait until every engine has been up or had its chance to be, at most for so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._health.seen()

    async def close(self) -> None:
        """Stop watching, then close every engine, also those that have left and linger."""
        await self._health.stop()
        self._ends.set()
        await asyncio.gather(*(engine.close() for engine in self.engines), *self._retiring)

    async def _retire(self, engine: RemoteEngine, linger: float) -> None:
        """Close an engine that has left; at once if the gateway ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(linger):
                await self._ends.wait()
        await engine.close()

    def _opened(self, entry: EngineEntry, before: RemoteEngine | None) -> RemoteEngine:
        """The engine of an entry; `before` is whom it replaces."""
        wires = [open_transport(each, self._settings, self._line_log) for each in addresses_of(entry)]
        engine = self._made(entry, wires)
        if before is not None and _way(before.entry) == _way(entry):
            engine.advertisement = before.advertisement
        return engine

    def _admit(self, engine: RemoteEngine) -> None:
        self.engines = _ordered((*self.engines, engine))
        self.version += 1
        if self._started:
            self._health.watch(engine)

    async def _follow(self, engine: RemoteEngine) -> None:
        if engine.entry.discover and await self._discovery.follow(engine):
            self.version += 1

    def _made(self, entry: EngineEntry, transports: Sequence[Transport]) -> RemoteEngine:
        """The engine of one entry over these transports, one for each replica; nothing is connected yet."""
        engine: RemoteEngine

        def told(fault: LegError | None) -> None:
            self._report(engine, fault)

        engine = RemoteEngine(
            entry,
            transports[0],
            self._changed,
            further=transports[1:],
            settings=self._settings,
            witness=self._witness_of(entry.id),
            told=told,
        )
        return engine

    def _changed(self, engine: RemoteEngine) -> None:
        self.version += 1

    def __repr__(self) -> str:
        up = sum(engine.up for engine in self.engines)
        lingering = f", {len(self._retiring)} lingering" if self._retiring else ""
        return f"<EngineSet {up}/{len(self.engines)} up, version {self.version}{lingering}>"


def _way(entry: EngineEntry) -> tuple[object, ...]:
    """What decides who answers when an engine is asked."""
    return entry.url, entry.replicas, entry.command, entry.headers


def _ordered(engines: Iterable[RemoteEngine]) -> tuple[RemoteEngine, ...]:
    return tuple(sorted(engines, key=lambda engine: (-engine.entry.priority, engine.id)))


def open_wary_transport(entry: EngineEntry, settings: EnginesSettings) -> Transport:
    """The transport to an engine that somebody else named."""
    return HttpTransport(entry, settings, resolver=WaryResolver())


def addresses_of(entry: EngineEntry) -> list[EngineEntry]:
    """The entry once for each of its replicas, each with the URL of one."""
    return [entry.model_copy(update={"url": url}) for url in entry.urls] if entry.replicas else [entry]


def open_transport(entry: EngineEntry, settings: EnginesSettings, line_log: LineLog) -> Transport:
    """The transport that `entry` asks for; nothing is connected yet."""
    if entry.kind == "stdio":
        secrets = Secrets(entry)
        return StdioTransport(entry, settings, log=lambda line: line_log(entry.id, secrets.without(line)))
    if entry.client == "httpx" and HTTP2_INSTALLED:
        from app.engines.http2 import Http2Transport  # needs the extra

        return Http2Transport(entry, settings)
    return HttpTransport(entry, settings)


async def probe(entry: EngineEntry, settings: EnginesSettings) -> Advertisement:
    """Shake hands with one engine and let go again. Raises LegError."""
    engine = RemoteEngine(entry, open_transport(entry, settings, lambda engine_id, line: None), lambda changed: None)
    try:
        return await engine.handshake(asyncio.get_running_loop().time() + entry.timeout_ms / 1000)
    finally:
        await engine.close()
