"""Other settings without a restart: the files are watched, read anew, and taken over in one step or not at all.

It decides when to look, that a faulty file changes nothing, and which settings wait for a restart. Requests under way
finish as they began. It refuses to know how files are read and what an engine is.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from app.api.gateway_state import GatewayState
from app.api.source_requests import Document, SourceRequests
from app.engines.registry import EngineSetChange
from app.protocol.errors import CALL_KINDS
from app.settings.config_warnings import config_warnings
from app.settings.engine_sources import EngineSources, SourceEngines, SourceEvent
from app.settings.field_errors import SettingsError
from app.settings.file_watch import Watch
from app.settings.schema import EngineEntry, GatewaySettings, duplicate_addresses
from app.settings.source_rails import OriginOfEngine
from app.settings.sources import LoadedSettings
from app.telemetry.logs import logger

QUIET_SECONDS = 0.2
"""A file that has just changed is looked at once more after so long: it may still be being written."""

MAX_LOOKS = 25
"""So often in a row, some five seconds; what changes all the time is then read as it is, for a reload must come."""

IDLE_SECONDS = 3600.0
"""Between two looks if nothing is to be looked at by itself."""

AT_START = frozenset(
    {"server.host", "server.port", "server.workers", "server.worker_timeout_seconds", "server.keep_alive_seconds"}
    | {"server.handshake", "server.max_line_bytes", "server.trusted_proxies"}
    | {"mcp.enabled", "mcp.fetch_ttl_seconds", "mcp.max_kept_hits"}
    | {"metrics.port", "server.allowed_hosts", "server.cors_origins", "server.tls"}
)
SECTIONS_AT_START = frozenset({"state", "log", "auth", "jwt", "screen", "traces"})
"""Settings that are read once, when the gateway starts."""

MOST_FAULTS = 20
"""Faults of a source in one log line."""

NOWHERE = OriginOfEngine("", "", None)

Load = Callable[[], LoadedSettings]
"""Reads all files. Raises SettingsError."""


class Reload:
    """Keeps one gateway to what its files say."""

    __slots__ = (
        "_also",
        "_asked",
        "_began_with",
        "_load",
        "_received",
        "_requests",
        "_state",
        "_task",
        "_watch",
        "failure",
        "sources",
    )

    def __init__(
        self,
        state: GatewayState,
        load: Load,
        watch: Watch,
        also: Callable[[], Awaitable[None]] | None = None,
        sources: EngineSources | None = None,
    ) -> None:
        """`watch` must have looked at the files before they were read for `state`, and `sources` at theirs.

        `also` is called at each look, for files with a content of their own, such as a certificate.
        """
        self.sources = EngineSources({}) if sources is None else sources
        self._received = asyncio.Event()
        self._requests = SourceRequests(self._receive)
        self._also = also
        self.failure: str | None = None
        """Why the files are not what is in force; None while they are."""
        self._state = state
        self._began_with = state.settings
        self._load = load
        self._watch = watch
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Watch from now on."""
        self._state.metrics.server.in_force_since(time.time())
        self._report(self.sources.latest.events, {}, None)
        self._requests.renew(self.sources.configured)
        self._task = asyncio.create_task(self._keep_looking(), name="reload")

    async def stop(self) -> None:
        """Watch no more."""
        await self._requests.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def ask(self) -> None:
        """Read the files now, changed or not."""
        self._asked.set()
        self._received.set()

    def _receive(self, source: str, body: Document) -> None:
        self.sources.receive(source, body)
        self._received.set()

    async def _keep_looking(self) -> None:
        while True:
            await self._next_look()
            asked = self._asked.is_set()
            self._asked.clear()
            if self._also is not None:
                await self._also()
            if await asyncio.to_thread(self._watch.changed):
                await self._wait_until_quiet()
                asked = True
            if asked:
                await self.now()
            elif self.sources.configured:
                await self.look_at_sources()

    async def _next_look(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._state.settings.server.reload_seconds or IDLE_SECONDS):
                await self._received.wait()
        self._received.clear()

    async def _wait_until_quiet(self) -> None:
        for _ in range(MAX_LOOKS):
            await asyncio.sleep(QUIET_SECONDS)
            if not await asyncio.to_thread(self._watch.changed):
                return
        remedy = "they are read as they are now; write them only when something changes, and by renaming a new file"
        logger().warning("files_keep_changing", seconds=MAX_LOOKS * QUIET_SECONDS, remedy=remedy)

    async def now(self) -> None:
        """Read all files and take over what they say, or nothing of it if there is a fault in one."""
        try:
            loaded_settings = await asyncio.to_thread(self._load)
        except SettingsError as fault:
            # A fault in the operator's files does not stop the files of teams.
            if self.sources.configured:
                await self.look_at_sources()
            self.failure = str(fault)
            self._state.metrics.server.reloaded(None)
            messages = [str(one) for one in fault.faults]
            logger().error("reload_failed", file=fault.file, faults=messages, in_force="what was before")
            return
        found = await asyncio.to_thread(self._configure, loaded_settings)
        self.failure = None
        self._apply(loaded_settings, found)

    def _configure(self, loaded_settings: LoadedSettings) -> SourceEngines:
        self.sources.configure(loaded_settings.settings.registry.sources, loaded_settings.loaded.registry.engines)
        return self.sources.look()

    async def look_at_sources(self) -> None:
        """Read what has changed in the sources, and apply only that."""
        found = await asyncio.to_thread(self.sources.look)
        state, before, change = self._state, self._state.engines.origins, None
        if found.changed:
            change = self._apply_engines(found, state.settings, state.settings.retrieve.deadline_ms / 1000)
        self._report(found.events, before, change)

    def _apply_engines(self, found: SourceEngines, settings: GatewaySettings, longest: float) -> EngineSetChange:
        state = self._state
        change = state.engines.apply(found.entries, settings.engines, longest, found.origins)
        limited = any(origin.tenants is not None for origin in state.engines.origins.values())
        state.membership.limit(state.engines.tenants_of if limited else None)
        state.metrics.forget_engines(change.left)
        state.selector.forget(change.left)
        state.metrics.declare_engines(change.joined, CALL_KINDS)
        for engine in state.engines.engines:
            if engine.id in change.joined or engine.id in change.changed:
                state.metrics.declare_replicas(engine.id, [replica.label for replica in engine.state().replicas])
        return change

    def _report(
        self, events: Iterable[SourceEvent], before: Mapping[str, OriginOfEngine], change: EngineSetChange | None
    ) -> None:
        """Log and count what a look found, and show the state of each source."""
        metrics, origins = self._state.metrics.sources, self._state.engines.origins
        metrics.show({one.name: (one.up, len(one.engines), one.last_success) for one in self.sources.states})
        for event in events:
            name = event.source
            metrics.changed(name, "ok" if event.kind == "reloaded" else event.kind)
            if event.kind == "failed":
                faults, more = event.faults[:MOST_FAULTS], len(event.faults) - MOST_FAULTS
                faults = (*faults, f"and {more} more") if more > 0 else faults
                logger().error("source_failed", source=name, faults=faults, in_force="its last good engines")
            elif event.kind == "shrinks":
                remedy = "they are removed if the next look finds the same"
                logger().warning("source_shrinks", source=name, engines=event.engines, remedy=remedy)
            else:
                lists = {
                    kind: [one for one in ids if (origins.get(one) or before.get(one) or NOWHERE).source == name]
                    for kind, ids in (() if change is None else change._asdict().items())
                }
                logger().info("source_reloaded", source=name, **lists)

    def _apply(self, loaded_settings: LoadedSettings, found: SourceEngines) -> None:
        """The one step: no request sees half of it."""
        loaded, settings, tenants = loaded_settings
        state = self._state
        longest = max(state.settings.retrieve.deadline_ms, settings.retrieve.deadline_ms) / 1000
        origins = state.engines.origins
        change = self._apply_engines(found, settings, longest)
        self._requests.renew(self.sources.configured)
        before = state.settings
        state.renew(settings, loaded.fingerprint)
        if state.authenticator is not None and tenants is not None:
            state.authenticator.replace(tenants, settings.fusion)
        state.metrics.server.reloaded(time.time())
        changed = list(differing(before, settings))
        logger().info("reloaded", joined=change.joined, left=change.left, changed=change.changed, settings=changed)
        self._report(found.events, origins, change)
        log_duplicate_addresses(found.entries)
        log_config_warnings(loaded_settings, found.entries)
        waiting = [key for key in differing(self._began_with, settings) if _waits(key)]
        state.metrics.server.restart_needed.set(len(waiting))
        if waiting:
            logger().warning("restart_needed", settings=waiting, remedy="they are read only when the gateway starts")

    def __repr__(self) -> str:
        state = "not started" if self._task is None else "ended" if self._task.done() else "watching"
        return f"<Reload {state} {self._watch!r}, {'faulty: ' + self.failure if self.failure else 'in force'}>"


def log_duplicate_addresses(entries: Iterable[EngineEntry]) -> None:
    """Warn of engines that are one and the same under two ids."""
    for pair in duplicate_addresses(entries):
        logger().warning("same_engine_twice", engines=list(pair), remedy="remove one: fusion counts its hits twice")


def log_config_warnings(loaded: LoadedSettings, engines: Sequence[EngineEntry]) -> None:
    """Log what `rcp-gateway check` warns about: expired keys, tenants without engines, weights of 0, and the like."""
    for warning in config_warnings(loaded.loaded, loaded.settings, loaded.tenants, time.time(), engines=engines):
        logger().warning("config_warning", warning=str(warning))


def _waits(key: str) -> bool:
    """Whether this setting waits for a restart."""
    return key in AT_START or key.partition(".")[0] in SECTIONS_AT_START


def differing(one: GatewaySettings, other: GatewaySettings) -> Iterator[str]:
    """The settings, as `section.key`, in which they differ."""
    for section in type(one).model_fields:
        ours, theirs = getattr(one, section), getattr(other, section)
        for key in type(ours).model_fields:
            if getattr(ours, key) != getattr(theirs, key):
                yield f"{section}.{key}"
