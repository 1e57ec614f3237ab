"""uvicorn's server with the gateway's signals, a shutdown in stages, and a periodic look at all connections."""

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import uvicorn

from app.api.auth.client_address import ClientAddress
from app.api.gateway_state import GatewayState
from app.api.probes import quick_probes
from app.api.responses import only_probes
from app.api.rpc import OverloadRefusal
from app.server.connection_limits import ConnectionLimits
from app.server.http_protocol import HttpProtocol
from app.server.shutdown_stage import ShutdownStage, advanced
from app.telemetry.logs import logger

LOOK_TICKS = 10
"""Every how many ticks (of 0.1 s) all connections are looked at."""

PARTING_SECONDS = 1.0
"""For so long every answer says `Connection: close` before nothing is accepted any more, so that a balancer lets go of
its connections by itself instead of finding them closed under a request."""

CUT_SECONDS = 2.0
"""Left to requests that are cut off to say so to their callers."""

POLL_SECONDS = 0.05

MAX_ACCEPTED = 256
"""Connections that are accepted in one tick besides those that the loop accepts by itself."""


class GatewayServer(uvicorn.Server):
    """Serves one gateway until it is told to stop.

    `signals` says which stage each signal leads to; None for a stage that depends on the present one (`hastened`).
    Without any the process's signals are left alone.
    """

    server_state: ConnectionLimits  # type: ignore[assignment]

    def __init__(
        self,
        config: uvicorn.Config,
        state: GatewayState,
        *,
        signals: Mapping[int, ShutdownStage | None] | None = None,
        reload: Callable[[], None] = lambda: None,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        """`alive` is called when it serves, and about once a second from then on, for as long as the loop turns."""
        super().__init__(config)
        self.stage = ShutdownStage.SERVING
        self.server_state = ConnectionLimits(
            lambda: state.settings.server,
            state.metrics.server.connection_cut,
            only_probes,
            quick_probes(state),
            OverloadRefusal(state),
            ClientAddress(state.settings.server.trusted_proxies).counted_address,
        )
        self._state = state
        self._signals = signals or {}
        self._reload = reload
        self._alive = alive
        self._listeners: list[socket.socket] = []
        self._timer: asyncio.TimerHandle | None = None

    # -- told to stop

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Hear the signals in the loop, not between two steps of whatever runs; afterwards they mean nothing."""
        loop = asyncio.get_running_loop()
        for number in self._signals:
            loop.add_signal_handler(number, self.hear, number)
        try:
            yield
        finally:
            for number in self._signals:
                loop.remove_signal_handler(number)
                signal.signal(number, lambda *_: None)

    def hear(self, number: int) -> None:
        """A signal has come."""
        if number == signal.SIGHUP:
            self._reload()
        elif number in self._signals:
            stage = self._signals[number]
            self.advance(advanced(self.stage, number) if stage is None else stage)

    def advance(self, stage: ShutdownStage) -> None:
        """Go on to `stage`, unless that is reached already."""
        if stage <= self.stage:
            return
        self.stage = stage
        self._state.readiness.draining = True
        self._state.metrics.server.draining.set(1)
        if self._timer is not None:
            self._timer.cancel()
        if stage is ShutdownStage.DRAINING:
            seconds = self._state.settings.server.drain_seconds
            logger().info("draining", seconds=seconds, requests=len(self.server_state.tasks))
            self._timer = asyncio.get_running_loop().call_later(seconds, self._part)
        else:
            self._say_goodbye()
            self.should_exit = True

    def _part(self) -> None:
        self._say_goodbye()
        seconds = min(PARTING_SECONDS, self._state.settings.server.drain_seconds)
        self._timer = asyncio.get_running_loop().call_later(seconds, self.advance, ShutdownStage.FINISHING)

    def _say_goodbye(self) -> None:
        """Let every answer from now on be the last of its connection."""
        self.server_state.closing = True
        self.server_state.backing_off.end()
        for connection in self._connections():
            if connection.busy:
                connection.shutdown()

    # -- while it serves

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then accept."""
        await super().startup(sockets)
        self._listeners = sockets or []
        self._alive()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        # The loop accepts one connection in each of its turns. When turns are long, callers would wait for seconds
        # before their first byte is read, which no deadline counts.
        for listener in self._listeners:
            self._accept_pending(listener, MAX_ACCEPTED)
        if counter % LOOK_TICKS == 0:
            self.look_around()
        return await super().on_tick(counter)

    def look_around(self) -> None:
        """Cut connections that keep us waiting for too long, and update the metrics, also for the other workers."""
        self._alive()
        now = asyncio.get_running_loop().time()
        self.server_state.close_late_spares(now)
        for connection in self._connections():
            connection.look(now)
        self._state.metrics.server.connections.set(len(self.server_state.connections))
        self._state.metrics.publish()

    # -- the end

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing more, let what is under way end, cut off the rest, then stop the application."""
        self.advance(ShutdownStage.FINISHING)
        for listener in sockets or []:
            self._accept_pending(listener)
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        tasks = self.server_state.tasks
        logger().info("finishing", requests=len(tasks), connections=len(self.server_state.connections))
        if await self._all_end():
            logger().info("drained")
        else:
            logger().warning("cut_off", requests=len(tasks), connections=len(self.server_state.connections))
            await self._cut_off()
        await self.lifespan.shutdown()

    def _accept_pending(self, listener: socket.socket, most: int = sys.maxsize) -> None:
        """Accept connections that the system has completed and the loop has not noticed; closing would reset them."""
        loop = asyncio.get_running_loop()
        with suppress(OSError):  # BlockingIOError: that was the last
            for _ in range(most):
                accepted, _ = listener.accept()
                accepted.setblocking(False)
                adopting = loop.create_task(self._adopt(accepted))
                self.server_state.tasks.add(adopting)
                adopting.add_done_callback(self.server_state.tasks.discard)

    async def _adopt(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            await loop.connect_accepted_socket(
                lambda: HttpProtocol(self.config, self.server_state, self.lifespan.state, loop),
                accepted,
                ssl=self.config.ssl,
            )

    async def _all_end(self) -> bool:
        """Whether requests and connections have all ended, after at most the grace."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._state.settings.server.grace_seconds
        while self.server_state.connections or self.server_state.tasks:
            self._alive()
            for connection in self._connections():
                connection.shutdown()
                connection.look(loop.time())
            if self.stage is ShutdownStage.CUTTING or loop.time() >= until:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    async def _cut_off(self) -> None:
        """End every request, after a word to its caller, and then every connection."""
        tasks = set(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CUT_SECONDS)
        for connection in self._connections():
            connection.transport.close()
        await asyncio.sleep(POLL_SECONDS)
        for connection in self._connections():
            connection.transport.abort()

    def _connections(self) -> list[HttpProtocol]:
        return list(self.server_state.connections)

    def __repr__(self) -> str:
        return f"<Doorkeeper {self.stage.name.lower()}, {self.server_state!r}>"
