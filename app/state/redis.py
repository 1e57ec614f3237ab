"""The connection to Redis: bounds how long a command may take, detects outages, and names their cause.

After one command has timed out, every other fails at once until a probe succeeds, so an outage costs each request at
most one timeout. Error texts never contain the user or the password of the URL."""

import asyncio
import random
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from time import monotonic
from typing import Any, Literal, TypeVar

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, AuthorizationError, RedisError
from redis.exceptions import ConnectionError as LinkCut
from redis.exceptions import TimeoutError as LinkSlow
from redis.exceptions import TimeoutError as RedisTimeoutError

from app.protocol.errors import StateUnreachable
from app.settings.field_errors import FieldError, SettingsError
from app.telemetry.logs import logger
from app.telemetry.metric_groups import StateMetrics

Reason = Literal["timeout", "connection", "refused"]
Answer = TypeVar("Answer")

CONNECT_SECONDS = 1.0
"""Timeout of a probe for connecting; commands after that have the usual timeout."""

MAX_TIMEOUTS = 5
"""How many timeouts a command may take while Redis answers others: Redis is up, and this process is busy."""

LATE_TURNS = 2
"""Iterations of the event loop after the timeout, so that an answer that arrived while the loop was blocked is still
read."""

SHORTEST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
STEADY_SECONDS = 10.0
"""If the connection is lost sooner than this after a recovery, the next probe waits longer, to prevent flapping."""

SWAP = """
if redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""
"""Set a value if it still begins as expected; an empty expectation means that there must be no value."""


class RedisConnection:
    """The connection pool of one process. Redis may be silent for `timeout` seconds."""

    def __init__(
        self,
        url: str,
        connections: int,
        timeout: float,
        probe_key: str,
        metrics: StateMetrics,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`probe_key`: written by probes, since a Redis that cannot be written to is useless. `clock` in seconds.

        Raises SettingsError for a URL with invalid parameters.
        """
        # A connection that was closed while idle is opened again once. RESP2 needs no HELLO.
        again = Retry(NoBackoff(), 1, (LinkCut,))
        try:
            self.pool = BlockingConnectionPool.from_url(
                url, max_connections=connections, timeout=None, protocol=2, driver_info=None, retry=again
            )
            # Opens nothing; unknown parameters are detected only here.
            self.pool.make_connection()  # type: ignore[no-untyped-call]
        except (TypeError, ValueError) as fault:
            remedy = "remove it, or see the documentation of from_url in redis-py"
            raise SettingsError("settings", (FieldError("state.url", url_fault(fault), remedy),)) from None
        self._redis: Redis = Redis(connection_pool=self.pool)
        self._swap = self._redis.register_script(SWAP)
        self._timeout = timeout
        self._probe_key = probe_key
        self._metrics = metrics
        self._clock = clock
        self._pause = 0.0
        self._up_since = float("-inf")
        self._down_since = 0.0
        self._last_answer = float("-inf")
        self._generation = 0
        self._lost_signal: asyncio.Future[None] | None = None
        self._recovering: asyncio.Task[None] | None = None
        self._asking: set[asyncio.Future[Any]] = set()
        self.up = True

    async def start(self) -> None:
        """Check once whether Redis is available, so that the first request need not find out."""
        fault = await self.fault()
        if fault is not None:
            self._mark_down(_reason(fault), cause_of(fault))

    async def close(self) -> None:
        """Close all connections."""
        task, self._recovering = self._recovering, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self.pool.disconnect()
        await asyncio.gather(*self._asking, return_exceptions=True)

    async def ask(self, command: Callable[[Any], Awaitable[Answer]]) -> Answer:
        """The answer of Redis to `command`, which is given the client.

        Raises StateUnreachable: after the timeout unless Redis answers others meanwhile, and at once when another
        command finds Redis down. The command may have been executed nevertheless.
        """
        if not self.up:
            raise StateUnreachable("the shared state is unavailable")
        # An outage is counted once, although many commands notice it.
        generation = self._generation
        try:
            return await self._or_lost(command(self._redis))
        except Exception as fault:  # noqa: BLE001 - an edge: whatever goes wrong with the state, no request fails by it
            reason = _reason(fault)
            self._metrics.failed(reason)
            if generation == self._generation:
                self._mark_down(reason, cause_of(fault))
            raise StateUnreachable(f"the shared state: {reason}") from None

    async def swap(self, key: str, beginning: bytes, text: bytes, milliseconds: int) -> bool:
        """Set `key` to `text` if its value still begins with `beginning` (empty: if there is none); whether it was
        set.

        Raises StateUnreachable.
        """
        arguments: list[bytes | int] = [beginning, text, milliseconds]
        return bool(await self.ask(lambda _: self._swap(keys=[key], args=arguments)))

    def script(self, text: str) -> Callable[..., Awaitable[Any]]:
        """A Lua script; call it with `keys` and `args` inside a command to `ask`."""
        return self._redis.register_script(text)

    def _mark_down(self, reason: Reason, detail: str) -> None:
        """From now on all commands fail at once, until a probe succeeds."""
        now = self._clock()
        self.up = False
        self._generation += 1
        self._down_since = now
        # A connection that fails again soon after its recovery is probed less often.
        self._pause = _longer(self._pause) if now - self._up_since < STEADY_SECONDS else 0.0
        self._metrics.degraded.set(1)
        if self._lost_signal is not None:
            # Wakes every command in progress, so that none waits for its own timeout.
            self._lost_signal.set_result(None)
            self._lost_signal = None
        logger().warning("state_degraded", reason=reason, detail=detail[:300])
        self._recovering = asyncio.get_running_loop().create_task(self._recover())

    async def _recover(self) -> None:
        await asyncio.sleep(self._pause)
        while await self.fault() is not None:
            self._pause = _longer(self._pause)
            # Jitter: the gateways of a deployment must not probe in step.
            await asyncio.sleep(self._pause * random.uniform(0.5, 1.0))
        self._up_since = self._clock()
        self.up = True
        self._metrics.degraded.set(0)
        logger().info("state_recovered", seconds=round(self._up_since - self._down_since, 3))

    async def fault(self) -> Exception | None:
        """Why Redis cannot be used: unreachable, too slow, or read-only. None if it can."""
        try:
            await self.pool.disconnect(inuse_connections=False)  # they may lead to a peer that is gone
            await self._within(CONNECT_SECONDS, self._redis.ping())
            await self._within(self._timeout, self._redis.set(self._probe_key, b"", px=1000))
            await self._within(self._timeout, self._swap(keys=[self._probe_key], args=[b"", b"", 1000]))
        except Exception as fault:  # noqa: BLE001 - the same edge: or the link would be lost for ever
            self._metrics.failed(_reason(fault))
            return fault
        return None

    async def _or_lost(self, answer: Awaitable[Answer]) -> Answer:
        """The answer, unless Redis is silent for the timeout. Raises TimeoutError, and what `answer` raises.

        Silence is measured rather than the time of one answer: a busy process reads answers late, and queued
        commands wait for a connection.
        """
        if self._lost_signal is None:
            self._lost_signal = asyncio.get_running_loop().create_future()
        # One future for all commands; the first timeout resolves it.
        loss, asking = self._lost_signal, self._start(answer)
        asked, turns = self._clock(), LATE_TURNS
        try:
            while not asking.done():
                end = min(max(asked, self._last_answer) + self._timeout, asked + MAX_TIMEOUTS * self._timeout)
                if loss.done() or (not turns and end <= self._clock()):
                    raise TimeoutError
                if (left := end - self._clock()) > 0:
                    await asyncio.wait((asking, loss), timeout=left, return_when=asyncio.FIRST_COMPLETED)
                else:
                    turns -= 1
                    await asyncio.sleep(0)
        finally:
            # The command is of no use any more, and its connection must return to the pool.
            asking.cancel()
        return asking.result()

    async def _within(self, seconds: float, answer: Awaitable[Answer]) -> Answer:
        """The answer within `seconds`. Raises TimeoutError, and what `answer` raises.

        Cancelling alone is not enough: the library has timeouts of its own, and where both expire together it may
        take our cancellation for its own and continue until its default of five seconds.
        """
        asking = self._start(answer)
        try:
            done, _ = await asyncio.wait((asking,), timeout=seconds)
        finally:
            asking.cancel()
        if not done:
            raise TimeoutError
        return asking.result()

    def _start(self, answer: Awaitable[Answer]) -> "asyncio.Future[Answer]":
        asking = asyncio.ensure_future(answer)
        self._asking.add(asking)
        asking.add_done_callback(self._ended)
        return asking

    def _ended(self, asking: asyncio.Future[Any]) -> None:
        self._asking.discard(asking)
        # Retrieving the exception keeps asyncio from logging it when the waiter has given up.
        if not asking.cancelled() and asking.exception() is None:
            self._last_answer = self._clock()

    def __repr__(self) -> str:
        state = "up" if self.up else f"down for {self._clock() - self._down_since:.1f} s"
        return f"<RedisConnection {state}, lost {self._generation} times>"


def _longer(pause: float) -> float:
    return min(LONGEST_PAUSE, max(SHORTEST_PAUSE, 2 * pause))


def _reason(fault: Exception) -> Reason:
    # redis-py has a TimeoutError of its own.
    if isinstance(fault, TimeoutError | LinkSlow):
        return "timeout"
    if is_refusal(fault):
        return "refused"
    return "connection" if isinstance(fault, LinkCut | OSError) else "refused"


_REPLIES = (
    ("WRONGPASS", "wrong user or password in state.url"),
    ("invalid password", "wrong user or password in state.url"),
    ("invalid username-password", "wrong user or password in state.url"),
    ("NOAUTH", "Redis asks for a password, and state.url has none"),
    ("Authentication required", "Redis asks for a password, and state.url has none"),
    ("without any password configured", "state.url has a password, and Redis has none"),
    ("MOVED", "this is a node of a Redis Cluster, which is not supported"),
    ("CLUSTERDOWN", "this is a node of a Redis Cluster, which is not supported"),
    ("Hash slot not served", "this is a node of a Redis Cluster, which is not supported"),
    ("CROSSSLOT", "this is a node of a Redis Cluster, which is not supported"),
    ("cluster mode", "this is a node of a Redis Cluster, which is not supported"),
    ("DB index is out of range", "Redis has no database of the number in state.url"),
    ("invalid DB index", "Redis has no database of the number in state.url"),
    ("read only replica", "this Redis is a read-only replica; name the primary"),
    ("READONLY", "this Redis is a read-only replica; name the primary"),
    ("OOM", "Redis is out of memory: raise maxmemory or let it evict"),
    ("MISCONF", "Redis refuses writes because it cannot save to disk"),
    ("LOADING", "Redis is still loading its data"),
    ("loading the dataset", "Redis is still loading its data"),
)
"""Parts of what Redis or its library says, and the cause of each."""


def cause_of(fault: BaseException) -> str:
    """The cause of a failed command."""
    # redis-py wraps the cause, sometimes several times.
    chain = list(_chain(fault))
    text = str(fault)
    for cause in chain:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed: {(cause.reason or 'broken off').lower().replace('_', ' ')}"
        if isinstance(cause, socket.gaierror):
            return f"the host in state.url cannot be resolved: {cause.strerror}"
    for part, meaning in _REPLIES:
        if part in text:
            return f"{meaning} ({_clipped(text)})"
    if "unknown command" in text.lower():
        return f"this is a Redis Sentinel, or not a full Redis; name the primary itself ({_clipped(text)})"
    if "NOPERM" in text or "no permissions" in text:
        return f"the user of state.url lacks a right ({_clipped(text)})"
    if any(isinstance(cause, ConnectionRefusedError) for cause in chain) or "Connect call failed" in text:
        return "connection refused"
    if isinstance(fault, TimeoutError | RedisTimeoutError):
        return "no answer in time"
    return f"{type(fault).__name__}: {_clipped(text)}"


def is_refusal(fault: BaseException) -> bool:
    """Whether Redis was reached and refused, though its library reports a broken connection."""
    return isinstance(fault, AuthenticationError | AuthorizationError)


def url_fault(fault: Exception) -> str:
    """What is wrong with a URL that the library cannot use."""
    if isinstance(fault, TypeError):
        return "has an unknown parameter after ?"
    if isinstance(fault, ValueError | RedisError):
        return f"has an invalid parameter: {_clipped(str(fault))}"
    return "cannot be used"


def _chain(fault: BaseException | None) -> Iterator[BaseException]:
    while fault is not None:
        yield fault
        fault = fault.__cause__ or fault.__context__


def _clipped(text: str) -> str:
    return text[:200]
