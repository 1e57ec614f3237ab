"""Opens the transport that a registry entry asks for: HTTP/1.1, HTTP/2 or a child process."""

import asyncio
import importlib.util
from collections.abc import Callable

from app.engines.call_instrumentation import CallInstrumentation, NoInstrumentation
from app.engines.engine import RemoteEngine
from app.engines.http.client import HttpTransport
from app.engines.http.resolver import GuardedResolver
from app.engines.redaction import Secrets
from app.engines.stdio import StdioTransport
from app.engines.transport import Transport
from app.protocol.advertisement import Advertisement
from app.settings.schema import EngineEntry, EnginesSettings

HTTP2_INSTALLED = importlib.util.find_spec("h2") is not None  # the extra `http2`

LineLog = Callable[[str, str], None]
"""Called with (engine id, line) for each line that an engine's process writes to stderr."""


def open_guarded_transport(entry: EngineEntry, settings: EnginesSettings) -> Transport:
    """The transport to an HTTP engine that the operator did not enter, which must not reach internal addresses."""
    if entry.client == "httpx" and HTTP2_INSTALLED:
        from app.engines.http.http2_client import Http2Transport  # needs the extra

        return Http2Transport(entry, settings, resolver=GuardedResolver())
    return HttpTransport(entry, settings, resolver=GuardedResolver())


def addresses_of(entry: EngineEntry) -> list[EngineEntry]:
    """One entry per replica, each with the URL of that replica."""
    return [entry.model_copy(update={"url": url}) for url in entry.urls] if entry.replicas else [entry]


def connection_key(entry: EngineEntry, settings: EnginesSettings, *, trusted: bool) -> tuple[object, ...]:
    """All that decides what answers at an address, and how. Replicas with equal keys survive a reload."""
    if entry.kind == "stdio":
        # Settings that a transport reads once, when it is made: with other values it has to be made anew.
        limits: tuple[float, ...] = (settings.reconnect_max_seconds, settings.stdio_restart_max_seconds)
        limits = (settings.stdio_unanswered, *limits)
    else:
        limits = (settings.idle_seconds, settings.max_connection_age_seconds)
    tls = None if entry.tls is None else entry.tls.model_dump_json()
    return (
        *(entry.url, tuple(entry.command or ()), tuple(sorted(entry.headers.items())), tls, entry.client),
        *(trusted, settings.max_response_bytes, limits),
    )


def open_transport(
    entry: EngineEntry, settings: EnginesSettings, line_log: LineLog, instrumentation: CallInstrumentation | None = None
) -> Transport:
    """The transport that `entry` asks for; nothing is connected yet."""
    if entry.kind == "stdio":
        secrets = Secrets(entry)
        return StdioTransport(
            entry,
            settings,
            log=lambda line: line_log(entry.id, secrets.mask(line)),
            ended=(instrumentation or NoInstrumentation()).process_ended,
        )
    if entry.client == "httpx" and HTTP2_INSTALLED:
        from app.engines.http.http2_client import Http2Transport  # needs the extra

        return Http2Transport(entry, settings)
    return HttpTransport(entry, settings)


async def probe(entry: EngineEntry, settings: EnginesSettings) -> Advertisement:
    """Perform a handshake with one engine and close it again. Raises LegError."""
    engine = RemoteEngine(entry, open_transport(entry, settings, lambda engine_id, line: None), lambda changed: None)
    try:
        return await engine.handshake(asyncio.get_running_loop().time() + entry.timeout_ms / 1000)
    finally:
        await engine.close()
