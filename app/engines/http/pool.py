"""The connections to one engine: idle ones, the most recently used first, and new ones when there are none.

The engine's semaphore, not the pool, limits how many calls run at once.
"""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress

from app.engines.http.connection import Connection
from app.engines.http.dialer import Dialer
from app.engines.http.endpoint import Endpoint
from app.protocol.errors import ConnectFailed
from app.settings.schema import EnginesSettings

SWEEP_PAUSE = 0.01
"""Minimum seconds between two sweeps of the idle connections."""


class ConnectionPool:
    """A stack of idle connections and a dialer. Every change of state is one synchronous step.

    The epoch grows when the engine cannot be reached: connections of an older epoch may lead to its earlier address.
    """

    __slots__ = (
        "_clock",
        "_closed",
        "_dialer",
        "_dials",
        "_emptied",
        "_endpoint",
        "_epoch",
        "_idle",
        "_limit",
        "_live",
        "_max_age",
        "_max_idle",
        "_timer",
        "_tls",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        settings: EnginesSettings,
        tls: Callable[[], ssl.SSLContext | None],
        dialer: Dialer,
        clock: Callable[[], float],
    ) -> None:
        """`tls` gives the context at each dial (None: plain TCP) and may raise TlsFailed."""
        self._endpoint = endpoint
        self._limit = settings.max_response_bytes
        self._max_idle = settings.idle_seconds
        self._max_age = settings.max_connection_age_seconds
        self._tls = tls
        self._dialer = dialer
        self._clock = clock
        self._idle: list[Connection] = []
        self._live: set[Connection] = set()
        self._dials: set[asyncio.Task[Connection]] = set()
        self._emptied: asyncio.Event | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._epoch = 0
        self._closed = False

    def take(self) -> Connection | None:
        """The most recently used idle connection that is still usable, or None."""
        idle = self._idle
        if not idle:
            return None
        now = self._clock()
        while idle:
            # Last in, first out: connections beyond the usual load stay idle and are closed.
            connection = idle.pop()
            if now < connection.good_until and not connection.closed:
                return connection
            connection.abort()
        return None

    def give(self, connection: Connection) -> None:
        """Put a connection back whose answer has been read to the end."""
        if connection.closed:
            return
        now = self._clock()
        retires = connection.born + self._max_age
        # A connection of an earlier epoch may lead to the engine's earlier address.
        if now >= retires or connection.epoch != self._epoch or self._closed:
            connection.abort()
            return
        expires = now + self._max_idle
        connection.good_until = expires if expires < retires else retires
        self._idle.append(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._max_idle, self._sweep)

    def clear(self) -> None:
        """Close every idle connection."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.abort()

    def invalidate(self) -> None:
        """Stop using the open connections: the engine may have moved to another address."""
        self._epoch += 1
        self.clear()
        self._dialer.forget()

    async def dial(self) -> Connection:
        """A new connection, in a task that `close` can end too. Raises ConnectFailed, TlsFailed."""
        if self._closed:
            raise ConnectFailed("closed")
        # A task of its own, so that `close` can end dials without cancelling the calls that wait for them.
        task = asyncio.get_running_loop().create_task(self._dial(), name=f"dial {self._endpoint.label}")
        self._dials.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().abort()  # connected in the very moment of the cancellation
            current = asyncio.current_task()
            if self._closed and not (current and current.cancelling()):
                raise ConnectFailed("closed") from None
            raise
        finally:
            self._dials.discard(task)

    async def close(self) -> None:
        """Close every connection and end every dial; calls under way fail with ConnectFailed("closed")."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        dials = tuple(self._dials)
        for dial in dials:
            dial.cancel()
        await asyncio.gather(*dials, return_exceptions=True)
        self._emptied = self._emptied or asyncio.Event()
        for connection in tuple(self._live):
            connection.fail(ConnectFailed("closed"))
        self._idle.clear()
        if self._live:
            await self._emptied.wait()

    # ── the end of connections ──────────────────────────────────────────────────────────────────────────────

    def _sweep(self) -> None:
        """Close what has been idle for too long."""
        now = self._clock()
        kept: list[Connection] = []
        for connection in self._idle:
            if now < connection.good_until:
                kept.append(connection)
            else:
                connection.abort()
        self._idle = kept
        self._timer = None
        if kept:
            rest = min(connection.good_until for connection in kept) - now
            self._timer = asyncio.get_running_loop().call_later(max(rest, SWEEP_PAUSE), self._sweep)

    def _lost(self, connection: Connection) -> None:
        self._live.discard(connection)
        with suppress(ValueError):
            self._idle.remove(connection)
        if self._emptied is not None and not self._live:
            self._emptied.set()

    # ── new connections ───────────────────────────────────────────────────────────────────────────────────

    async def _dial(self) -> Connection:
        """A new connection to one of the engine's addresses. Raises LegError."""
        addresses = await self._dialer.addresses()  # a name server that fails says nothing about open connections
        try:
            connection = await self._dialer.connect(addresses, self.new_connection, self._tls())
        except ConnectFailed:
            self.invalidate()
            raise
        self.adopt(connection)
        return connection

    def new_connection(self) -> Connection:
        """One that is not connected yet."""
        return Connection(self._limit, self._lost, born=self._clock(), epoch=self._epoch)

    def adopt(self, connection: Connection) -> None:
        """Add a connection of `new_connection` that is connected now."""
        if not connection.closed:  # else the peer has hung up, and `_lost` may have been called
            self._live.add(connection)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._idle)} idle of {len(self._live)}"
        return f"<ConnectionPool {self._endpoint.label} {state}, {len(self._dials)} dialling, epoch {self._epoch}>"
