"""The composition root: builds everything, starts it, stops it in reverse. Knows all rooms, is known by none.

It decides in which order a gateway starts and stops, and how uvicorn is set up. It refuses to know what a request is.
`serve` and `serve_stdio` are what the command line calls; `work` is what each of several workers runs.
"""

import asyncio
import gc
import os
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from importlib.metadata import version as installed_version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
import uvloop
from fastapi import FastAPI

from app.api.admin import admin
from app.api.admission import Admission
from app.api.allowed_hosts import AllowedHosts
from app.api.auth.authentication import Authenticator
from app.api.console import console
from app.api.cors import CorsPolicy
from app.api.dispatch import Dispatcher
from app.api.gateway_state import GatewayState, Readiness, identity_of
from app.api.methods import ANSWERED
from app.api.metrics import MetricsPort
from app.api.optional_features import installed, missing_extras, token_verifier, tracing
from app.api.pipe import Pipe
from app.api.probes import probes
from app.api.reload import Reload, log_config_warnings, tell_of_twins
from app.api.responses import Asgi, not_found
from app.api.rpc import RpcEndpoint
from app.api.stdio import StdioEndpoint
from app.engines.call_instrumentation import EngineInstrumentation
from app.engines.discovery import Move
from app.engines.engine import RemoteEngine
from app.engines.registry import EngineSet, Warmed
from app.federation.idempotency import Idempotency
from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.learning import Learning
from app.federation.membership import Membership
from app.federation.pagination import Pages
from app.federation.sessions import RecentHits
from app.fusion import rrf
from app.mcp.lazy_mount import LazyMount
from app.protocol import envelope
from app.protocol.errors import CALL_KINDS, RCP_CODES, LegError
from app.resilience.byte_budget import ByteBudget
from app.server.early_signals import end_on_signals
from app.server.http_protocol import HttpProtocol
from app.server.lifecycle import GatewayServer
from app.server.listeners import listen, listen_for_metrics
from app.server.preflight import start_faults
from app.server.shutdown_stage import AT_ONCE, TOLD, ShutdownStage, told
from app.server.tls import door_context
from app.server.workers import Workers, beating, end_with_parent
from app.settings.effective_settings import masked
from app.settings.field_errors import SettingsError
from app.settings.schema import GatewaySettings, LogSettings, ServerSettings
from app.settings.sources import Files, LoadedRegistry
from app.settings.tenants_file import Tenants
from app.state.secret import DeploymentSecret
from app.state.store import IN_MEMORY, MemoryStore, StateBackend
from app.state.sums import file_sums
from app.telemetry import logs, worker_metrics
from app.telemetry.log_rate_limit import LogAllowance
from app.telemetry.metrics import Metrics
from app.telemetry.state_metrics import StateMetrics

if TYPE_CHECKING:
    pass

READY_POLL_SECONDS = 0.01

WORKER_PATIENCE = 0.5
"""A worker that takes over from one that died shares its port: it is given so many seconds to reach an engine before it
accepts. A gateway of one process answers its probes at once; the balancer waits for `/readyz`."""

VERSION = installed_version("rcp-gateway")

COMPILED = Path(rrf.__file__).suffix != ".py"
"""Whether this process runs the extension modules of a wheel that `make wheel` built, or the sources."""


def build_state(loaded: LoadedRegistry, settings: GatewaySettings, tenants: Tenants | None = None) -> GatewayState:
    """One gateway, put together and not started. Raises SettingsError if something that is wished is not installed."""
    _need_extras(settings, over_http=tenants is not None)
    metrics = Metrics(VERSION, compiled=COMPILED)
    engines = _engines(loaded, settings, metrics)
    metrics.declare_methods(ANSWERED)
    metrics.declare_codes(RCP_CODES)
    metrics.declare_engines((engine.id for engine in engines.engines), CALL_KINDS)
    for engine in engines.engines:
        metrics.declare_replicas(engine.id, [replica.label for replica in engine.state().replicas])
    metrics.watch_engines(engines.states)
    membership = Membership(
        engines,
        identity_of(settings, loaded.fingerprint),
        settings.retrieve.max_k,
        settings.state.session_ttl_seconds,
        writing=settings.index.enabled,
        rerank_union=settings.retrieve.rerank_union,
        learning=settings.fusion.learning == "on",
    )
    backend = _backend(settings, lambda: membership.identity, metrics.state)
    learning = Learning(metrics.calibration, backend.sums() or file_sums(settings.state.path))
    return GatewayState(
        version=VERSION,
        settings=settings,
        engines=engines,
        membership=membership,
        instrumentation=RetrieveInstrumentation(metrics, tracing=tracing(settings, VERSION, metrics.spans_lost.inc)),
        metrics=metrics,
        readiness=Readiness(engines, backend),
        admission=Admission(settings.server, metrics.door),
        answer_bytes=ByteBudget(
            settings.engines.max_held_bytes,
            watch=metrics.held_bytes.set,
            pausing=metrics.paused_answers.inc,
        ),
        guard=None
        if tenants is None
        else Authenticator(settings, tenants, metrics.callers, token_verifier(settings), backend),
        pages=Pages.from_settings(settings.state, screen=settings.screen, backend=backend, learning=learning),
        idempotency=Idempotency.from_settings(settings.state, backend),
        recent=RecentHits.from_settings(settings.mcp, backend),
        secret=DeploymentSecret(
            backend.store("secret", MemoryStore(1, 1), permanent=True) if settings.state.shared else None,
            os.environ.get(worker_metrics.FOLDER),
        ),
        backend=backend,
    )


def _engines(loaded: LoadedRegistry, settings: GatewaySettings, metrics: Metrics) -> EngineSet:
    """The engines of the registry, whose fates are logged and counted."""
    log = logs.logger()

    def engine_changed(engine: RemoteEngine, fault: LegError | None) -> None:
        if fault is None:
            log.info("engine_up", engine=engine.id)
        else:
            log.warning("engine_down", engine=engine.id, reason=fault.kind, detail=fault.message)

    def child_line(engine_id: str, line: str) -> None:
        log.info("engine_stderr", engine=engine_id, line=line)

    def engine_moved(move: Move) -> None:
        if move.kind == "joined":
            metrics.declare_engines([move.engine], CALL_KINDS)
            log.info("engine_joined", engine=move.engine, gateway=move.gateway)
        elif move.kind == "left":
            metrics.forget_engines([move.engine])
            log.info("engine_left", engine=move.engine, gateway=move.gateway)
        else:
            log.warning("engine_not_joined", engine=move.engine, gateway=move.gateway, reason=move.reason)

    def engine_warmed(warmed: Warmed) -> None:
        seconds = round(warmed.seconds, 1)
        if warmed.fault is None:
            log.info("engine_warmed", engine=warmed.engine, seconds=seconds)
        else:
            log.warning("engine_not_warm", engine=warmed.engine, seconds=seconds, detail=warmed.fault)

    return EngineSet(
        loaded.registry.engines,
        settings.engines,
        engine_changed,
        child_line,
        engine_moved,
        lambda engine_id: EngineInstrumentation(engine_id, metrics),
        settings.retrieve.deadline_ms / 1000,
        engine_warmed,
    )


def _backend(settings: GatewaySettings, identity: Callable[[], str], metrics: StateMetrics) -> StateBackend:
    """With whom the state is worker_metrics. Only those who share it pay for loading what that takes."""
    if not settings.state.shared:
        return IN_MEMORY
    from app.state.redis_store import RedisState

    server = settings.server
    return RedisState(settings.state, server.id or server.name, identity, metrics)


async def _close(state: GatewayState) -> None:
    """Let go of the engines and of the state, and send the last spans."""
    await state.pages.learning.close()
    await state.engines.close()
    await state.backend.close()
    if state.instrumentation.tracing is not None:
        await asyncio.to_thread(state.instrumentation.tracing.close)


def _need_extras(settings: GatewaySettings, *, over_http: bool) -> None:
    missing = missing_extras(settings, over_http=over_http)
    if missing:
        raise SettingsError("settings", missing)


def build_app(state: GatewayState, reload: Reload | None = None, patience: float = 0.0) -> Asgi:
    """The ASGI application of one gateway: the RPC door in front of FastAPI. `reload` keeps it to its files.

    It starts up to `patience` seconds later if it is not ready before. Raises SettingsError if a library that a setting
    needs is not installed.
    """
    _need_extras(state.settings, over_http=True)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        calm_the_collector()
        await state.backend.start()
        state.pages.learning.start()
        state.engines.start()
        if state.guard is not None:
            state.guard.start()
        if reload is not None:
            reload.start()
        await _until_ready(state.readiness, patience)
        _tell_started(state)
        try:
            async with nullcontext() if mcp is None else mcp.running():
                yield
        finally:
            state.readiness.draining = True
            if reload is not None:
                await reload.stop()
            if state.guard is not None:
                await state.guard.close()
            await _close(state)
            logs.logger().info("stopped")

    app = FastAPI(
        title="rcp-gateway", version=state.version, lifespan=lifespan, openapi_url=None, redirect_slashes=False
    )
    app.include_router(probes(state))
    app.include_router(admin(state, os.environ, reload))
    app.include_router(console())
    app.router.default = not_found
    dispatcher = Dispatcher(state)
    mcp = _mcp_lazy_mount(app, dispatcher, state)
    door = _closed(RpcEndpoint(app if mcp is None else mcp, dispatcher, state), state.settings.server)
    port = state.settings.metrics.port
    return MetricsPort(door, state.metrics, port) if port else door


def _mcp_lazy_mount(app: Asgi, dispatcher: Dispatcher, state: GatewayState) -> LazyMount | None:
    """What stands before the door for MCP clients, unless there is none."""
    if state.settings.mcp.enabled is False or not installed("mcp"):
        return None
    return LazyMount(app, dispatcher, state)


def _closed(door: Asgi, wishes: ServerSettings) -> Asgi:
    """`door` for the names and the web pages that are listed; itself where nothing is."""
    if wishes.cors_origins:
        door = CorsPolicy(door, wishes.cors_origins)
    return AllowedHosts(door, wishes.allowed_hosts) if wishes.allowed_hosts else door


async def _until_ready(readiness: Readiness, patience: float) -> None:
    until = asyncio.get_running_loop().time() + patience
    while readiness.reason() is not None and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110 - bounded
        await asyncio.sleep(READY_POLL_SECONDS)


def _tell_started(state: GatewayState) -> None:
    entries = [engine.entry for engine in state.engines.engines]
    ids = [entry.id for entry in entries]
    logs.logger().info("started", version=state.version, compiled=COMPILED, engines=ids)
    tell_of_twins(entries)


def calm_the_collector() -> None:
    """Tell Python's cycle collector that what start-up made will stay, and to look at the rest less often.

    A request makes some thousand objects and hardly a cycle among them; by default the collector looks at them every
    seven hundred, and each look takes the longer the more the process holds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def start_log(wishes: LogSettings) -> None:
    """Set up the log of this process."""
    most = wishes.max_per_kind
    budget = LogAllowance(most, wishes.per_kind_seconds, time.monotonic) if most else None
    logs.configure(wishes.format, wishes.level, envelope.dumps, budget=budget)


def _refuse(faults: Sequence[SettingsError]) -> None:
    """Raises the first of `faults`, or one for all if several files have some."""
    if len(faults) == 1:
        raise faults[0]
    if faults:
        files = ", ".join(fault.file for fault in faults)
        raise SettingsError(files, tuple(one for fault in faults for one in fault.faults))


async def rehearse(loaded: LoadedRegistry, settings: GatewaySettings, tenants: Tenants | None) -> None:
    """Build all that `serve` builds and close it again: what is at fault only there raises here as well."""
    state = build_state(loaded, settings, tenants)
    build_app(state)
    await _close(state)


def serve(registry: Path, config: Path | None, host: str | None, port: int | None, workers: int | None) -> int:
    """Serve until SIGTERM, SIGINT or SIGQUIT; the exit code. None means: as the settings say.

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
    log_config_warnings(configuration)
    if tenants is not None:
        logs.logger().info("tenants", keys={name: len(entry.keys) for name, entry in tenants.by_id.items()})
    logs.logger().info("listening", host=bound_host, port=bound_port, workers=count, tls=server.tls is not None)
    if count == 1:
        signals: dict[int, ShutdownStage | None] = dict.fromkeys((*AT_ONCE, signal.SIGHUP))
        _run(_serve(files, [listener, *metering], signals, lambda: None))
        return 0
    with tempfile.TemporaryDirectory(prefix="rcp-gateway-metrics-") as folder:
        os.environ[worker_metrics.FOLDER] = folder
        worker = partial(work, files, metering)
        all_workers = Workers(count, worker, listener, worker_metrics.forget_worker, server.worker_timeout_seconds)
        return all_workers.run(server.drain_seconds, server.grace_seconds)


def work(files: Files, metering: list[socket.socket], place: int, listener: socket.socket, news: Connection) -> None:
    """One worker of several, in its own process: serves until it is told to stop.

    All share the listeners, those of `metering` too: whoever is scraped answers for all.
    """
    end_on_signals()
    end_with_parent(told(ShutdownStage.FINISHING))
    worker_metrics.share(place)
    signals: dict[int, ShutdownStage | None] = {int(number): stage for number, stage in TOLD.items()}
    signals |= {signal.SIGHUP: None, signal.SIGINT: ShutdownStage.SERVING}
    start_log(LogSettings())
    try:
        start_log(files.load().settings.log)
        _run(_serve(files, [listener, *metering], signals, beating(news)))
    except SettingsError as fault:  # the files have changed since the first start; who serves keeps what it has read
        logs.logger().error("start_failed", worker=place, file=fault.file, faults=[str(one) for one in fault.faults])
        raise SystemExit(1) from None


async def _serve(
    files: Files, listeners: list[socket.socket], signals: dict[int, ShutdownStage | None], alive: Callable[[], None]
) -> None:
    watch = files.watch()
    loaded, settings, tenants = files.load()
    state = build_state(loaded, settings, tenants)
    reload = Reload(state, files.load, watch)
    config = uvicorn.Config(
        build_app(state, reload, WORKER_PATIENCE if worker_metrics.is_shared() else 0.0),
        http=HttpProtocol,
        proxy_headers=False,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=settings.server.keep_alive_seconds,
        ssl_context_factory=None if settings.server.tls is None else partial(door_context, settings.server.tls),
    )
    await GatewayServer(config, state, signals=signals, reload=reload.ask, alive=alive).serve(listeners)


def serve_stdio(registry: Path, config: Path | None) -> int:
    """Serve one caller over stdin and stdout until it leaves, or SIGTERM or SIGINT comes; the exit code.

    From here on nothing but protocol can reach the caller: what is printed by mistake goes to stderr. Raises
    SettingsError for a bad file.
    """
    files = Files(registry, config)
    wishes = files.load()
    _refuse(start_faults(wishes.loaded, wishes.settings, registry=registry, config=config, over_http=False))
    answers = os.dup(1)
    os.dup2(2, 1)
    start_log(wishes.settings.log)
    logs.logger().info("settings", gateway=masked(wishes.settings), registry=masked(wishes.loaded.registry))
    log_config_warnings(wishes)
    _run(_serve_pipe(files, 0, answers))
    return 0


async def _serve_pipe(files: Files, questions: int, answers: int) -> None:
    """Serve the caller at the other end of two file descriptors."""
    watch = files.watch()
    loaded, settings, _ = files.load()
    state = build_state(loaded, settings)
    reload = Reload(state, files.load, watch)
    calm_the_collector()

    async def settled() -> None:
        await state.engines.settled(state.settings.retrieve.deadline_ms / 1000)

    door = StdioEndpoint(state, Pipe(questions).read, Pipe(answers).write, settled)
    for number, act in ((signal.SIGINT, door.stop), (signal.SIGTERM, door.stop), (signal.SIGHUP, reload.ask)):
        asyncio.get_running_loop().add_signal_handler(number, act)
    await state.backend.start()
    state.pages.learning.start()
    state.engines.start()
    reload.start()
    _tell_started(state)
    try:
        await door.serve()
    finally:
        await reload.stop()
        await _close(state)
        logs.logger().info("stopped")


def _run(serving: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serving)
