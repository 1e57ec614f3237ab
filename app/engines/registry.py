"""The living set of engines: opens them from their registry entries, keeps them in a stable order, closes them.

The only place that knows which kind of transport an entry asks for. It refuses to know what engines are asked.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from app.engines.engine import RemoteEngine
from app.engines.health import HealthLoop, Report
from app.engines.http import HttpTransport
from app.engines.stdio import StdioTransport
from app.engines.transport import Transport
from app.protocol.capabilities import Advertisement
from app.settings.schema import EngineEntry, EnginesSettings

LineLog = Callable[[str, str], None]
"""Told (engine id, line) for each line an engine's child process writes to its stderr."""


class EngineSet:
    """The engines of one registry, by priority (highest first) and id.

    `version` grows whenever an advertisement changed, so that what is derived from them can be kept until then.
    """

    def __init__(
        self, entries: Sequence[EngineEntry], settings: EnginesSettings, report: Report, line_log: LineLog
    ) -> None:
        self.version = 0
        ordered = sorted((entry for entry in entries if entry.enabled), key=lambda entry: (-entry.priority, entry.id))
        self.engines: tuple[RemoteEngine, ...] = tuple(
            RemoteEngine(entry, open_transport(entry, settings, line_log), self._changed) for entry in ordered
        )
        self.disabled: tuple[str, ...] = tuple(sorted(entry.id for entry in entries if not entry.enabled))
        self._health = HealthLoop(settings, report)

    def start(self) -> None:
        """Connect in the background; engines join whenever they come up."""
        for engine in self.engines:
            self._health.watch(engine)

    async def settled(self, seconds: float) -> None:
        """Wait until every engine has been up or had its chance to be, at most for so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._health.seen()

    async def close(self) -> None:
        """Stop watching, then close every engine."""
        await self._health.stop()
        await asyncio.gather(*(engine.close() for engine in self.engines))

    def _changed(self, engine: RemoteEngine) -> None:
        self.version += 1

    def __repr__(self) -> str:
        up = sum(engine.up for engine in self.engines)
        return f"<EngineSet {up}/{len(self.engines)} up, version {self.version}>"


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
