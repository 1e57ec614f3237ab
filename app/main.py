"""Composition root: builds a gateway, starts it, and stops it in reverse order.

`serve` and `serve_stdio` are called by the command line; `work` is what each of several worker processes runs.
"""

import asyncio
import gc
import os
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version as installed_version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from fastapi import FastAPI

from app.api.admin import admin
from app.api.admission import Admission
from app.api.allowed_hosts import AllowedHosts
from app.api.application import GatewayApplication
from app.api.auth.authentication import Authenticator
from app.api.console import console
from app.api.cors import CorsPolicy
from app.api.dispatch import Dispatcher
from app.api.engine_events import EngineEvents
from app.api.gateway_state import GatewayState, Readiness, identity_of
from app.api.methods import ANSWERED
from app.api.metrics import MetricsPort, metrics_route
from app.api.openapi import docs_routes, openapi_document
from app.api.optional_features import missing_extras, token_verifier, tracing
from app.api.pipe import Pipe
from app.api.probes import probes
from app.api.reload import Reload, log_config_warnings, log_duplicate_addresses
from app.api.responses import Asgi, not_found
from app.api.rpc import RpcEndpoint, rpc_routes
from app.api.rpc_path import MCP_PATHS, USUAL_PATHS
from app.api.stdio import RcpLines, StdioEndpoint
from app.engines.call_instrumentation import EngineInstrumentation
from app.engines.registry import EngineSet
from app.federation.answer_cache import AnswerCache
from app.federation.engine_selection import EngineSelector
from app.federation.idempotency import Idempotency
from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.learning import Learning
from app.federation.membership import Membership
from app.federation.pagination import Pages
from app.federation.sessions import RecentHits
from app.federation.shadows import Shadows
from app.fusion import rrf
from app.mcp.http import McpEndpoint, mcp_routes
from app.mcp.stdio import McpLines
from app.protocol import envelope
from app.protocol.errors import RCP_CODES
from app.resilience.byte_budget import ByteBudget
from app.server.early_signals import end_on_signals
from app.server.http_protocol import HttpProtocol
from app.server.lifecycle import GatewayServer
from app.server.listeners import listen, listen_for_metrics
from app.server.preflight import start_faults
from app.server.shutdown_stage import AT_ONCE, WORKER_SIGNALS, ShutdownStage, worker_signal
from app.server.tls import ServerCertificate
from app.server.workers import Workers, beating, end_with_parent
from app.settings.effective_settings import masked
from app.settings.engine_sources import NO_ORIGINS, EngineSources
from app.settings.field_errors import SettingsError
from app.settings.operators import LogSettings
from app.settings.schema import GatewaySettings
from app.settings.sources import Files, LoadedRegistry
from app.settings.tenants_file import Tenants
from app.state.secret import DeploymentSecret
from app.state.store import IN_MEMORY, MemoryStore, StateBackend
from app.state.sums import file_sums
from app.telemetry import logs
from app.telemetry.log_rate_limit import LogAllowance
from app.telemetry.metric_groups import StateMetrics
from app.telemetry.metrics import Metrics
from app.telemetry.worker_snapshots import WorkerSnapshots, forget_gauges

READY_POLL_SECONDS = 0.01
WORKER_PATIENCE = 0.5
"""Seconds that a worker waits for a first engine before it accepts connections, for it shares its port with workers
that are ready. A gateway of one process answers probes at once; the load balancer waits."""

VERSION = installed_version("rcp-gateway")

COMPILED = Path(rrf.__file__).suffix != ".py"
"""Whether this process runs the extension modules of a wheel that `make wheel` built, or the sources."""


def build_state(
    loaded: LoadedRegistry,
    settings: GatewaySettings,
    tenants: Tenants | None = None,
    workers: WorkerSnapshots | None = None,
    sources: EngineSources | None = None,
) -> GatewayState:
    """Build one gateway without starting it. Raises SettingsError if a library that a setting needs is missing.

    `workers`: the metrics of the other worker processes, if there are several. `sources`: those of the settings, which
    have been looked at.
    """
    _need_extras(settings, over_http=tenants is not None)
    metrics = Metrics(VERSION, compiled=COMPILED, workers=workers)
    engines, events = _engines(loaded, settings, metrics, sources)
    metrics.declare_methods(ANSWERED)
    metrics.declare_codes(RCP_CODES)
    events.declare(engines.engines)
    metrics.watch_engines(engines.states)
    membership = _membership(settings, engines, loaded.fingerprint)
    backend = _backend(settings, lambda: membership.identity, metrics.state)
    authenticator = None
    if tenants is not None:
        authenticator = Authenticator(settings, tenants, metrics.callers, token_verifier(settings), backend)
    admission = Admission(settings.server, metrics.server)
    readiness = Readiness(engines, backend)

    def busy() -> bool:
        return admission.waiting > 0  # optional work would delay the requests that wait

    learning = Learning(metrics.calibration, backend.sums() or file_sums(settings.state.path))
    return GatewayState(
        version=VERSION,
        settings=settings,
        engines=engines,
        membership=membership,
        instrumentation=RetrieveInstrumentation(metrics, tracing=tracing(settings, VERSION, metrics.spans_lost.inc)),
        metrics=metrics,
        readiness=readiness,
        admission=admission,
        answer_bytes=ByteBudget(
            settings.engines.max_held_bytes, watch=metrics.held_bytes.set, pausing=metrics.paused_answers.inc
        ),
        authenticator=authenticator,
        pages=Pages.from_settings(settings.state, screen=settings.screen, backend=backend, learning=learning),
        idempotency=Idempotency.from_settings(settings.state, backend),
        recent=RecentHits.from_settings(settings.mcp, backend),
        secret=_secret(settings, backend, workers),
        selector=EngineSelector(metrics.selection, busy),
        answers=AnswerCache(settings.cache, metrics.cache, backend, busy),
        shadows=Shadows(engines, membership.sees, metrics.shadows, busy, lambda: readiness.draining),
        backend=backend,
    )


def _membership(settings: GatewaySettings, engines: EngineSet, fingerprint: str) -> Membership:
    """What the federation offers each tenant."""
    membership = Membership(
        engines,
        identity_of(settings, fingerprint),
        settings.retrieve.max_k,
        settings.state.session_ttl_seconds,
        writing=settings.index.enabled,
        rerank_union=settings.retrieve.rerank_union,
        learning=settings.fusion.learning == "on",
    )
    if any(origin.tenants is not None for origin in engines.origins.values()):
        membership.limit(engines.tenants_of)
    return membership


def _secret(settings: GatewaySettings, backend: StateBackend, workers: WorkerSnapshots | None) -> DeploymentSecret:
    """The key of ids given to callers: shared through Redis, else through the folder of the workers."""
    return DeploymentSecret(
        backend.store("secret", MemoryStore(1, 1), permanent=True) if settings.state.shared else None,
        None if workers is None else str(workers.folder),
    )


def sources_of(loaded: LoadedRegistry, settings: GatewaySettings) -> EngineSources:
    """The engine sources of these settings, read once. A faulty file is reported when the reload starts."""
    sources = EngineSources(os.environ)
    sources.configure(settings.registry.sources, loaded.registry.engines)
    sources.look()
    return sources


def _backend(settings: GatewaySettings, identity: Callable[[], str], metrics: StateMetrics) -> StateBackend:
    """Where sessions, cursors and limits are kept: in Redis if `state.url` is set, else in this process."""
    if not settings.state.shared:
        return IN_MEMORY
    # Loaded on demand: the Redis client is optional, and costs time and memory.
    from app.state.redis_store import RedisState

    return RedisState(settings.state, settings.server.id or settings.server.name, identity, metrics)


async def _close(state: GatewayState) -> None:
    """Close connections to engines and to the shared state, and send the last spans."""
    await state.switches.close()
    await state.answers.close()
    if state.shadows is not None:
        await state.shadows.close()
    await state.pages.learning.close()
    await state.engines.close()
    await state.backend.close()
    state.metrics.publish()
    if state.instrumentation.tracing is not None:
        await asyncio.to_thread(state.instrumentation.tracing.close)


def _engines(
    loaded: LoadedRegistry, settings: GatewaySettings, metrics: Metrics, sources: EngineSources | None
) -> tuple[EngineSet, EngineEvents]:
    """The engines of the registry and of sources, and what logs and counts their changes."""
    events = EngineEvents(metrics)
    engines = EngineSet(
        loaded.registry.engines if sources is None else sources.latest.entries,
        settings.engines,
        events.changed,
        events.stderr_line,
        events.moved,
        lambda engine_id: EngineInstrumentation(engine_id, metrics),
        settings.retrieve.deadline_ms / 1000,
        events.warmed,
        NO_ORIGINS if sources is None else sources.latest.origins,
    )
    return engines, events


def _need_extras(settings: GatewaySettings, *, over_http: bool) -> None:
    missing = missing_extras(settings, over_http=over_http)
    if missing:
        raise SettingsError("settings", missing)


def build_app(state: GatewayState, reload: Reload | None = None, patience: float = 0.0) -> FastAPI:
    """The application of one gateway, with a route for everything it answers. `reload` follows its files.

    Start-up waits up to `patience` seconds until the gateway is ready. Raises SettingsError if a library that a setting
    needs is not installed.
    """
    _need_extras(state.settings, over_http=True)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        relax_garbage_collection()
        await state.backend.start()
        state.switches.start()
        state.pages.learning.start()
        state.engines.start()
        if state.authenticator is not None:
            state.authenticator.start()
        if reload is not None:
            reload.start()
        await _until_ready(state.readiness, patience)
        _log_started(state)
        try:
            yield
        finally:
            state.readiness.draining = True
            if reload is not None:
                await reload.stop()
            if state.authenticator is not None:
                await state.authenticator.close()
            await _close(state)
            logs.logger().info("stopped")

    app = GatewayApplication(
        title="rcp-gateway", version=state.version, lifespan=lifespan, openapi_url=None, redirect_slashes=False
    )
    dispatcher = Dispatcher(state)
    endpoint = RpcEndpoint(dispatcher, state)
    direct: dict[str, Asgi] = dict.fromkeys(USUAL_PATHS, endpoint)
    app.router.routes += rpc_routes(endpoint)
    if state.settings.mcp.enabled is not False:
        mcp = McpEndpoint(dispatcher, state)
        direct |= dict.fromkeys(MCP_PATHS, mcp)
        app.router.routes += mcp_routes(mcp)
    app.direct = direct
    routers = [probes(state), admin(state, os.environ, reload), console()]
    if not state.settings.metrics.port:
        routers.append(metrics_route(state))
    for router in routers:
        app.router.routes += router.routes  # `include_router` would hide them from `app.routes`
    if state.settings.server.docs:
        app.router.routes += docs_routes(openapi_document(app.routes)).routes
    app.router.default = not_found
    _add_middleware(app, state)
    return app


def _add_middleware(app: FastAPI, state: GatewayState) -> None:
    """Add the middleware that the settings ask for. Each is called before those added earlier."""
    server, port = state.settings.server, state.settings.metrics.port
    if server.cors_origins:
        app.add_middleware(CorsPolicy, origins=server.cors_origins)
    if server.allowed_hosts:
        app.add_middleware(AllowedHosts, allowed=server.allowed_hosts)
    if port:
        app.add_middleware(MetricsPort, metrics=state.metrics, port=port)


async def _until_ready(readiness: Readiness, patience: float) -> None:
    now = asyncio.get_running_loop().time
    until = now() + patience
    while readiness.reason() is not None and now() < until:  # noqa: ASYNC110 - bounded
        await asyncio.sleep(READY_POLL_SECONDS)


def _log_started(state: GatewayState) -> None:
    entries = [engine.entry for engine in state.engines.engines]
    ids = [entry.id for entry in entries]
    logs.logger().info("started", version=state.version, compiled=COMPILED, engines=ids)
    log_duplicate_addresses(entries)


def relax_garbage_collection() -> None:
    """Exclude objects made at start-up from garbage collection, and collect less often.

    A request makes about a thousand objects and hardly any reference cycle. By default a collection runs after every
    seven hundred, and takes longer the more objects the process holds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def start_log(settings: LogSettings) -> None:
    """Set up the log of this process."""
    most = settings.max_per_kind
    budget = LogAllowance(most, settings.per_kind_seconds, time.monotonic) if most else None
    logs.configure(settings.format, settings.level, envelope.dumps, budget=budget)


def _refuse(faults: Sequence[SettingsError]) -> None:
    """Raise SettingsError if there are faults: one error for all files."""
    if len(faults) == 1:
        raise faults[0]
    if faults:
        files = ", ".join(fault.file for fault in faults)
        raise SettingsError(files, tuple(one for fault in faults for one in fault.faults))


async def rehearse(loaded: LoadedRegistry, settings: GatewaySettings, tenants: Tenants | None) -> None:
    """Build everything that `serve` builds and close it again, so that `check` finds errors that only show there."""
    state = build_state(loaded, settings, tenants)
    build_app(state)
    await _close(state)


def serve(registry: Path, config: Path | None, host: str | None, port: int | None, workers: int | None) -> int:
    """Serve until SIGTERM, SIGINT or SIGQUIT and return the exit code. None for an option: use the setting.

    Raises SettingsError for a bad file and OSError for an address that cannot be bound.
    """
    files = Files(registry, config)
    loaded, settings, tenants = configuration = files.load()
    _refuse(start_faults(loaded, settings, registry=registry, config=config, host=host, workers=workers))
    host = settings.server.host if host is None else host
    server, count = settings.server, settings.server.workers if workers is None else workers
    listener = listen(host, server.port if port is None else port)
    metering = listen_for_metrics(host, settings.metrics.port)
    start_log(settings.log)
    bound_host, bound_port = listener.getsockname()[:2]
    logs.logger().info("settings", gateway=masked(settings), registry=masked(loaded.registry))
    log_config_warnings(configuration, sources_of(loaded, settings).latest.entries)
    if tenants is not None:
        logs.logger().info("tenants", keys={name: len(entry.keys) for name, entry in tenants.by_id.items()})
    logs.logger().info("listening", host=bound_host, port=bound_port, workers=count, tls=server.tls is not None)
    if count == 1:
        signals: dict[int, ShutdownStage | None] = dict.fromkeys((*AT_ONCE, signal.SIGHUP))
        _run(_serve(files, [listener, *metering], signals, lambda: None))
        return 0
    with tempfile.TemporaryDirectory(prefix="rcp-gateway-metrics-") as folder:
        worker = partial(work, files, metering, folder)
        ended = partial(forget_gauges, Path(folder))
        all_workers = Workers(count, worker, listener, ended, server.worker_timeout_seconds)
        return all_workers.run(server.drain_seconds, server.grace_seconds)


def work(
    files: Files, metering: list[socket.socket], folder: str, place: int, listener: socket.socket, news: Connection
) -> None:
    """Serve in one of several worker processes until told to stop.

    All workers share the listeners, those of `metering` too: the worker that is scraped reports for all.
    """
    end_on_signals()
    end_with_parent(worker_signal(ShutdownStage.FINISHING))
    signals: dict[int, ShutdownStage | None] = {int(number): stage for number, stage in WORKER_SIGNALS.items()}
    signals |= {signal.SIGHUP: None, signal.SIGINT: ShutdownStage.SERVING}
    start_log(LogSettings())
    try:
        start_log(files.load().settings.log)
        _run(_serve(files, [listener, *metering], signals, beating(news), WorkerSnapshots(Path(folder), place)))
    except SettingsError as fault:  # the files changed since the first start; other workers keep what they have read
        logs.logger().error("start_failed", worker=place, file=fault.file, faults=[str(one) for one in fault.faults])
        raise SystemExit(1) from None


async def _serve(
    files: Files,
    listeners: list[socket.socket],
    signals: dict[int, ShutdownStage | None],
    alive: Callable[[], None],
    workers: WorkerSnapshots | None = None,
) -> None:
    watch = files.watch()
    loaded, settings, tenants = files.load()
    sources = sources_of(loaded, settings)
    state = build_state(loaded, settings, tenants, workers, sources)
    certificate = None if settings.server.tls is None else ServerCertificate(settings.server.tls)
    if certificate is not None:
        state.metrics.server.watch_certificate(lambda: certificate.expires)
    reload = Reload(state, files.load, watch, None if certificate is None else certificate.renew, sources)
    config = uvicorn.Config(
        build_app(state, reload, 0.0 if workers is None else WORKER_PATIENCE),
        http=HttpProtocol,
        proxy_headers=False,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=settings.server.keep_alive_seconds,
        ssl_context_factory=None if certificate is None else lambda *_: certificate.context,
    )
    await GatewayServer(config, state, signals=signals, reload=reload.ask, alive=alive).serve(listeners)


def serve_stdio(registry: Path, config: Path | None, *, mcp: bool = False) -> int:
    """Serve one caller over stdin and stdout until it leaves or SIGTERM or SIGINT comes, and return the exit code.

    `mcp`: it speaks MCP instead of RCP.

    File descriptor 1 is redirected to stderr, so that nothing but messages can reach the caller. Raises SettingsError
    for a bad file.
    """
    files = Files(registry, config)
    read = files.load()
    loaded, settings, _ = read
    _refuse(start_faults(loaded, settings, registry=registry, config=config, over_http=False))
    responses = os.dup(1)
    os.dup2(2, 1)
    start_log(settings.log)
    logs.logger().info("settings", gateway=masked(settings), registry=masked(loaded.registry))
    log_config_warnings(read, sources_of(loaded, settings).latest.entries)
    _run(_serve_pipe(files, 0, responses, mcp=mcp))
    return 0


async def _serve_pipe(files: Files, requests: int, responses: int, *, mcp: bool) -> None:
    """Serve the caller at the other end of two file descriptors."""
    watch = files.watch()
    loaded, settings, _ = files.load()
    sources = sources_of(loaded, settings)
    state = build_state(loaded, settings, sources=sources)
    reload = Reload(state, files.load, watch, sources=sources)
    relax_garbage_collection()

    async def wait_for_engines() -> None:
        await state.engines.first_checks(state.settings.retrieve.deadline_ms / 1000)

    protocol_of = partial(McpLines if mcp else RcpLines, state)
    read, write = Pipe(requests).read, Pipe(responses).write
    endpoint = StdioEndpoint(protocol_of, settings.server.max_line_bytes, read, write, wait_for_engines)
    for number, act in ((signal.SIGINT, endpoint.stop), (signal.SIGTERM, endpoint.stop), (signal.SIGHUP, reload.ask)):
        asyncio.get_running_loop().add_signal_handler(number, act)
    await state.backend.start()
    state.pages.learning.start()
    state.engines.start()
    reload.start()
    _log_started(state)
    try:
        await endpoint.serve()
    finally:
        await reload.stop()
        await _close(state)
        logs.logger().info("stopped")


def _run(serving: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serving)
