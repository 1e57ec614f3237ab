"""The living set of engines: opens them from their registry entries, keeps them in a stable order, closes them.

The only place that knows which kind of transport an entry asks for. It refuses to know what engines are asked.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

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

Report = Callable[[RemoteEngine, LegError | None], None]
"""Told whenever an engine comes up (None) or goes down (why)."""

LineLog = Callable[[str, str], None]
"""Told (engine id, line) for each line an engine's child process writes to its stderr."""


LEAVE_PAUSE = 0.05
"""Seconds between two looks at whether an engine that left still has calls under way."""


class EngineSet:
    """The engines of one registry and those that joined through its gateways, by priority (highest first) and id.

    `version` grows whenever an advertisement changed, or who is asked, so that what is derived from them can be kept
    until then. `moved` hears of engines that join and leave.
    """

    def __init__(
        self,
        entries: Sequence[EngineEntry],
        settings: EnginesSettings,
        report: Report,
        line_log: LineLog,
        moved: Callable[[Move], None] = lambda move: None,
        witness_of: Callable[[str], Witness] = lambda engine_id: Nobody(),
    ) -> None:
        self.version = 0
        self._settings = settings
        self._report = report
        self._line_log = line_log
        self._witness_of = witness_of
        self.engines: tuple[RemoteEngine, ...] = _ordered(
            self._made(entry, [open_transport(each, settings, line_log) for each in addresses_of(entry)])
            for entry in entries
            if entry.enabled
        )
        self.disabled: tuple[str, ...] = tuple(sorted(entry.id for entry in entries if not entry.enabled))
        self._discovery = Discovery(self, moved)
        self._health = HealthLoop(settings, follow=self._follow)
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def asked(self) -> tuple[RemoteEngine | Remainder, ...]:
        """Whom requests are asked of: everybody, but for gateways whose engines are asked directly."""
        return self._discovery.asked()

    @property
    def groups(self) -> Mapping[str, Sequence[str]]:
        """Gateway -> its engines that are asked directly."""
        return self._discovery.groups()

    def start(self) -> None:
        """Connect in the background; engines join whenever they come up."""
        for engine in self.engines:
            self._health.watch(engine)

    def join(self, entry: EngineEntry) -> None:
        """One more engine, which another gateway named; it is connected to in the background."""
        engine = self._made(entry, [open_wary_transport(entry, self._settings)])
        self.engines = _ordered((*self.engines, engine))
        self.version += 1
        self._health.watch(engine)

    def leave(self, engine_id: str) -> None:
        """It is not asked any more from here on, and closed once its calls have ended."""
        engine = next(engine for engine in self.engines if engine.id == engine_id)
        self.engines = tuple(other for other in self.engines if other is not engine)
        self.version += 1
        self._health.unwatch(engine_id)
        leaving = asyncio.get_running_loop().create_task(_let_go(engine), name=f"leave:{engine_id}")
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def settled(self, seconds: float) -> None:
        """Wait until every engine has been up or had its chance to be, at most for so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._health.seen()

    async def close(self) -> None:
        """Stop watching, then close every engine."""
        await self._health.stop()
        for leaving in self._leaving:
            leaving.cancel()
        await asyncio.gather(*self._leaving, *(engine.close() for engine in self.engines), return_exceptions=True)

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
        return f"<EngineSet {up}/{len(self.engines)} up, version {self.version}>"


def _ordered(engines: Iterable[RemoteEngine]) -> tuple[RemoteEngine, ...]:
    return tuple(sorted(engines, key=lambda engine: (-engine.entry.priority, engine.id)))


async def _let_go(engine: RemoteEngine) -> None:
    """Close it when nothing is under way any more, at the latest when no call can be."""
    try:
        async with asyncio.timeout(engine.entry.timeout_ms / 1000):
            while engine.gate.in_flight or engine.gate.waiting:  # noqa: ASYNC110 - a gate tells nobody that it is empty
                await asyncio.sleep(LEAVE_PAUSE)
    except TimeoutError:
        pass
    finally:
        await engine.close()


def open_wary_transport(entry: EngineEntry, settings: EnginesSettings) -> Transport:
    """The transport to an engine that somebody else named."""
    return HttpTransport(entry, settings, resolver=WaryResolver())


def addresses_of(entry: EngineEntry) -> list[EngineEntry]:
    """The entry once for each of its replicas, each with the URL of one."""
    return [entry.model_copy(update={"url": url}) for url in entry.urls] if entry.replicas else [entry]


def open_transport(entry: EngineEntry, settings: EnginesSettings, line_log: LineLog) -> Transport:
    """The transport that `entry` asks for; nothing is connected yet."""
    if entry.kind == "stdio":
        return StdioTransport(entry, settings, log=lambda line: line_log(entry.id, line))
    if entry.client == "httpx":
        from app.engines.httpx_client import HttpxTransport  # only those who ask for httpx2 pay for loading it

        return HttpxTransport(entry, settings)
    return HttpTransport(entry, settings)


async def probe(entry: EngineEntry, settings: EnginesSettings) -> Advertisement:
    """Shake hands with one engine and let go again. Raises LegError."""
    engine = RemoteEngine(entry, open_transport(entry, settings, lambda engine_id, line: None), lambda changed: None)
    try:
        return await engine.handshake(asyncio.get_running_loop().time() + entry.timeout_ms / 1000)
    finally:
        await engine.close()
