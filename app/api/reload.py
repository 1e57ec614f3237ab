"""Reloads the settings files while the gateway runs: all of them are applied in one step, or none if one is invalid.

Requests in flight finish with the settings they began with. Some settings take effect only after a restart.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from app.api.gateway_state import GatewayState
from app.api.source_requests import Document, SourceRequests
from app.engines.engine import EngineSetChange
from app.protocol.errors import CALL_KINDS
from app.settings.config_warnings import config_warnings, duplicate_addresses
from app.settings.engine_sources import EngineSources, SourceEngines, SourceEvent
from app.settings.field_errors import SettingsError
from app.settings.file_watch import Watch
from app.settings.schema import EngineEntry, GatewaySettings
from app.settings.source_rails import OriginOfEngine
from app.settings.sources import LoadedSettings
from app.telemetry.logs import logger

QUIET_SECONDS = 0.2
"""After a change, files are read once they were unchanged for this long: they may still be being written."""

MAX_LOOKS = 25
"""Most checks for further changes, about five seconds in all. Files that keep changing are then read as they are."""

IDLE_SECONDS = 3600.0
"""Interval of checks if `server.reload_seconds` is 0, which leaves reloads to SIGHUP."""

AT_START = frozenset(
    {"server.host", "server.port", "server.workers", "server.worker_timeout_seconds", "server.keep_alive_seconds"}
    | {"server.handshake", "server.max_line_bytes", "server.trusted_proxies"}
    | {"mcp.enabled", "mcp.fetch_ttl_seconds", "mcp.max_kept_hits"}
    | {"metrics.port", "cache.shared", "server.allowed_hosts", "server.cors_origins", "server.tls"}
)
SECTIONS_AT_START = frozenset({"state", "log", "auth", "jwt", "screen", "traces"})
"""Sections whose settings, like those of AT_START, are read only when the gateway starts."""

MOST_FAULTS = 20
"""Faults of a source in one log line."""

NOWHERE = OriginOfEngine("", "", None)

Load = Callable[[], LoadedSettings]
"""Reads all files. Raises SettingsError."""


class Reload:
    """Watches the settings files of one gateway and applies their changes."""

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
        """`watch` must have recorded the files before they were read for `state`, and `sources` theirs, or a change
        would be missed.

        `also` is called at each check, for files that are reloaded by themselves, such as a TLS certificate.
        """
        self.sources = EngineSources({}) if sources is None else sources
        self._received = asyncio.Event()
        self._requests = SourceRequests(self._receive)
        self._also = also
        self.failure: str | None = None
        """Why the files could not be applied; None if they are in force."""
        self._state = state
        self._began_with = state.settings
        self._load = load
        self._watch = watch
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch the files."""
        self._state.metrics.server.in_force_since(time.time())
        self._report(self.sources.latest.events, {}, None)
        self._requests.renew(self.sources.configured)
        self._task = asyncio.create_task(self._keep_looking(), name="reload")

    async def stop(self) -> None:
        """Stop watching."""
        await self._requests.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def ask(self) -> None:
        """Request a reload now, even of unchanged files."""
        self._asked.set()
        self._received.set()

    def _receive(self, source: str, body: Document) -> None:
        self.sources.receive(source, body)
        self._received.set()

    async def _keep_looking(self) -> None:
        while True:
            await self._next_look()
            # Cleared before the files are read, so that a request during the reload causes another one.
            asked = self._asked.is_set()
            self._asked.clear()
            if self._also is not None:
                await self._also()
            # In a thread: files may be on a slow network volume.
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
        remedy = "the current content is used; write files only when something changes, and replace them by a rename"
        logger().warning("files_keep_changing", seconds=MAX_LOOKS * QUIET_SECONDS, remedy=remedy)

    async def now(self) -> None:
        """Read all files and apply them, or none of them if one is invalid."""
        try:
            loaded_settings = await asyncio.to_thread(self._load)
        except SettingsError as fault:
            # A fault in the operator's files does not stop the files of teams.
            if self.sources.configured:
                await self.look_at_sources()
            self.failure = str(fault)
            self._state.metrics.server.reloaded(None)
            messages = [str(one) for one in fault.faults]
            logger().error("reload_failed", file=fault.file, faults=messages, in_force="the previous settings")
            return
        found = await asyncio.to_thread(self._configure, loaded_settings)
        # The failure of an earlier attempt is over once all files are valid again.
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
        # `longest`: engines that leave are closed after the deadline of the requests that may still use them.
        change = state.engines.apply(found.entries, settings.engines, longest, found.origins)
        limited = any(origin.tenants is not None for origin in state.engines.origins.values())
        state.membership.limit(state.engines.tenants_of if limited else None)
        # The series of engines that left end, and those of new engines start at 0.
        state.metrics.forget_engines(change.left)
        state.selector.forget(change.left)
        if state.shadows is not None:
            state.shadows.comparisons.forget(change.left)
        state.metrics.declare_engines(change.joined, CALL_KINDS)
        for engine in state.engines.engines:
            if engine.id in change.joined or engine.id in change.changed:
                state.metrics.declare_replicas(engine.id, [replica.label for replica in engine.state().replicas])
                state.metrics.shadows.watch(engine.id, shadow=engine.entry.shadow is not None)
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
        """Apply the settings. Nothing is awaited, so no request sees a part of the change."""
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
        # Compared with the settings at startup: a change that is undone needs no restart.
        waiting = [key for key in differing(self._began_with, settings) if _waits(key)]
        state.metrics.server.restart_needed.set(len(waiting))
        if waiting:
            logger().warning("restart_needed", settings=waiting, remedy="restart the gateway to apply them")

    def __repr__(self) -> str:
        state = "not started" if self._task is None else "ended" if self._task.done() else "watching"
        return f"<Reload {state} {self._watch!r}, {'faulty: ' + self.failure if self.failure else 'in force'}>"


def log_duplicate_addresses(entries: Iterable[EngineEntry]) -> None:
    """Warn about an engine that is registered under two ids."""
    for pair in duplicate_addresses(entries):
        logger().warning(
            "same_engine_twice", engines=list(pair), remedy="remove one of them: fusion would count its hits twice"
        )


def log_config_warnings(loaded: LoadedSettings, engines: Sequence[EngineEntry]) -> None:
    """Log what `rcp-gateway check` warns about: expired keys, tenants without engines, weights of 0, and the like."""
    for warning in config_warnings(loaded.loaded, loaded.settings, loaded.tenants, time.time(), engines=engines):
        logger().warning("config_warning", warning=str(warning))


def _waits(key: str) -> bool:
    """Whether this setting takes effect only after a restart."""
    return key in AT_START or key.partition(".")[0] in SECTIONS_AT_START


def differing(one: GatewaySettings, other: GatewaySettings) -> Iterator[str]:
    """The settings that differ, as `section.key`."""
    for section in type(one).model_fields:
        ours, theirs = getattr(one, section), getattr(other, section)
        for key in type(ours).model_fields:
            if getattr(ours, key) != getattr(theirs, key):
                yield f"{section}.{key}"
