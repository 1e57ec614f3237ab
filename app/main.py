"""The composition root: builds everything, starts it, stops it in reverse. Knows all rooms, is known by none.

It decides in which order a gateway starts and stops, and how uvicorn is set up. It refuses to know what a request is.
`serve` and `serve_stdio` are what the command line calls; `create_app` is what each worker calls.
"""

import asyncio
import gc
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version as installed_version
from pathlib import Path

import uvicorn
import uvloop
from fastapi import FastAPI
from uvicorn.supervisors import Multiprocess

from app.api.admin import admin
from app.api.answers import ANSWERED
from app.api.dispatch import Dispatcher
from app.api.guard import Bearers, Guard
from app.api.pipe import Pipe
from app.api.probes import probes
from app.api.rpc import Asgi, RpcDoor, not_found
from app.api.state import GatewayState, Readiness
from app.api.stdio import StdioDoor
from app.api.wire import DoorProtocol
from app.engines.discovery import Move
from app.engines.engine import RemoteEngine
from app.engines.registry import EngineSet
from app.engines.witness import EngineWitness
from app.federation.membership import Membership
from app.federation.pages import Pages
from app.federation.witness import Witness
from app.protocol import envelope
from app.protocol.errors import LEG_KINDS, RCP_CODES, LegError
from app.settings.auth import exposure
from app.settings.faults import Fault, SettingsError
from app.settings.masking import masked
from app.settings.schema import GatewaySettings, LogSettings
from app.settings.source import LoadedRegistry, load_registry, load_settings, load_tenants
from app.settings.tenants import Tenants
from app.telemetry import logs
from app.telemetry.metrics import Metrics

REGISTRY_VARIABLE = "RCP_GATEWAY_REGISTRY_FILE"
CONFIG_VARIABLE = "RCP_GATEWAY_CONFIG_FILE"
VERSION = installed_version("rcp-gateway")

SHUTDOWN_SECONDS = 20
"""Left to requests under way once told to stop: twice the usual deadline of one, and well within the 30 seconds after
which orchestrators usually kill; what is left of those is for closing engines and child processes."""


def build_state(loaded: LoadedRegistry, settings: GatewaySettings, tenants: Tenants | None = None) -> GatewayState:
    """One gateway, put together and not started. Raises SettingsError if something that is wished is not installed."""
    log = logs.logger()

    def engine_changed(engine: RemoteEngine, fault: LegError | None) -> None:
        if fault is None:
            log.info("engine_up", engine=engine.id)
        else:
            log.warning("engine_down", engine=engine.id, reason=fault.kind, detail=fault.message)

    def child_line(engine_id: str, line: str) -> None:
        log.info("engine_stderr", engine=engine_id, line=line)

    metrics = Metrics(VERSION)

    def engine_moved(move: Move) -> None:
        if move.kind == "joined":
            metrics.declare_engines([move.engine], LEG_KINDS)
            log.info("engine_joined", engine=move.engine, gateway=move.gateway)
        elif move.kind == "left":
            metrics.forget_engine(move.engine)
            log.info("engine_left", engine=move.engine, gateway=move.gateway)
        else:
            log.warning("engine_not_joined", engine=move.engine, gateway=move.gateway, reason=move.reason)

    engines = EngineSet(
        loaded.registry.engines,
        settings.engines,
        engine_changed,
        child_line,
        engine_moved,
        lambda engine_id: EngineWitness(engine_id, metrics),
    )
    metrics.declare_methods(ANSWERED)
    metrics.declare_codes(RCP_CODES)
    metrics.declare_engines((engine.id for engine in engines.engines), LEG_KINDS)
    for engine in engines.engines:
        metrics.declare_replicas(engine.id, [replica.label for replica in engine.state().replicas])
    metrics.watch_engines(lambda: [engine.state() for engine in engines.engines])
    identity = settings.server.id or f"{settings.server.name}-{loaded.fingerprint}"
    return GatewayState(
        version=VERSION,
        settings=settings,
        engines=engines,
        membership=Membership(
            engines,
            identity,
            settings.retrieve.max_k,
            settings.state.session_ttl_seconds,
            writing=settings.index.enabled,
            rerank_union=settings.retrieve.rerank_union,
        ),
        witness=Witness(metrics),
        metrics=metrics,
        readiness=Readiness(engines),
        guard=None if tenants is None else Guard(settings, tenants, metrics.callers, _bearers(settings)),
        pages=Pages.in_memory(settings.state, screen=settings.screen),
    )


def _bearers(settings: GatewaySettings) -> Bearers | None:
    """Who reads tokens, if any are accepted. Only those who wish for them pay for loading it."""
    if "jwt" not in settings.auth.mode:
        return None
    try:
        from app.api.jwks import SigningKeys
        from app.api.tokens import Tokens
    except ModuleNotFoundError:
        fault = Fault("auth.mode", "jwt needs a library that is not installed", "in the checkout, pip install '.[jwt]'")
        raise SettingsError("settings", (fault,)) from None
    return Tokens(settings.jwt, SigningKeys(settings.jwt))


def build_app(state: GatewayState) -> Asgi:
    """The ASGI application of one gateway: the RPC door in front of FastAPI."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        calm_the_collector()
        state.engines.start()
        if state.guard is not None:
            state.guard.start()
        logs.logger().info("started", version=state.version, engines=[engine.id for engine in state.engines.engines])
        try:
            yield
        finally:
            state.readiness.draining = True
            if state.guard is not None:
                await state.guard.close()
            await state.engines.close()
            logs.logger().info("stopped")

    app = FastAPI(title="rcp-gateway", version=state.version, lifespan=lifespan, openapi_url=None)
    app.include_router(probes(state))
    app.include_router(admin(state))
    app.router.default = not_found
    return RpcDoor(app, Dispatcher(state), state.settings.server, state.guard)


def create_app() -> Asgi:
    """The application of one worker, from the files named in the environment. Raises SettingsError."""
    config = os.environ.get(CONFIG_VARIABLE)
    settings = load_settings(Path(config) if config else None, os.environ)
    loaded = load_registry(Path(os.environ[REGISTRY_VARIABLE]), os.environ)
    start_log(settings.log)
    return build_app(build_state(loaded, settings, load_tenants(settings)))


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
    logs.configure(wishes.format, wishes.level, envelope.dumps)


def serve(registry: Path, config: Path | None, host: str | None, port: int | None, workers: int | None) -> int:
    """Serve until SIGTERM or SIGINT; the exit code. None means: as the settings say.

    Raises SettingsError for a bad file and OSError for an address that cannot be bound.
    """
    settings = load_settings(config, os.environ)
    loaded = load_registry(registry, os.environ)
    tenants = load_tenants(settings)
    host = settings.server.host if host is None else host
    exposed = exposure(host, settings.auth)
    if exposed is not None:
        raise SettingsError("settings" if config is None else str(config), (exposed,))
    os.environ[REGISTRY_VARIABLE] = str(registry)
    os.environ[CONFIG_VARIABLE] = str(config or "")
    server = settings.server
    count = server.workers if workers is None else workers
    if count > 1 and server.handshake == "required":
        raise SettingsError("--workers", (Fault("server.handshake", "'required' needs one worker", "leave it out"),))
    listener = _listen(host, server.port if port is None else port)
    options = uvicorn.Config(
        "app.main:create_app",
        factory=True,
        workers=count,
        loop="uvloop",
        http=DoorProtocol,
        proxy_headers=False,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=server.keep_alive_seconds,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    start_log(settings.log)
    bound_host, bound_port = listener.getsockname()[:2]
    logs.logger().info("settings", gateway=masked(settings), registry=masked(loaded.registry))
    if tenants is not None:
        logs.logger().info("tenants", keys={name: len(entry.keys) for name, entry in tenants.by_id.items()})
    logs.logger().info("listening", host=bound_host, port=bound_port, workers=count)
    _end_quietly_on_signals()
    if count == 1:
        uvicorn.Server(options).run(sockets=[listener])
        return 0
    with tempfile.TemporaryDirectory(prefix="rcp-gateway-metrics-") as shared_metrics:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = shared_metrics
        _Workers(options, sockets=[listener]).run()
    return 0


def serve_stdio(registry: Path, config: Path | None) -> int:
    """Serve one caller over stdin and stdout until it leaves, or SIGTERM or SIGINT comes; the exit code.

    From here on nothing but protocol can reach the caller: what is printed by mistake goes to stderr. Raises
    SettingsError for a bad file.
    """
    settings = load_settings(config, os.environ)
    loaded = load_registry(registry, os.environ)
    answers = os.dup(1)
    os.dup2(2, 1)
    start_log(settings.log)
    logs.logger().info("settings", gateway=masked(settings), registry=masked(loaded.registry))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_pipe(build_state(loaded, settings), 0, answers))
    return 0


async def _serve_pipe(state: GatewayState, questions: int, answers: int) -> None:
    """Serve the caller at the other end of two file descriptors."""
    calm_the_collector()

    async def settled() -> None:
        await state.engines.settled(state.settings.retrieve.deadline_ms / 1000)

    door = StdioDoor(state, Pipe(questions).read, Pipe(answers).write, settled)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, door.stop)
    state.engines.start()
    logs.logger().info("started", version=state.version, engines=[engine.id for engine in state.engines.engines])
    try:
        await door.serve()
    finally:
        await state.engines.close()
        logs.logger().info("stopped")


class _Workers(Multiprocess):
    """uvicorn's supervisor, which lets go of the listener before its workers drain.

    Else the system goes on accepting for nobody, and resets those connections when the last worker has ended.
    """

    def terminate_all(self) -> None:
        for listener in self.sockets:
            listener.close()
        super().terminate_all()


def _end_quietly_on_signals() -> None:
    """uvicorn raises the signal that stopped it once more when it has stopped; that must not spoil exit code 0."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=2048)
    listener.set_inheritable(True)
    return listener
